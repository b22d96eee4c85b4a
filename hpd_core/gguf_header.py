"""The header of a GGUF file: how many numbers it holds, and whether all of it is there. Read in tenths of a second: no
token is decoded, where the gguf package makes objects of every one, for seconds. The sizes of its quantised blocks are
that package's.

The layout is that of the GGUF specification (ggml/docs/gguf.md), versions 2 and 3: magic, version, counts of tensors
and of key-value pairs, these pairs, then name, shape, type and offset of each tensor, then their data, aligned.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpd_core.checkpoint import ModelNotFoundError, refuse_pointer

_STRING, _ARRAY = 8, 9
#: struct's letters for GGUF's types of values; those that are missing are strings and arrays.
_LETTERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_LENGTH = struct.Struct("<Q")  # of a string, before its bytes
_ALIGNMENT = "general.alignment"


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """parameters: numbers in all tensors. architecture: as the file names it. facts: its metadata, with None in place
    of arrays. tensors: their names."""

    parameters: int
    architecture: str
    facts: Mapping[str, Any]
    tensors: tuple[str, ...]


def read_header(file: Path) -> GgufHeader:
    """Raises ModelNotFoundError naming `file` where it is no GGUF file, or not all of one."""
    size = file.stat().st_size
    with file.open("rb") as f:
        start = f.read(8)
        refuse_pointer(file, start)
        if start[:4] != b"GGUF":
            raise ModelNotFoundError(f"{file}: no GGUF file: it begins with {start[:4]!r}")
        with mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                parameters, end, facts, tensors = _read(_Cursor(content))
            except (struct.error, KeyError, ValueError, IndexError, OverflowError) as error:
                raise ModelNotFoundError(
                    f"{file} is cut short, or no GGUF file that can be read: {type(error).__name__}: {error}"
                ) from error
    if end > size:
        raise ModelNotFoundError(f"{file} is cut short: {size:,} of {end:,} bytes are there")
    return GgufHeader(parameters, str(facts.get("general.architecture", "")), facts, tensors)


class _Cursor:
    def __init__(self, content: mmap.mmap) -> None:
        self.content, self.at = content, 4

    def number(self, letter: str) -> Any:
        (value,) = struct.unpack_from("<" + letter, self.content, self.at)
        self.at += struct.calcsize(letter)
        return value

    def text(self) -> str:
        length = self.number("Q")
        self.at += length
        return self.content[self.at - length : self.at].decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """One value; None in place of an array, which is passed over."""
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            return self.number(_LETTERS[kind])
        inner, length = self.number("I"), self.number("Q")
        if inner in _LETTERS:
            self.at += length * struct.calcsize(_LETTERS[inner])
        elif inner == _STRING:  # a whole vocabulary, or its merges
            for _ in range(length):
                self.at += 8 + _LENGTH.unpack_from(self.content, self.at)[0]
        else:
            for _ in range(length):
                self.value(inner)
        return None


def _read(cursor: _Cursor) -> tuple[int, int, dict[str, Any], tuple[str, ...]]:
    """(numbers, bytes that the whole file has, facts, names of tensors)."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    version = cursor.number("I")
    if version not in (2, 3):
        raise ValueError(f"version {version}, and versions 2 and 3 are read")
    count, pairs = cursor.number("Q"), cursor.number("Q")
    facts = {}
    for _ in range(pairs):
        name = cursor.text()
        facts[name] = cursor.value(cursor.number("I"))
    parameters = end = 0
    names = []
    for _ in range(count):
        names.append(cursor.text())
        shape = [cursor.number("Q") for _ in range(cursor.number("I"))]
        kind, offset = GGMLQuantizationType(cursor.number("I")), cursor.number("Q")
        together, size = GGML_QUANT_SIZES[kind]
        parameters += math.prod(shape)
        end = max(end, offset + math.prod(shape) // together * size)
    aligned = int(facts.get(_ALIGNMENT) or 32)
    return parameters, -(-cursor.at // aligned) * aligned + end, facts, tuple(names)
