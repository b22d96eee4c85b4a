"""Whether a value that a model names stands in the text, and how the text writes it."""

from __future__ import annotations

import re


def find_span(text: str, value: str) -> str | None:
    """`value` as `text` writes it, or None where it does not stand there.

    The exact spelling wins over one that differs in case or in the width of blanks. A span never crosses a line, and
    never begins or ends inside a word or a number: "red" is not in "incredible", but "12" is in "12oz".
    """
    pattern = r"[^\S\n]+".join(re.escape(word) for word in value.split())
    if not pattern:
        return None
    for flags in (0, re.IGNORECASE):
        # A lookahead finds overlapping places: the first "a a" of "xa a a" begins inside a word, the second does not.
        for place in re.finditer(f"(?=({pattern}))", text, flags):
            start, end = place.span(1)
            if not _joined(text[start - 1 : start], text[start]) and not _joined(text[end - 1], text[end : end + 1]):
                return place[1]
    return None


def _joined(left: str, right: str) -> bool:
    """Whether two neighbours are of one word or one number. Scripts without case may not part their words by blanks."""
    return (_cased(left) and _cased(right)) or (left.isdigit() and right.isdigit())


def _cased(character: str) -> bool:
    return character.isalpha() and character.lower() != character.upper()
