"""Types of values, and the text of one value -> a value of its type."""

from __future__ import annotations

from datetime import date
from enum import StrEnum

from hpd_core.dates import parse_date
from hpd_core.numerals import Quantity, number, quantity

Scalar = str | int | float | bool | Quantity | date

_TRUE = frozenset({"true", "yes", "y", "1"})
_FALSE = frozenset({"false", "no", "n", "0"})


class ValueType(StrEnum):
    """Declared type of an attribute's value; decides the type of its output column."""

    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    #: A number with its unit.
    QUANTITY = "quantity"
    DATE = "date"


def parse(kind: ValueType, text: str) -> Scalar | None:
    """`text`, without edge blanks and quotes, as `kind`; None where it cannot be read as that."""
    if kind is ValueType.STRING:
        return text
    if kind is ValueType.BOOLEAN:
        word = text.casefold()
        return True if word in _TRUE else False if word in _FALSE else None
    if kind is ValueType.QUANTITY:
        return quantity(text)
    if kind is ValueType.DATE:
        return parse_date(text)
    parsed = number(text, whole=kind is ValueType.INTEGER)
    if parsed is None or not -(2**63) <= parsed < 2**63:
        return None
    return int(parsed) if kind is ValueType.INTEGER else float(parsed)
