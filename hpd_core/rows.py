"""Decoded tokens -> typed value, raw text, status, counts. The last stage of the chain."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from enum import StrEnum
from math import exp, isfinite

from hpd_core.grounding import Span
from hpd_core.reading import Typed, ValueStatus
from hpd_core.schema import Schema


class RowStatus(StrEnum):
    OK = "ok"
    #: Extracted, but the document was longer than the budget and its tail was cut.
    CUT = "cut"
    NO_TEXT = "no_text"
    ERROR = "error"

    @property
    def is_ok(self) -> bool:
        return self in (RowStatus.OK, RowStatus.CUT)


@dataclass(frozen=True, slots=True)
class Value:
    """Answer for one attribute of one document.

    value: typed value, None unless status is `extracted`, or `ungrounded` where grounding only marks (a truncated value
        and one that is too unsure keep their text in `raw` only).
    raw: the decoded text up to the terminator, untouched.
    logprob: mean log-probability of the tokens that the model chose, the terminator included; NaN where it chose none.
    tokens: written tokens, the terminator included; 0 where the value is part of a longer text (AR baseline).
    spans: where the value stands in the document's text, None where it does not; empty where nobody looked.
    probability: calibrated probability that this answer is right; NaN of an answer that no calibration speaks of, None
        where none is in use. See confidence.py.
    forced_tokens: those of `tokens` that a closed list left no choice about: they say nothing of how sure the model is.
    """

    attribute: str
    value: Typed
    status: ValueStatus
    raw: str
    logprob: float
    tokens: int
    spans: tuple[Span | None, ...] = ()
    probability: float | None = None
    forced_tokens: int = 0

    @property
    def chosen_tokens(self) -> int:
        """Tokens that `logprob` is the mean of."""
        return self.tokens - self.forced_tokens

    @property
    def confidence(self) -> float | None:
        """From 0 to 1: the calibrated probability where a calibration is in use, else the geometric mean of the chosen
        tokens' probabilities; None where there is neither."""
        if self.probability is not None:
            return self.probability if isfinite(self.probability) else None
        return exp(self.logprob) if isfinite(self.logprob) else None


@dataclass(frozen=True, slots=True)
class Row:
    """Result for one document: one `Value` per attribute of its schema, in the schema's order; none on error.

    text: what the spans of the values count in; empty where grounding is off.
    """

    schema: Schema
    status: RowStatus
    values: tuple[Value, ...] = ()
    error: str | None = None
    document_tokens: int = 0
    text: str = ""

    def __post_init__(self) -> None:
        if self.status.is_ok and len(self.values) != len(self.schema):
            raise ValueError(
                f"row has {len(self.values)} values for the {len(self.schema)} attributes of {self.schema.name!r}"
            )

    def as_dict(self) -> dict[str, Typed]:
        """{attribute name: typed value or None}."""
        return {v.attribute: v.value for v in self.values}


@dataclass(slots=True)
class Counts:
    """Plain counters of decoding work, merged upward with `+=`. Tokens are model tokens, seconds are wall time."""

    documents: int = 0  # decoded documents, duplicates of one another counted once
    duplicates: int = 0  # documents whose answer was copied from an equal one of the same call or unit
    slots: int = 0
    prompt_tokens: int = 0  # tokens of document, suffix and stubs that were fed
    prefix_tokens: int = 0  # shared-prefix tokens that were fed (cache misses)
    cached_tokens: int = 0  # shared-prefix tokens that were reused
    decode_rows: int = 0  # value tokens fed, without rejected drafts (a terminator or K_max-th token is never fed)
    slot_steps: int = 0  # slots that had work, summed over steps: a step may feed a slot several tokens
    generated_tokens: int = 0  # value tokens emitted, terminators and forced ones included
    drafted_tokens: int = 0  # value tokens guessed by lookup and fed to be checked
    accepted_tokens: int = 0  # those of them that were right: each saved its slot a step
    forced_tokens: int = 0  # those of the generated ones that a closed list left no choice about
    steps: int = 0  # forward passes that emitted value tokens from fed value tokens
    model_calls: int = 0  # all forward passes
    longest_value_tokens: int = 0  # sum over documents of their longest value: HPD's step count at J = 1
    truncated: int = 0
    absent: int = 0
    invalid: int = 0
    ungrounded: int = 0  # 0 where grounding is off
    unsure: int = 0  # 0 where no threshold is set
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    @property
    def slots_per_step(self) -> float:
        """Slots that had work in a step, in the mean; 0 where no step fed a value token."""
        return self.slot_steps / self.steps if self.steps else 0.0

    @property
    def value_tokens_fed_per_step(self) -> float:
        """More than slots, where forced tokens and accepted drafts are fed along with a slot's own."""
        return self.decode_rows / self.steps if self.steps else 0.0

    def __iadd__(self, other: Counts) -> Counts:
        for f in fields(self):
            setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))
        return self

    def count_values(self, rows: Iterable[Row]) -> None:
        """Adds what became of the values of `rows`, duplicates among them."""
        for row in rows:
            self.truncated += sum(v.status is ValueStatus.TRUNCATED for v in row.values)
            self.absent += sum(v.status is ValueStatus.ABSENT for v in row.values)
            self.invalid += sum(v.status is ValueStatus.INVALID for v in row.values)
            self.ungrounded += sum(v.status is ValueStatus.UNGROUNDED for v in row.values)
            self.unsure += sum(v.status is ValueStatus.UNSURE for v in row.values)

    def as_dict(self) -> dict[str, int | float]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, slots=True)
class Extraction:
    """Rows in the order of the documents given, one per document, and the work they took."""

    rows: list[Row]
    counts: Counts = field(default_factory=Counts)
