"""Raw text of a value -> typed value, status, and where it stands in its document."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hpd_core.grounding import SourceText, Span
from hpd_core.normal import comparable, is_null, unquote
from hpd_core.schema import SEPARATOR, Attribute
from hpd_core.typed import Scalar, ValueType, parse

#: A tuple where the attribute may have several values.
Typed = Scalar | tuple[Scalar, ...] | None


class ValueStatus(StrEnum):
    """What became of a value. Where several hold, the first of: truncated, absent, invalid, unsure, ungrounded."""

    EXTRACTED = "extracted"
    ABSENT = "absent"
    #: The value reached `max_value_tokens` before it ended: never passed off as whole.
    TRUNCATED = "truncated"
    #: The value stands nowhere in the text of its own document. Only where grounding is on.
    UNGROUNDED = "ungrounded"
    #: The raw text does not parse as the declared type, or is not one of the closed values.
    INVALID = "invalid"
    #: Less sure than a threshold asks: no value, its text and confidence kept. Only where a threshold is set.
    UNSURE = "unsure"


@dataclass(frozen=True, slots=True)
class Reading:
    """What a raw text says.

    spans: where the value, or each of several, stands, `source.text[start:end]` being its text; None where it does not;
        empty where nobody looked.
    """

    value: Typed
    status: ValueStatus
    spans: tuple[Span | None, ...] = ()


def read(attribute: Attribute, raw: str, source: SourceText | None = None) -> Reading:
    """Types `raw` as the attribute declares and, given a `source`, looks it up there.

    A value that is found is read as the document writes it, not as the model did. One that is not found is
    `ungrounded` and keeps its value: whoever asked for constraint instead of a mark drops it. Closed values and
    booleans are judgements that need not stand in the text: nobody looks for them.

    Of an attribute with many values each is read for itself, null markers and repetitions are left out, and one that is
    invalid or ungrounded makes the whole so: a list from which something was dropped in silence helps nobody.
    """
    if not attribute.many:
        return _read_one(attribute, raw, source)
    readings = [_read_one(attribute, piece, source) for piece in unquote(raw).split(SEPARATOR)]
    present = [r for r in readings if r.status is not ValueStatus.ABSENT]
    statuses = {r.status for r in present}
    if not present or ValueStatus.INVALID in statuses:
        return Reading(None, ValueStatus.INVALID if present else ValueStatus.ABSENT)
    kept = {r.value: r for r in reversed(present)}  # the first of equal ones
    kept = {r.value: kept[r.value] for r in present}
    status = ValueStatus.UNGROUNDED if ValueStatus.UNGROUNDED in statuses else ValueStatus.EXTRACTED
    spans = tuple(span for r in kept.values() for span in r.spans)
    return Reading(tuple(kept), status, spans)  # type: ignore[arg-type]


def _read_one(attribute: Attribute, raw: str, source: SourceText | None) -> Reading:
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
    """Types one value as the attribute declares: (value, status) with status extracted, absent or invalid."""
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


def as_text(value: Typed) -> str:
    """A value as people read it, several of them with the separator between."""
    return f"{SEPARATOR} ".join(map(as_text, value)) if isinstance(value, tuple) else str(value)


def _parsed(kind: ValueType, text: str) -> tuple[Typed, ValueStatus]:
    parsed = parse(kind, text)
    return parsed, ValueStatus.EXTRACTED if parsed is not None else ValueStatus.INVALID
