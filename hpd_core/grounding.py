"""Where a value stands in its own document: character offsets into the original text, in any script.

A value is looked for as it is written, then under the comparable form of `normal.py`, on one line. What counts is the
text: a value that was found under another form is reported as the document writes it, casing included ("Schuh" in
"Lederschuhe" is "schuh"), so that `text[start:end]` is the value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

from hpd_core.normal import INVISIBLE, NormalText, extends, is_one_line, strip

#: One number, with its grouping or decimal signs. "38,39,40" is three of them, "1,299.00" and "15.6" are one each.
_NUMBER = re.compile(r"\d{1,3}(?:[.,]\d{3})+(?:[.,]\d+)?(?![.,]?\d)|(?<!\d[.,])\d+[.,]\d+(?![.,]?\d)|\d+")
#: Scripts that write words without blanks between them, and Hangul, whose particles are glued to the word: any two
#: characters of theirs may be a word's edge. Thai, Lao, Myanmar, Khmer; Hangul; kana and bopomofo; ideographs.
_NO_BLANKS = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1100-\u11ff\uac00-\ud7af\u3040-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
#: What has no width and joins nothing: a word may end before it, as it may before what follows it.
_LOOSE = INVISIBLE.replace("\u200d", "")
#: Least letters of a word that a value may cut out: "schuh" in "Lederschuhe" is meant, "red" in "Hundred" is not.
_PART_LETTERS = 4


@dataclass(frozen=True, slots=True)
class Span:
    """Characters [start, end) of a document's text."""

    start: int
    end: int

    def of(self, text: str) -> str:
        return text[self.start : self.end]


class Edge(IntEnum):
    """What lies between two characters of a text."""

    #: Nothing may be cut here: a letter and its mark, two digits of a number.
    NONE = 0
    #: The inside of a word or of a number with a decimal sign: "red" in "Hundred", "shoe" in "shoes", "5" in "5.6".
    INSIDE = 1
    #: A word begins or ends.
    WORD = 2


class SourceText:
    """A document's text, to look values up in. Keeps what it works out, so one is made per document."""

    def __init__(self, text: str) -> None:
        self.text = text

    def find(self, value: str) -> Span | None:
        """The first place of `value` on one line, whole words before parts, its own writing before another form of it.

        A part may be cut out of a compound or an inflected word where both sides of the cut are letters and at least
        four of the value are on its side: "schuh" is in "Lederschuhe", "red" not in "Hundred". A number is never cut
        nor cut off a word, and neither is what holds one: "15 inch" is not in "15 inches", as "15 m" is not in "15 mm".

        None where it stands nowhere: edge blanks aside, every character counts.
        """
        return self.find_whole(value) or next((s for s in self._places(value) if self._is_part(s)), None)

    def find_whole(self, value: str) -> Span | None:
        """The first place of `value` as whole words on one line, its own writing before another form of it."""
        return next((s for s in self._places(value) if self._cuts(s) == (Edge.WORD, Edge.WORD)), None)

    def edge(self, i: int) -> Edge:
        """What lies between `text[i - 1]` and `text[i]`."""
        start = i
        while i < len(self.text) and self.text[i] in _LOOSE:
            i += 1
        if start == 0 or i == len(self.text):
            return Edge.WORD
        if extends(self.text[i]):
            return Edge.NONE
        before, after = self.text[self._base(i - 1)], self.text[i]
        if before.isdecimal() and after.isdecimal():
            return Edge.NONE
        if i in self._inside_numbers:
            return Edge.INSIDE
        if before.isdecimal() and after.isalpha():  # a number and its unit: "12" is in "12oz"
            return Edge.WORD
        if _is_wordy(before) and _is_wordy(after) and not (_NO_BLANKS.match(before) or _NO_BLANKS.match(after)):
            return Edge.INSIDE
        return Edge.WORD

    def _places(self, value: str) -> Iterator[Span]:
        """Every place of `value` that lies on one line, its own writing first."""
        value = strip(value)
        for places in (self.written, self._alike) if value else ():
            yield from (span for span in places(value) if is_one_line(span.of(self.text)))

    def _cuts(self, span: Span) -> tuple[Edge, Edge]:
        return self.edge(span.start), self.edge(span.end)

    def _is_part(self, span: Span) -> bool:
        piece, (first, last) = span.of(self.text), self._cuts(span)
        if Edge.NONE in (first, last) or any(character.isnumeric() for character in piece):
            return False
        before = first is Edge.WORD or (
            self.text[self._base(span.start - 1)].isalpha() and _letters(piece) >= _PART_LETTERS
        )
        after = self.text[span.end :].lstrip(_LOOSE)
        behind = last is Edge.WORD or (after[:1].isalpha() and _letters(piece[::-1]) >= _PART_LETTERS)
        return before and behind

    def written(self, value: str) -> Iterator[Span]:
        """Every place where these characters stand, words or not."""
        start = self.text.find(value)
        while start >= 0:
            yield Span(start, start + len(value))
            start = self.text.find(value, start + 1)

    def _alike(self, value: str) -> Iterator[Span]:
        form = NormalText.of(value).text.strip()
        start = self._normal.text.find(form) if form else -1
        while start >= 0:
            span = self._normal.span(start, start + len(form))
            if span is not None:
                piece = self.text[slice(*span)]
                bare = strip(piece)
                yield Span(begin := span[0] + piece.index(bare), begin + len(bare))
            start = self._normal.text.find(form, start + 1)

    def _base(self, i: int) -> int:
        """The character that the marks up to `i` belong to."""
        while i and extends(self.text[i]):
            i -= 1
        return i

    @cached_property
    def _normal(self) -> NormalText:
        return NormalText.of(self.text)

    @cached_property
    def _inside_numbers(self) -> frozenset[int]:
        return frozenset(i for m in _NUMBER.finditer(self.text) for i in range(m.start() + 1, m.end()))


def _letters(text: str) -> int:
    """Letters that `text` begins with; marks and what has no width do not count."""
    count = 0
    for character in text:
        if character.isalpha():
            count += 1
        elif not extends(character):
            break
    return count


def _is_wordy(character: str) -> bool:
    return character.isalnum() or character == "_"
