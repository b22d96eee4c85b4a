"""Layout and mask of a small prompt as SVG, for people: what `layout.place` gives out and `mask.visible` shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from xml.sax.saxutils import escape

import torch

from hpd_core.layout import NO_STUB, place
from hpd_core.mask import PREFIX, Tokens, visible
from hpd_core.settings import Layout, Visibility

_COLORS = ("#bfdbfe", "#fde68a", "#bbf7d0", "#fecaca", "#ddd6fe")
_PREFIX, _DOCUMENT, _LINE = "#e5e7eb", "#f3f4f6", "#9ca3af"
_CELL, _TEXT = 22, 11


@dataclass(frozen=True, slots=True)
class PlacedToken:
    """One token in memory. stub: NO_STUB for prefix and document. value_index: k of a k-th value token, else 0.
    ahead: how many positions beyond its own it sees."""

    text: str
    document: int
    stub: int
    position: int
    value_index: int = 0
    ahead: int = 0

    @property
    def color(self) -> str:
        if self.stub == NO_STUB:
            return _PREFIX if self.document == PREFIX else _DOCUMENT
        return _COLORS[self.stub % len(_COLORS)]


@dataclass(frozen=True, slots=True)
class Asked:
    """A document's tokens as words. stubs, values: one list per attribute; a value without its terminator."""

    document: Sequence[str]
    stubs: Sequence[Sequence[str]]
    values: Sequence[Sequence[str]]


def memory(
    layout: Layout, prefix: Sequence[str], asked: Sequence[Asked], max_value_tokens: int, document_block: int = 1
) -> list[PlacedToken]:
    """All tokens in memory order: the shared prefix, each document with its stubs, then step by step the value tokens
    of all slots."""
    cells = [PlacedToken(text, PREFIX, NO_STUB, position) for position, text in enumerate(prefix)]
    steps: list[list[PlacedToken]] = []
    for number, one in enumerate(asked):
        lengths = [len(stub) for stub in one.stubs]
        placed = place(layout, len(prefix), len(one.document), lengths, max_value_tokens, document_block)
        words = [*one.document, *(word for stub in one.stubs for word in stub)]
        cells += [
            PlacedToken(word, number, stub, position, ahead=reach - position)
            for word, stub, position, reach in zip(words, placed.stubs, placed.positions, placed.reaches, strict=True)
        ]
        for slot, value in enumerate(one.values):
            steps.append(
                [PlacedToken(w, number, slot, placed.value_position(slot, k), k) for k, w in enumerate(value, 1)]
            )
    return cells + [cell for step in zip_longest(*steps) for cell in step if cell is not None]


def tokens(cells: Sequence[PlacedToken]) -> Tokens:
    """[T] facts of the cells, as the mask takes them."""
    facts = [(c.document, c.stub, c.position, c.value_index, c.position + c.ahead) for c in cells]
    return Tokens(*torch.tensor(facts, dtype=torch.int64).reshape(-1, 5).unbind(-1))


def draw_layout(cells: Sequence[PlacedToken]) -> str:
    """One line per document and stub, each token at its position id."""
    lanes = {lane: y for y, lane in enumerate(dict.fromkeys((c.document, c.stub) for c in cells))}
    width = 1 + max((c.position for c in cells), default=0)
    column = 10 + 7 * max((len(c.text) for c in cells), default=1)
    parts = [_words(column * position + column // 2, 12, str(position), "middle") for position in range(width)]
    for cell in cells:
        x, y = column * cell.position, _CELL * (lanes[cell.document, cell.stub] + 1)
        parts.append(_box(x, y, column, _CELL, cell.color, f"position {cell.position}"))
        parts.append(_words(x + column // 2, y + 15, cell.text, "middle"))
    return _svg(column * width, _CELL * (len(lanes) + 1), parts)


def draw_mask(cells: Sequence[PlacedToken], layout: Layout, visibility: Visibility = Visibility.ISOLATED) -> str:
    """A row per token that asks, a column per token in memory; filled, in the colour of the key, where it is seen."""
    facts = tokens(cells)
    sees = visible(facts, facts, layout, visibility).tolist()
    margin = 10 + 7 * max((len(c.text) for c in cells), default=1)
    parts = []
    for i, query in enumerate(cells):
        y = margin + _CELL * i
        parts.append(_words(margin - 4, y + 15, query.text, "end"))
        parts.append(
            f'<text transform="translate({margin + _CELL * i + 15},{margin - 4}) rotate(-90)" font-size="{_TEXT}">'
            f"{escape(query.text)}</text>"
        )
        for j, key in enumerate(cells):
            color = key.color if sees[i][j] else "none"
            title = f"{query.text} {'sees' if sees[i][j] else 'does not see'} {key.text}"
            parts.append(_box(margin + _CELL * j, y, _CELL, _CELL, color, title))
    return _svg(margin + _CELL * len(cells), margin + _CELL * len(cells), parts)


def _box(x: int, y: int, width: int, height: int, color: str, title: str) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{color}" stroke="{_LINE}" stroke-width="0.5">'
        f"<title>{escape(title)}</title></rect>"
    )


def _words(x: int, y: int, text: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y}" font-size="{_TEXT}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(width: int, height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 1}" height="{height + 1}" '
        f'font-family="monospace" style="background:white">{"".join(parts)}</svg>'
    )
