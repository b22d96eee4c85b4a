"""How documents are decoded, as plain frozen data, and the error of every setting that cannot be.

Neither this nor the rest of a decoder's description (`template.py`, `model_spec.py`, `spec.py`) imports torch or
transformers, so that drivers and tokenisation tasks can hold it cheaply.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Literal


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


#: A setting that is decided by measurement where the model is to run; see `sizing.py`.
Auto = Literal["auto"]
AUTO: Auto = "auto"
#: The settings that can be `auto`.
SIZES = ("tokens_per_step", "max_slots", "kv_mib")
#: Decode settings that no answer depends on.
INDIFFERENT = ("prefix_cache_mib", "cuda_graphs")


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
        always admitted. On a CPU a shared prefix of up to 128 tokens is copied in front of each document and counts.
        None: no bound. `auto`: half of the memory that is free beside the weights.
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
    tokens_per_step: int | Auto = 1024
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


def did_you_mean(word: str, known: Iterable[str], kind: str) -> str:
    """ "did you mean 'layout'?", or all known ones where none is near. kind: what they are, in the plural."""
    known = list(known)
    close = get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known {kind} are {', '.join(known) or 'none'}"
