"""Text as people compare it: blanks, quotes, null markers, and forms of writing that count as one.

The one home of these rules: typing of values, closed lists and the search for a value in its document all go by them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

#: Texts that a model writes for "this product does not say", in their comparable form. Compared whole: a product
#: really called "Nullarbor" or a colour "None Black" is a value.
NULL_MARKERS = frozenset(
    {"", "n/a", "na", "none", "null", "not specified", "not available", "not applicable", "not mentioned"}
    | {"not provided", "not stated", "unknown", "-", "--", "---"}
)

#: Characters without width: soft hyphen, zero-width blanks and joiners, direction marks, byte-order mark.
INVISIBLE = "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
#: Characters that end a line, those of `str.splitlines`. A value stands on one line.
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_QUOTES = {'"': '"', "'": "'", "“": "”", "‘": "’", "«": "»", "`": "`", "„": "“", "「": "」", "『": "』"}
_ONE_FORM = str.maketrans(
    dict.fromkeys("‘’‚‛′＇`´", "'")
    | dict.fromkeys("“”„‟″＂«»", '"')
    | dict.fromkeys("‐‑‒–—―−﹘﹣－", "-")
    | {"×": "x"}
    | dict.fromkeys(INVISIBLE)
)


def strip(text: str) -> str:
    """`text` without blanks and characters of no width at its edges."""
    while text != (bare := text.strip().strip(INVISIBLE)):
        text = bare
    return text


def unquote(text: str) -> str:
    """`text` without edge blanks and without one pair of quotes that encloses it whole; inner quotes stay."""
    text = strip(text)
    if len(text) >= 2 and _QUOTES.get(text[0]) == text[-1] and text[0] not in text[1:-1] and text[-1] not in text[1:-1]:
        text = strip(text[1:-1])
    return text


def is_null(text: str) -> bool:
    """Whether `text` is a null marker once edge blanks, one pair of quotes and full stops at the end are off."""
    return comparable(unquote(text.rstrip(". "))).rstrip(". ") in NULL_MARKERS


def comparable(text: str) -> str:
    """The form under which two texts are the same value: see `NormalText`; without edge blanks."""
    return NormalText.of(text).text.strip()


def is_one_line(text: str) -> bool:
    """Whether no character of `text` ends a line."""
    return not any(end in text for end in LINE_ENDS)


def clusters(text: str) -> Iterator[tuple[int, int]]:
    """[start, end) of each character as people see it: with the marks, joiners and jamo that belong to it."""
    start = 0
    for i in range(1, len(text)):
        if not extends(text[i]):
            yield start, i
            start = i
    if text:
        yield start, len(text)


def extends(character: str) -> bool:
    """Whether `character` belongs to the one before it: no text may be cut between the two."""
    if character < "\u0300" and character != "\u00ad":
        return False
    # Hangul vowels and final consonants (jamo), which follow a consonant where a syllable is written in parts
    is_jamo = "\u1160" <= character <= "\u11ff"
    return is_jamo or character in INVISIBLE or unicodedata.category(character) in ("Mn", "Mc", "Me")


@dataclass(frozen=True, slots=True)
class NormalText:
    """A text in its comparable form, every character of which knows where it comes from.

    The form is compatibility-decomposed (NFKD) and case-folded, with one kind of quotes and hyphens, '×' as 'x',
    nothing of no width, and one blank for each run of blanks, line ends and no-break blanks included. It is made
    cluster by cluster, so that offsets lead back.

    starts, ends: [len(text)] character offsets in the original of the cluster that a character of `text` stems from.
    """

    text: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]

    @classmethod
    def of(cls, original: str) -> NormalText:
        form: list[str] = []
        starts: list[int] = []
        ends: list[int] = []
        for start, end in clusters(original):
            if original[start].isspace():
                if form and form[-1] == " ":
                    ends[-1] = end
                    continue
                folded = " "
            else:
                folded = _fold(original[start:end])
            form += folded
            starts += [start] * len(folded)
            ends += [end] * len(folded)
        return cls("".join(form), tuple(starts), tuple(ends))

    def span(self, start: int, end: int) -> tuple[int, int] | None:
        """[start, end) in the original of `text[start:end]`, not empty; None where its edges cut a cluster."""
        if start and self.starts[start - 1] == self.starts[start]:
            return None
        if end < len(self.text) and self.starts[end] == self.starts[end - 1]:
            return None
        return self.starts[start], self.ends[end - 1]


def _fold(cluster: str) -> str:
    if cluster.isascii():
        return cluster.translate(_ONE_FORM).casefold()
    folded = unicodedata.normalize("NFKD", cluster.translate(_ONE_FORM)).casefold()
    return unicodedata.normalize("NFKD", folded).translate(_ONE_FORM)
