"""What each token id writes, in bytes: an id may hold part of a character, and a word may begin inside one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class VocabularyError(ValueError):
    """A tokenizer whose ids do not each write a text of their own."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """ids: {bytes: the ids that write them}, those that end a value left out.

    ends: {bytes: the ids that write them and then end the value}; b"" for the bare terminator and every eos id.
    texts: bytes of every id, those of `ends` without what ends the value; None for an id that writes nothing.
    beginnings: what any of `ids` begins with, whole ones included.
    """

    texts: tuple[bytes | None, ...]
    ids: dict[bytes, tuple[int, ...]]
    ends: dict[bytes, tuple[int, ...]]
    beginnings: frozenset[bytes]

    @classmethod
    def of(cls, texts: Sequence[bytes | None], stop_ids: Iterable[int]) -> Vocabulary:
        """texts: what each id writes whole, None or b"" where nothing. stop_ids: those that end a value."""
        stops = frozenset(stop_ids)
        heads = {i: (texts[i] or b"").partition(b"\n")[0] for i in stops if i < len(texts)}
        own = tuple(heads.get(i, text or None) for i, text in enumerate(texts))
        ids = _grouped((text, i) for i, text in enumerate(own) if text and i not in stops)
        ends = _grouped((heads.get(i, b""), i) for i in sorted(stops))
        return cls(own, ids, ends, frozenset(text[:n] for text in ids for n in range(1, len(text) + 1)))

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, stop_ids: frozenset[int], eos_ids: frozenset[int]) -> Vocabulary:
        """Raises VocabularyError for a tokenizer that is neither byte-level nor SentencePiece-like."""
        texts = list(_token_bytes(tokenizer))
        for i in eos_ids:
            if i < len(texts):
                texts[i] = None
        return cls.of(texts, stop_ids)

    def write(self, ids: Sequence[int]) -> bytes:
        return b"".join(self.texts[i] or b"" for i in ids if i < len(self.texts))


def _grouped(pairs: Iterable[tuple[bytes, int]]) -> dict[bytes, tuple[int, ...]]:
    groups: dict[bytes, list[int]] = {}
    for text, i in pairs:
        groups.setdefault(text, []).append(i)
    return {text: tuple(ids) for text, ids in groups.items()}


def _token_bytes(tokenizer: Any) -> Iterator[bytes | None]:
    """What each id of a fast tokenizer adds to the text, control tokens aside."""
    decoder = json.dumps(json.loads(tokenizer.backend_tokenizer.to_str())["decoder"], ensure_ascii=False)
    added = tokenizer.added_tokens_decoder
    special = set(tokenizer.all_special_ids)
    letters = {letter: byte for byte, letter in enumerate(_byte_letters())}
    is_byte_level, is_pieces = '"ByteLevel"' in decoder, "▁" in decoder
    if not (is_byte_level or is_pieces):
        raise VocabularyError("the tokenizer is neither byte-level nor SentencePiece-like: its ids have no text alone")
    for i, piece in enumerate(tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))):
        if piece is None or i in special or (i in added and added[i].special):
            yield None
        elif i in added:
            yield str(added[i].content).encode()
        elif is_byte_level:
            yield bytes(letters[letter] for letter in piece) if all(c in letters for c in piece) else None
        elif match := _BYTE.fullmatch(piece):
            yield bytes.fromhex(match.group(1))
        else:
            yield str(piece).replace("▁", " ").encode()


def _byte_letters() -> list[str]:
    """The letter that byte-level vocabularies write for each byte: itself where it can be seen, else one above 255."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = iter(range(256, 512))
    return [chr(byte) if byte in shown else chr(next(hidden)) for byte in range(256)]
