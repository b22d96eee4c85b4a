"""Typed value -> the text that a model is taught to write for it: the way back of `read`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from typing import Any

import numpy as np

from hpd_core.normal import unquote
from hpd_core.numerals import Quantity
from hpd_core.reading import typed_value
from hpd_core.schema import SEPARATOR, Attribute

#: A quantity may be a mapping of `value` and `unit`, as a struct column holds it.
Writable = str | float | date | Quantity | Mapping[str, Any]


def written(attribute: Attribute, value: Writable | Sequence[Writable]) -> str:
    """The text of `value` as a model should write it, which `read` reads back: a closed value as the list spells it,
    "yes" or "no", a number in decimals without trailing zeros (42.0 is "42"), a quantity with its unit, a date as ISO
    has it, a string without edge blanks, several values with the separator between."""
    if isinstance(value, str):
        return _listed(attribute, value, unquote(value))
    if isinstance(value, Sequence):
        return f"{SEPARATOR} ".join(written(replace(attribute, many=False), item) for item in value)
    if isinstance(value, Quantity):
        return f"{_digits(value.value)} {value.unit}"
    if isinstance(value, Mapping):
        return f"{_digits(value['value'])} {value['unit']}"
    if isinstance(value, date):
        return (value.date() if isinstance(value, datetime) else value).isoformat()
    return _listed(attribute, value, _digits(value))


def _listed(attribute: Attribute, value: str | float, text: str) -> str:
    """`text` as the closed list spells it; "1.50" there is 1.5."""
    unlisted = replace(attribute, values=()) if attribute.values and not isinstance(value, str) else None
    for listed in attribute.values:
        same = unlisted is not None and typed_value(unlisted, listed)[0] == value
        if same or listed.casefold() == text.casefold():
            return listed
    return text


def _digits(value: float) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if isinstance(value, int) else np.format_float_positional(value, trim="-")
