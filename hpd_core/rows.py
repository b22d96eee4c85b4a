"""Decoded tokens -> typed value, raw text, status, counts. The last stage of the chain."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, fields
from enum import StrEnum

from hpd_core.normal import comparable, is_null, unquote
from hpd_core.schema import Attribute, Schema, ValueType

Typed = str | int | float | bool | None

_GROUPED = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
_TRUE = frozenset({"true", "yes", "y", "1"})
_FALSE = frozenset({"false", "no", "n", "0"})


class ValueStatus(StrEnum):
    EXTRACTED = "extracted"
    ABSENT = "absent"
    #: The value reached `max_value_tokens` before it ended: never passed off as whole.
    TRUNCATED = "truncated"
    #: The raw text does not parse as the declared type, or is not one of the closed values.
    INVALID = "invalid"


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

    value: typed value, None unless status is `extracted` (a truncated value keeps its text in `raw` only).
    raw: the decoded text up to the terminator, untouched.
    logprob: mean log-probability per decoded token, the terminator included; NaN where nothing was decoded.
    tokens: decoded tokens, the terminator included; 0 where the value is part of a longer text (AR baseline).
    """

    attribute: str
    value: Typed
    status: ValueStatus
    raw: str
    logprob: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Row:
    """Result for one document: one `Value` per attribute of its schema, in the schema's order; none on error."""

    schema: Schema
    status: RowStatus
    values: tuple[Value, ...] = ()
    error: str | None = None
    document_tokens: int = 0

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
    duplicates: int = 0  # documents whose answer was copied from an equal one of the same call
    slots: int = 0
    prompt_tokens: int = 0  # tokens of document, suffix and stubs that were fed
    prefix_tokens: int = 0  # shared-prefix tokens that were fed (cache misses)
    cached_tokens: int = 0  # shared-prefix tokens that were reused
    decode_rows: int = 0  # value tokens fed (the terminator and a K_max-th token are never fed)
    generated_tokens: int = 0  # value tokens emitted, terminators included
    steps: int = 0  # forward passes that emitted value tokens from fed value tokens
    model_calls: int = 0  # all forward passes
    longest_value_tokens: int = 0  # sum over documents of their longest value: HPD's step count at J = 1
    truncated: int = 0
    absent: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    def __iadd__(self, other: Counts) -> Counts:
        for f in fields(self):
            setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))
        return self

    def as_dict(self) -> dict[str, int | float]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, slots=True)
class Extraction:
    """Rows in the order of the documents given, one per document, and the work they took."""

    rows: list[Row]
    counts: Counts = field(default_factory=Counts)


def typed_value(attribute: Attribute, raw: str) -> tuple[Typed, ValueStatus]:
    """Types `raw` as the attribute declares: (value, status) with status extracted, absent or invalid."""
    text = unquote(raw)
    closed = {comparable(v): v for v in reversed(attribute.values)}
    if text in attribute.values:  # "US" and "us" may both be declared
        pass
    elif comparable(text) in closed:  # before null markers: a closed list may well hold "None"
        text = closed[comparable(text)]
    elif is_null(raw):
        return None, ValueStatus.ABSENT
    elif closed:
        return None, ValueStatus.INVALID
    parsed = _parse(attribute.type, text)
    return parsed, ValueStatus.EXTRACTED if parsed is not None else ValueStatus.INVALID


def _parse(kind: ValueType, text: str) -> Typed:
    if kind is ValueType.STRING:
        return text
    if kind is ValueType.BOOLEAN:
        word = text.casefold()
        return True if word in _TRUE else False if word in _FALSE else None
    if _GROUPED.fullmatch(text):
        text = text.replace(",", "")
    elif kind is ValueType.NUMBER and text.count(",") == 1 and "." not in text:
        text = text.replace(",", ".")  # a decimal comma, as most of Europe writes it
    try:
        if "_" in text:  # a digit separator to Python, nothing to people
            return None
        number = float(text) if kind is ValueType.NUMBER else int(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and abs(number) < 2**63 else None
