"""Raw text of a value -> typed value, status, and where it stands in its document."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum

from hpd_core.grounding import SourceText, Span
from hpd_core.normal import comparable, is_null, unquote
from hpd_core.schema import Attribute, ValueType

Typed = str | int | float | bool | None

_GROUPED = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
_TRUE = frozenset({"true", "yes", "y", "1"})
_FALSE = frozenset({"false", "no", "n", "0"})


class ValueStatus(StrEnum):
    """What became of a value. Where several hold, the first of: truncated, absent, invalid, ungrounded."""

    EXTRACTED = "extracted"
    ABSENT = "absent"
    #: The value reached `max_value_tokens` before it ended: never passed off as whole.
    TRUNCATED = "truncated"
    #: The value stands nowhere in the text of its own document. Only where grounding is on.
    UNGROUNDED = "ungrounded"
    #: The raw text does not parse as the declared type, or is not one of the closed values.
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Reading:
    """What a raw text says.

    spans: where the value stands, `source.text[start:end]` being its text; empty where nobody looked.
    """

    value: Typed
    status: ValueStatus
    spans: tuple[Span | None, ...] = ()


def read(attribute: Attribute, raw: str, source: SourceText | None = None) -> Reading:
    """Types `raw` as the attribute declares and, given a `source`, looks it up there.

    A value that is found is read as the document writes it, not as the model did. One that is not found is
    `ungrounded` and keeps its value: whoever asked for constraint instead of a mark drops it. Closed values and
    booleans are judgements that need not stand in the text: nobody looks for them.
    """
    text = unquote(raw)
    value, status = typed_value(attribute, raw)
    if status is not ValueStatus.EXTRACTED or source is None or not is_copied(attribute):
        return Reading(value, status)
    span = source.find(text)
    if span is None:
        return Reading(value, ValueStatus.UNGROUNDED, (None,))
    value, status = _parsed(attribute.type, span.of(source.text))
    return Reading(value, status, (span,))


def is_copied(attribute: Attribute) -> bool:
    """Whether values of `attribute` are to be found in the text, rather than judged from it."""
    return not attribute.values and attribute.type is not ValueType.BOOLEAN


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
    return _parsed(attribute.type, text)


def _parsed(kind: ValueType, text: str) -> tuple[Typed, ValueStatus]:
    parsed = _parse(kind, text)
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
