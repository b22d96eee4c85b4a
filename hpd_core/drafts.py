"""Prompt lookup: what a value may go on with, guessed from its own document (Saxena 2023; LLMA, arXiv 2304.04487).

A value is mostly a copy: where its last ids stand in the document, the ids behind them there are its likely next ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence


class Lookup:
    """A document's ids, to look up what follows in them. Made once per document."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = ids
        self._places: defaultdict[int, list[int]] = defaultdict(list)
        for place, i in enumerate(ids):
            self._places[i].append(place)

    def after(self, written: Sequence[int], most: int) -> Sequence[int]:
        """At most `most` ids that follow the longest end of `written` that stands in the document, at its first place;
        none where not even its last id does."""
        places = self._places.get(written[-1], ()) if written else ()
        best = max(places, key=lambda place: self._agreement(written, place), default=-2)
        return self._ids[best + 1 : best + 1 + most] if best >= 0 else ()

    def _agreement(self, written: Sequence[int], place: int) -> int:
        """How many last ids of `written` stand in the document up to `place`."""
        count = 0
        while count < min(len(written), place + 1) and written[-1 - count] == self._ids[place - count]:
            count += 1
        return count
