"""Typed value -> the text that a model is taught to write for it: the way back of `read`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from typing import Any

import numpy as np

from hpd_core.normal import unquote
from hpd_core.numerals import Quantity
from hpd_core.reading import ValueStatus, typed_value
from hpd_core.schema import SEPARATOR, Attribute, ValueType

#: A quantity may be a mapping of `value` and `unit`, as a struct column holds it.
Writable = str | float | date | Quantity | Mapping[str, Any]


def written(attribute: Attribute, value: Writable | Sequence[Writable | None]) -> str:
    """The text of `value` as a model should write it, which `read` reads back; "" where there is none.

    A closed value is written as the list spells it, chosen as `read` chooses; a boolean as "yes" or "no", a number in
    decimals without trailing zeros (42.0 is "42"), a quantity with its unit, a date as ISO has it, a string without
    edge blanks. Where there may be several values they come each once, without null markers, with the separator
    between. A quantity without number or unit is none.

    Raises ValueError with the item where one of several holds the separator: it would be read as two.
    """
    if not attribute.many:
        return _written_one(attribute, value)  # type: ignore[arg-type]
    one = replace(attribute, many=False)
    if isinstance(value, str):
        items: Sequence[Writable | None] = unquote(value).split(SEPARATOR)
    else:
        items = value if isinstance(value, Sequence) else [value]
    texts = []
    for item in items:
        text = "" if item is None else _written_one(one, item)
        if SEPARATOR in text:
            raise ValueError(f"{text!r} holds {SEPARATOR!r}, the separator of several values")
        kept, status = typed_value(one, text)
        if status is not ValueStatus.ABSENT:
            texts.append((text if kept is None else kept, text))
    return f"{SEPARATOR} ".join(dict(reversed(texts))[key] for key in dict(texts))


def _written_one(attribute: Attribute, value: Writable) -> str:
    if isinstance(value, str):
        return _listed(attribute, value, unquote(value))
    if isinstance(value, Mapping):
        number, unit = value["value"], value["unit"]
        if number is None or number != number or not unit:
            return ""
        value = Quantity(number, unit)
    if isinstance(value, Quantity):
        return _listed(attribute, value, f"{_digits(value.value)} {value.unit}")
    if isinstance(value, date):
        value = value.date() if isinstance(value, datetime) else value
        return _listed(attribute, value, value.isoformat())
    return _listed(attribute, value, _digits(value))


def _listed(attribute: Attribute, value: str | float | date | Quantity, text: str) -> str:
    """`text` as the closed list spells it; "1.50" there is 1.5."""
    if not attribute.values:
        return text
    if not isinstance(value, str):
        unlisted = replace(attribute, values=())
        for listed in attribute.values:
            if typed_value(unlisted, listed)[0] == value:
                return listed
    chosen, status = typed_value(replace(attribute, type=ValueType.STRING), text)
    return str(chosen) if status is ValueStatus.EXTRACTED else text


def _digits(value: float) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if isinstance(value, int) else np.format_float_positional(value, trim="-")
