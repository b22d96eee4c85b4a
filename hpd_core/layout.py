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
    ends: [N] row (in memory order) of each stub's last token, whose logits give the slot's first value token.
    """

    positions: tuple[int, ...]
    stubs: tuple[int, ...]
    ends: tuple[int, ...]

    def value_position(self, slot: int, k: int) -> int:
        """Position id of the k-th value token (k = 1, 2, …) of `slot`."""
        return self.positions[self.ends[slot]] + k


def place(
    layout: Layout, prefix_length: int, document_length: int, stub_lengths: Sequence[int], max_value_tokens: int
) -> DocumentLayout:
    """Places one prompt.

    `gaps`: stub n ends at e_n, its value takes e_n + 1 … e_n + K_max, stub n+1 starts at e_n + K_max + 1.
    `branches`: every stub starts at P + D.
    """
    if any(length < 1 for length in stub_lengths):
        raise ValueError(f"stub lengths {list(stub_lengths)}: every stub needs a token")
    positions = list(range(prefix_length, prefix_length + document_length))
    stubs = [NO_STUB] * document_length
    ends = []
    start = prefix_length + document_length
    for number, length in enumerate(stub_lengths):
        positions.extend(range(start, start + length))
        stubs.extend([number] * length)
        ends.append(len(positions) - 1)
        if layout is Layout.GAPS:
            start += length + max_value_tokens
    return DocumentLayout(tuple(positions), tuple(stubs), tuple(ends))


def tail(layout: Layout, stub_lengths: Sequence[int], max_value_tokens: int) -> int:
    """Positions that stubs and values take behind the document."""
    if layout is Layout.GAPS:
        return sum(stub_lengths) + len(stub_lengths) * max_value_tokens
    return max(stub_lengths) + max_value_tokens
