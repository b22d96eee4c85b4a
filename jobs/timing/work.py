"""What an engine did: floating-point operations that its method needs, those that it computed, use of its slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpd_core.rows import Counts
from hpd_core.schema import Document
from hpd_core.spec import DecoderSpec
from jobs.timing.engines import Engine


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Parameters that take part in matrix products. body: every row passes them. head: only rows that need a token do.

    Embeddings are looked up and count for nothing; a head that shares their weights counts as a head.
    """

    body: int
    head: int

    def flops(self, tokens: int, head_rows: int) -> int:
        """2 x (body x tokens + head x head rows). Products inside attention are left out: see docs/benchmark.md."""
        return 2 * (self.body * tokens + self.head * head_rows)


@dataclass(frozen=True, slots=True)
class Traced:
    """Forward passes as a hook on the model saw them, whatever the engine says of itself.

    tokens: rows of all passes, padding and rejected drafts included. head_rows: rows whose logits were computed.
    """

    calls: int = 0
    tokens: int = 0
    head_rows: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """One timed run of an engine.

    seconds: wall time. cpu_seconds: of all threads of its process. counts: what the engine says it did.
    widest: most value tokens fed in one decode step where the engine chooses its width, 0 where that is not known.
    room: rows that one forward pass has room for, 0 where the engine has no such bound.
    peak_bytes: most memory resident during the run, weights and interpreter included.
    traced: None of a peer, whose passes nobody sees. cache_told: whether the engine says what its cache saved; where it
        does not, `counts` take it for nothing, and what the method needs is an upper bound.
    """

    seconds: float
    cpu_seconds: float
    counts: Counts
    traced: Traced | None
    widest: int
    peak_bytes: int
    cache_told: bool = True
    room: int = 0


@dataclass(frozen=True, slots=True)
class PeerPlace:
    """Where a peer runs and what it reads.

    python: interpreter of its environment. model: Hugging Face folder of the float32 weights. precision: `float32`, or
    `own` for its fastest.
    """

    python: str
    model: str
    precision: str


@dataclass(frozen=True, slots=True)
class Order:
    """All that a process needs to be an engine.

    forced: answers to write, one dict per document; None for the model's own. cold: start every run with empty caches.
    peer: where the engine is another project's.
    """

    engine: Engine
    spec: DecoderSpec
    threads: int | None
    documents: Sequence[Document]
    forced: Sequence[dict[str, str]] | None = None
    cold: bool = False
    peer: PeerPlace | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """What a station says of itself when it is warm.

    size: of the model. hidden, intermediate, dtype: the shape of its MLP, for the machine's matrix rate.
    document_tokens: sum over all documents. resident: bytes.
    """

    size: ModelSize
    hidden: int
    intermediate: int
    dtype: str
    threads: int
    document_tokens: int
    resident: int


@dataclass(frozen=True, slots=True)
class PeerReady:
    """What a peer says of itself when it is warm. version: with its name. settings: what it was started with."""

    version: str
    settings: Mapping[str, Any]
    resident: int


def live_tokens(counts: Counts) -> int:
    """Tokens that the method has to feed: prompts, shared prefixes that were not cached, and what was written, without
    the last token of each sequence, which is never fed. No padding, no rejected draft, no finished sequence."""
    return counts.prompt_tokens + counts.prefix_tokens + counts.decode_rows


def needed_flops(size: ModelSize, counts: Counts) -> int:
    """FLOPs that the method needs: every live token through the body, the head once per token that is chosen."""
    return size.flops(live_tokens(counts), counts.generated_tokens - counts.forced_tokens)


def computed_flops(size: ModelSize, traced: Traced) -> int:
    """FLOPs that the engine computed, with padding and with logits that nobody needed."""
    return size.flops(traced.tokens, traced.head_rows)


def step_fill(counts: Counts, passes: int, room: int) -> float | None:
    """Live tokens fed / (forward passes x rows that one has room for), beginning and tail included."""
    return live_tokens(counts) / (passes * room) if passes and room else None


def slot_share(counts: Counts, width: int) -> float | None:
    """Value tokens fed / (decode steps x slots per step), beginning and tail included; None without a width."""
    return counts.decode_rows / (counts.steps * width) if counts.steps and width else None
