"""The engines that a benchmark compares, by name. Plain data: `build.py` makes decoders of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

#: The engine that everything else is compared with, and the autoregressive one that ratios are taken against.
HPD, REFERENCE, PRESENT = "hpd", "ar", "ar-present"
#: Engines of other projects, each in an environment of its own: see jobs/timing/peers.
PEERS = ("vllm", "openvino")
#: HPD itself and AR with every key, at one batch at least: without them there is no ratio.
ESSENTIAL = (HPD, REFERENCE)


@dataclass(frozen=True, slots=True)
class Engine:
    """One way to decode all documents.

    batch: sequences decoded together (documents, or prompts of the per-attribute engines), 0 where the engine chooses
    by itself. without: what is switched off, "" for nothing; a key of `ABLATIONS`.
    """

    name: str
    batch: int = 0
    without: str = ""

    @property
    def label(self) -> str:
        if self.without:
            return f"{self.name}, {ABLATIONS[self.without]}"
        return f"{self.name}, batch {self.batch}" if self.batch else self.name

    @property
    def peer(self) -> str:
        """The project that it is of, "" for ours."""
        first = self.name.partition("-")[0]
        return first if first in PEERS else ""


#: HPD with one optimisation less each: {key: what it is then}.
ABLATIONS = {
    "refill": "static batches (no document enters before all of its batch have left)",
    "mixed-steps": "prefill apart from decode",
    "prefix-cache": "shared prefix computed again for every document",
    "last-logits": "logits of every row",
    "wide-steps": "96 rows per step (the paper's)",
    "stacking": "one document at a time (J = 1)",
    "fast-attention": "plain attention twin (document by document)",
    "duplicates": "repeated documents decoded again",
}
_BATCHES = (1, 8, 32, 128)
#: HPD at batch 1 shows the step factor. Order is that of the tables.
CONTENDERS = (
    Engine(HPD),
    Engine(HPD, 1),
    *(Engine(REFERENCE, batch) for batch in _BATCHES),
    *(Engine(PRESENT, batch) for batch in _BATCHES),
    Engine("ar-lookup", 1),
    Engine("ar-continuous"),
    Engine("ar-present-continuous"),
    Engine("per-attribute", 32),
    Engine("per-attribute-cached", 32),
    Engine("per-attribute-cached", 128),
    Engine("per-attribute-continuous"),
)
#: Names that may be left out, and labels of single batches.
OPTIONAL = tuple(dict.fromkeys(e.name for e in CONTENDERS if e.name not in ESSENTIAL))
BATCHES = tuple(e.label for e in CONTENDERS if e.batch)
#: Engines whose answers must be forced: the prompt asks for every key, or they cannot end after a number of lines.
NEED_FORCED = frozenset({PRESENT, "ar-continuous", "ar-present-continuous", "per-attribute-continuous"})
#: Engines with one sequence per document; the others have one per document and attribute.
_PER_DOCUMENT = frozenset({REFERENCE, PRESENT})


def contenders(documents: int, skip: Collection[str], *, forced: bool) -> list[Engine]:
    """The engines to compare on so many documents, less those whose name or label is in `skip`. A batch larger than
    there are documents is one of all of them."""
    left = [e for e in CONTENDERS if e.name not in skip and e.label not in skip]
    chosen = [e for e in left if forced or e.name not in NEED_FORCED]
    capped = [replace(e, batch=min(e.batch, documents)) if e.name in _PER_DOCUMENT else e for e in chosen]
    return list(dict.fromkeys(capped))


def peer_engines(peers: Sequence[str], skip: Collection[str] = ()) -> list[Engine]:
    """What is asked of other projects' engines: a document in two formats, and an attribute a request."""
    methods = (REFERENCE, PRESENT, "per-attribute")
    made = [Engine(f"{peer}-{method}") for peer in peers for method in methods]
    return [engine for engine in made if engine.name not in skip]


def ablations(*, duplicates: bool) -> list[Engine]:
    """HPD as it is, and with each optimisation off. duplicates: whether the documents hold repeats, without which that
    optimisation has nothing to do."""
    keys: Sequence[str] = [key for key in ABLATIONS if duplicates or key != "duplicates"]
    return [Engine(HPD), *(Engine(HPD, without=key) for key in keys)]
