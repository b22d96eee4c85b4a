"""Ids of keys and values, cut by character offsets out of the line `name: value` that they stand on.

SentencePiece puts a space before an isolated piece and byte-level vocabularies merge across blanks, so that ids of a
text alone are not those that a model reads and writes.
"""

from __future__ import annotations

from typing import Any

from hpd_core.schema import Attribute

_LINE = "x\n"  # a line before a key, so that it is encoded as the start of a line


class PromptError(ValueError):
    """A prompt that cannot be built: template, tokenizer and schema do not fit, or the context is too small."""


class LineEncoder:
    """A tokenizer as it encodes parts of one line."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def key(self, attribute: Attribute) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """A whole key as the first line, and as a later one (with the newline that ends the value before it)."""
        line = f"{_LINE}{attribute.name}: x"
        what, end = f"key {attribute.name!r}", len(line) - 2
        return self._cut(line, 2, end, what), self._cut(line, 1, end, what)

    def value(self, attribute: Attribute, text: str, before: str = "", after: str = "") -> tuple[int, ...]:
        """`text`, leading blank and terminator included, between `before` and `after` behind the attribute's ':'."""
        start = f"{_LINE}{attribute.name}:{before}"
        what = f"value {text.strip()!r} of {attribute.name!r}"
        return self._cut(start + text + after, len(start), len(start + text), what)

    @property
    def newline_id(self) -> int:
        """Id of the bare terminator."""
        return self._cut(_LINE, 1, 2, "newline")[-1]

    def _cut(self, text: str, start: int, end: int, what: str) -> tuple[int, ...]:
        """Ids of `text[start:end]` as encoded inside `text`."""
        encoding = self._tokenizer(
            text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True
        )
        ids: list[int] = []
        covered = start
        for token, (begin, stop) in zip(encoding.input_ids, encoding.offset_mapping, strict=True):
            if stop <= start or begin >= end:
                continue
            if begin < start or stop > end:
                raise PromptError(f"{what}: the tokenizer merges its edge with the text around it")
            ids.append(token)
            covered = stop
        if covered != end:
            raise PromptError(f"{what}: the tokenizer does not cover it")
        return tuple(ids)
