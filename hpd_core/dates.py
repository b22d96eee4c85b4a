"""Dates as catalogs write them: whole dates only, and none that could be read as two."""

from __future__ import annotations

import re
from datetime import date, datetime

from dateutil import parser

_ISO = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}[\d:.]*(?:Z|[+-]\d{2}:?\d{2})?)?")
#: "24" may be any century, and dateutil's guess moves with the calendar.
_WHOLE_YEAR = re.compile(r"(?<!\d)(?:\d{4}|\d{8})(?!\d)")
#: What dateutil takes from a default is missing in the text: two defaults that share no part show it.
_DEFAULTS = (datetime(2001, 1, 1), datetime(2002, 2, 12))


def parse_date(text: str) -> date | None:
    """The one date that `text` can mean; the time of day is dropped.

    None for "March 2024" and "03/04/2024": what is missing or could be day or month is never guessed. ISO dates are
    taken as such, month names are English.
    """
    try:
        if _ISO.fullmatch(text):
            return date.fromisoformat(text[:10])
        if len(_WHOLE_YEAR.findall(text)) != 1:
            return None
        found = {
            parser.parse(text, default=default, dayfirst=day_first, ignoretz=True).date()
            for default in _DEFAULTS
            for day_first in (False, True)
        }
    except (ValueError, ArithmeticError, TypeError, AttributeError, LookupError):  # dateutil lets out all of them
        return None
    return found.pop() if len(found) == 1 else None
