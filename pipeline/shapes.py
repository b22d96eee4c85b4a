"""Shapes of published models, from conf/shapes.yaml: what a roofline needs to know of a model, and no weights."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.checked import ConfigError
from pipeline.shipped import shipped

#: The file that ships.
SHAPES = "shapes.yaml"


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A dense decoder-only model with a gated MLP (Llama, Qwen, Phi): widths in numbers, not bytes.

    tied: LM head and embeddings are one matrix. parameters: as its card counts them.
    """

    name: str
    source: str
    date: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    parameters: float

    @property
    def body(self) -> int:
        """Weights that every row passes: query, key, value, output, three matrices of the MLP; norms left out."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def head(self) -> int:
        """Weights of the LM head, which a row passes whose next token is wanted."""
        return self.vocabulary * self.hidden

    @property
    def kv_numbers(self) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    @property
    def attention_flops(self) -> int:
        """Of one row, per token that it sees: two products per layer and query head."""
        return 4 * self.layers * self.heads * self.head_dim

    def weight_bytes(self, each: float, width: int) -> float:
        """Of all weights on the device. each: bytes of a weight of the body. width: of one of embeddings and head."""
        return self.body * each + self.head * (1 if self.tied else 2) * width

    def activation_numbers(self) -> int:
        """What one row holds at once, at most: its residual and normed state, query, key and value, two of the MLP."""
        return 2 * self.hidden + (self.heads + 2 * self.kv_heads) * self.head_dim + 2 * self.intermediate


def model_shapes() -> dict[str, ModelShape]:
    """The shapes that ship. Raises `ConfigError` naming file and entry."""
    found = {}
    for name, entry in shipped(SHAPES).items():
        try:
            found[name] = ModelShape(name=name, **entry)
        except TypeError as error:
            raise ConfigError(f"conf/{SHAPES}: {name}: {error}") from error
    return found
