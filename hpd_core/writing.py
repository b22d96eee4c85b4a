"""Typed value -> the text that a model is taught to write for it: the way back of `typed_value`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hpd_core.rows import typed_value, unquote
from hpd_core.schema import Attribute


def written(attribute: Attribute, value: str | float) -> str:
    """The text of `value` as a model should write it, which `typed_value` reads back: a closed value as the list spells
    it, "yes" or "no", a number in decimals without trailing zeros (42.0 is "42"), a string without edge blanks."""
    text = unquote(value) if isinstance(value, str) else _digits(value)
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
