"""Lengths -> position id and stub of every token, and where each slot grows. Ints only; no tensors.

Positions: the shared prefix has 0..P-1, every document restarts at P. Memory order of a document is
`[document][stub 1] … [stub N]` in both layouts; value tokens are appended behind it as they are decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpd_core.settings import Layout

#: Stub number of tokens that belong to no stub: prefix and document.
NO_STUB = -1


@dataclass(frozen=True, slots=True)
class DocumentLayout:
    """Layout of one prompt behind its prefix.

    positions: [D + S] position id of every document and stub token, in memory order.
    stubs: [D + S] stub number of every token, NO_STUB in the document.
    reaches: [D + S] the furthest position that every token sees: its own, or the last one of its block of the document.
    ends: [N] row (in memory order) of each stub's last token, whose logits give the slot's first value token.
    """

    positions: tuple[int, ...]
    stubs: tuple[int, ...]
    reaches: tuple[int, ...]
    ends: tuple[int, ...]

    def value_position(self, slot: int, k: int) -> int:
        """Position id of the k-th value token (k = 1, 2, …) of `slot`."""
        return self.positions[self.ends[slot]] + k

    def chunk_end(self, start: int, most: int) -> int:
        """Where a chunk of at most `most` rows from `start` on ends, so that no block of the document is split: each of
        its tokens needs the others of its block beside it, layer by layer. A block that is longer is a chunk."""
        stop = min(len(self.positions), start + most)
        whole = stop
        while whole > start and self._splits(whole):
            whole -= 1
        if whole > start:
            return whole
        while self._splits(stop):
            stop += 1
        return stop

    def _splits(self, row: int) -> bool:
        """Whether a block goes on from the row before `row` to it."""
        return self.reaches[row - 1] > self.positions[row - 1]


def place(
    layout: Layout,
    prefix_length: int,
    document_length: int,
    stub_lengths: Sequence[int],
    max_value_tokens: int,
    document_block: int = 1,
) -> DocumentLayout:
    """Places one prompt.

    `gaps`: stub n ends at e_n, its value takes e_n + 1 … e_n + K_max, stub n+1 starts at e_n + K_max + 1.
    `branches`: every stub starts at P + D.
    The document's tokens see each other in blocks of `document_block`, counted from its first one.
    """
    if any(length < 1 for length in stub_lengths):
        raise ValueError(f"stub lengths {list(stub_lengths)}: every stub needs a token")
    positions = list(range(prefix_length, prefix_length + document_length))
    stubs = [NO_STUB] * document_length
    last = document_length - 1
    reaches = [prefix_length + min(n - n % document_block + document_block - 1, last) for n in range(document_length)]
    ends = []
    start = prefix_length + document_length
    for number, length in enumerate(stub_lengths):
        positions.extend(range(start, start + length))
        stubs.extend([number] * length)
        ends.append(len(positions) - 1)
        if layout is Layout.GAPS:
            start += length + max_value_tokens
    reaches += positions[document_length:]
    return DocumentLayout(tuple(positions), tuple(stubs), tuple(reaches), tuple(ends))


def tail(layout: Layout, stub_lengths: Sequence[int], max_value_tokens: int) -> int:
    """Positions that stubs and values take behind the document."""
    if layout is Layout.GAPS:
        return sum(stub_lengths) + len(stub_lengths) * max_value_tokens
    return max(stub_lengths) + max_value_tokens
