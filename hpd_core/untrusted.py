"""Text of a document -> token ids in which nothing acts as a control token of the prompt."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Any


class UntrustedText:
    """inner: markers that are not "special" to the tokenizer and mean something to the template; special ones are split
    by the tokenizer itself."""

    def __init__(self, tokenizer: Any, inner: Iterable[str]) -> None:
        self._tokenizer = tokenizer
        markers = sorted(inner, reverse=True)
        self._markers = re.compile("|".join(map(re.escape, markers))) if markers else None

    def encode(self, text: str, budget: int) -> tuple[list[int], str]:
        """Ids of all of `text` or of a beginning of it that has more than `budget`; what they are the ids of.

        A megabyte of text costs seconds to encode and is cut to a few thousand tokens: encode a part that is surely
        long enough, and more of it only where it was not.
        """
        size = 16 * budget
        while True:
            part = text[:size]
            ids = [i for piece in self._pieces(part) for i in self._encoded(piece).input_ids]
            if len(part) == len(text) or len(ids) > budget:
                return ids, part
            size *= 4

    def beginning(self, text: str, budget: int) -> str:
        """The characters of `text` that its first `budget` ids stand for; it has more ids than that."""
        end = 0
        for piece in self._pieces(text):
            encoding = self._encoded(piece, return_offsets_mapping=True)
            if len(encoding.input_ids) >= budget:
                return text[: end + encoding.offset_mapping[budget - 1][1]]
            end, budget = end + len(piece), budget - len(encoding.input_ids)
        return text

    def _encoded(self, piece: str, **options: Any) -> Any:
        return self._tokenizer(piece, add_special_tokens=False, split_special_tokens=True, **options)

    def _pieces(self, text: str) -> list[str]:
        """`text` cut behind the first character of every marker."""
        edges = [0, *(m.start() + 1 for m in self._markers.finditer(text)), len(text)] if self._markers else []
        return [text[a:b] for a, b in itertools.pairwise(edges)] or [text]
