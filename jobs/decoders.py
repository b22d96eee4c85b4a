"""Decoders by their command-line names, built over one loaded model. Imports torch: import it where it is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpd_core.baselines import ArDecoder, CachedPerAttributeDecoder, PerAttributeDecoder
from hpd_core.extractor import Extractor, Forced, HyperParallelDecoder
from hpd_core.prompt import EncodedDocument
from hpd_core.rows import Extraction
from hpd_core.spec import DecoderSpec
from pipeline.job import JobError

#: Longest draft that prompt lookup copies from the prompt, in tokens.
LOOKUP_TOKENS = 10


class OneByOne:
    """A decoder made to take one document after another (J = 1)."""

    def __init__(self, decoder: Extractor) -> None:
        self.encoder = decoder.encoder
        self._decoder = decoder

    def extract_encoded(self, documents: Sequence[EncodedDocument], forced: Forced | None = None) -> Extraction:
        whole = Extraction([])
        for number, document in enumerate(documents):
            answers = None if forced is None else [forced[number]]
            part = self._decoder.extract_encoded([document], answers)
            whole.rows.extend(part.rows)
            whole.counts.__iadd__(part.counts)
        return whole


#: {name: (loaded HPD decoder, batch size or 0 for the default) -> decoder}. Baselines share its weights and prompts.
DECODERS: dict[str, Callable[[HyperParallelDecoder, int], Extractor]] = {
    "hpd": lambda hpd, batch: OneByOne(hpd) if batch == 1 else hpd,
    "ar": lambda hpd, batch: ArDecoder(hpd.model, hpd.encoder, batch_size=batch or 8),
    "ar-lookup": lambda hpd, _: ArDecoder(hpd.model, hpd.encoder, batch_size=1, lookup=LOOKUP_TOKENS),
    "per-attribute": lambda hpd, batch: PerAttributeDecoder(hpd.model, hpd.encoder, batch_size=batch or 32),
    "per-attribute-cached": lambda hpd, batch: CachedPerAttributeDecoder(
        hpd.model, hpd.encoder, batch_size=batch or 32
    ),
}


def load(spec: DecoderSpec, threads: int | None) -> HyperParallelDecoder:
    """The HPD decoder of `spec`, its weights loaded."""
    return HyperParallelDecoder.from_spec(spec, threads=threads)


def named(name: str) -> Callable[[HyperParallelDecoder, int], Extractor]:
    """How to build the decoder `name` from a loaded one; raises JobError for a name that does not exist."""
    if name not in DECODERS:
        raise JobError(f"--decoder {name}: must be one of {', '.join(DECODERS)}")
    return DECODERS[name]
