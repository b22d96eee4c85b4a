"""Which ids may come next, so that a value is copied: a pure function of the document's text and the ids so far.

A value that may be written is: one blank or none, then a span of the document on one line from the beginning of a word
to the end of one, or the word for absent. Several values are several spans with the separator between. Everything is
matched byte by byte, so it does not matter how a tokenizer cuts words, blanks or characters.

Allowed texts are the paths through a line of bytes: the document, then the fixed texts, each with its own way on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Protocol

from hpd_core.grounding import Edge, SourceText
from hpd_core.normal import INVISIBLE, LINE_ENDS
from hpd_core.reading import is_copied
from hpd_core.schema import SEPARATOR, Schema
from hpd_core.vocabulary import Vocabulary

_NOTHING = -1  # no byte: the end of a text, or what no value may hold


class Allowed(Protocol):
    """Ids of a value so far -> the ids that may come next, ascending.

    may_force: whether an id that is the only one allowed counts as forced: its log-probability is 0, and no forward
        pass is made for it where slots need not stay in step.
    """

    may_force: ClassVar[bool]

    def __call__(self, ids: Sequence[int], /) -> tuple[int, ...]: ...


def constraints(vocabulary: Vocabulary, text: str, schema: Schema, absent: str) -> tuple[Allowed | None, ...]:
    """One constraint per attribute, shared by those that may say the same; None for a boolean, which is judged.

    An open value is a copy of `text`, a closed one is one of its list.
    """
    source = SourceText(text)
    made: dict[tuple[tuple[str, ...], bool], CopyConstraint] = {}
    for attribute in schema:
        key = (attribute.values, attribute.many)
        if key not in made and (attribute.values or is_copied(attribute)):
            where = None if attribute.values else source
            made[key] = CopyConstraint(vocabulary, where, values=attribute.values, absent=absent, many=attribute.many)
    return tuple(made.get((a.values, a.many)) if a.values or is_copied(a) else None for a in schema)


class CopyConstraint:
    """The ids that keep a value a copy. Remembers what it worked out, so one is shared by the slots of a document.

    source: the document; None where the value is one of `values`. values: fixed texts that are values. absent: the text
    for "the document does not say"; "" where the bare terminator says it. many: several values may be written.

    A place is the index of the byte that comes next. One where a value has not begun yet is written ~index: a word's
    beginning may be another one's end, and no value is empty.
    """

    #: One way on is rare among bytes: the model is asked always, and its log-probability is that of a free choice.
    may_force: ClassVar[bool] = False

    def __init__(
        self,
        vocabulary: Vocabulary,
        source: SourceText | None,
        *,
        values: Sequence[str] = (),
        absent: str = "",
        many: bool = False,
    ) -> None:
        self._vocabulary = vocabulary
        self._line: list[int] = []
        starts, self._ends = self._lay_document(source, many) if source else (set[int](), set[int]())
        for value in values:
            first, last = self._lay(value)
            starts.add(~first)
            self._ends.add(last)
        nothing, no_value = self._lay(absent)
        self._whole = self._ends | {no_value}
        #: {place: the places that are reached with it}
        self._ways: dict[int, frozenset[int]] = {}
        blank, after_blank = self._lay(" ")
        fresh = frozenset(starts) | {nothing}
        self._ways[after_blank] = fresh
        if many:
            separator, after_separator = self._lay(SEPARATOR + " ")
            self._ways |= dict.fromkeys(self._ends, frozenset({separator}))
            self._ways |= dict.fromkeys((after_separator - 1, after_separator), frozenset(starts))
        self._places: dict[bytes, frozenset[int]] = {b"": fresh | {blank}}
        self._allowed: dict[bytes, tuple[int, ...]] = {}

    def __call__(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Ids that may follow `ids`, ascending; the terminators where no id can go on, which leaves no copy."""
        written = self._vocabulary.write(ids)
        if written not in self._allowed:
            places = self._reached(written)
            found = [i for head, ends in self._vocabulary.ends.items() if self._is_whole(places, head) for i in ends]
            self._collect(places, b"", found)
            stuck = found or [i for ends in self._vocabulary.ends.values() for i in ends]
            self._allowed[written] = tuple(sorted(stuck))
        return self._allowed[written]

    def _lay(self, text: str) -> tuple[int, int]:
        """Appends a fixed text to the line; the places before and behind it."""
        first = len(self._line)
        self._line += [*text.encode(), _NOTHING]
        return first, len(self._line) - 1

    def _lay_document(self, source: SourceText, many: bool) -> tuple[set[int], set[int]]:
        """Appends the document; the places where a span begins (~index) and those where one may end."""
        text, barriers = source.text, LINE_ENDS + SEPARATOR * many
        word = [source.edge(i) is Edge.WORD for i in range(len(text) + 1)]
        ends_before = [word[i] and i > 0 and not text[i - 1].isspace() for i in range(len(text) + 1)]
        leads_on = [False] * (len(text) + 1)  # whether a span may hold this character: not the blanks of a line's end
        for i in reversed(range(len(text))):
            leads_on[i] = text[i] not in barriers and (ends_before[i + 1] or leads_on[i + 1])
        starts, ends = set(), set()
        for i, character in enumerate((*text, "")):
            here = len(self._line)
            if word[i] and leads_on[i] and not character.isspace() and character not in INVISIBLE:
                starts.add(~here)
            if ends_before[i]:
                ends.add(here)
            self._line += character.encode("utf-8", "surrogatepass") if leads_on[i] else [_NOTHING]
        return starts, ends

    def _reached(self, written: bytes) -> frozenset[int]:
        if written not in self._places:
            self._places[written] = self._step(self._reached(written[:-1]), written[-1])
        return self._places[written]

    def _step(self, places: Iterable[int], byte: int) -> frozenset[int]:
        return self._with_ways({i + 1 for i in _indices(places) if self._line[i] == byte})

    def _with_ways(self, places: set[int]) -> frozenset[int]:
        return frozenset(places.union(*(self._ways[i] for i in places if i in self._ways)))

    def _is_whole(self, places: frozenset[int], head: bytes) -> bool:
        for byte in head:
            places = self._step(places, byte)
        return not self._whole.isdisjoint(places)

    def _collect(self, places: frozenset[int], prefix: bytes, found: list[int]) -> None:
        """Adds the ids that go on from `places` and begin with `prefix`, which led there."""
        following: dict[int, set[int]] = {}
        for i in _indices(places):
            following.setdefault(self._line[i], set()).add(i + 1)
        following.pop(_NOTHING, None)
        for byte, reached in following.items():
            word = prefix + bytes((byte,))
            if word in self._vocabulary.beginnings:
                found += self._vocabulary.ids.get(word, ())
                self._collect(self._with_ways(reached), word, found)


def _indices(places: Iterable[int]) -> Iterable[int]:
    return (i if i >= 0 else ~i for i in places)
