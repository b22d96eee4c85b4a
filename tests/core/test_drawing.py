"""Drawings say what layout and mask say."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from hpd_core.drawing import Asked, PlacedToken, draw_layout, draw_mask, memory, tokens
from hpd_core.layout import NO_STUB
from hpd_core.mask import PREFIX, visible
from hpd_core.settings import Layout, Visibility

SVG = "{http://www.w3.org/2000/svg}"
TWO = [
    Asked(["red", "shoe"], [["Brand", ":"], ["Color", ":"]], [[], ["red"]]),
    Asked(["A<B", "boot", "9"], [["Brand", ":"], ["Size", ":"]], [["A", "B"], ["9"]]),
]


def test_value_tokens_lie_behind_everything_step_by_step_at_the_positions_of_their_slot() -> None:
    cells = memory(Layout.GAPS, ["ask"], TWO, max_value_tokens=3)
    assert [(c.text, c.document, c.position, c.value_index) for c in cells[-4:]] == [
        ("red", 0, 10, 1),  # behind 1 + 2 + 2 + 3 + 2 positions
        ("A", 1, 6, 1),
        ("9", 1, 11, 1),
        ("B", 1, 7, 2),
    ]
    assert cells[0] == PlacedToken("ask", PREFIX, NO_STUB, 0) and cells[1].position == 1
    branches = memory(Layout.BRANCHES, ["ask"], TWO, max_value_tokens=3)
    assert [c.position for c in branches[-4:]] == [5, 6, 6, 7]


@pytest.mark.parametrize("layout", list(Layout))
def test_as_many_cells_are_filled_as_are_visible(layout: Layout) -> None:
    cells = memory(layout, ["ask"], TWO, max_value_tokens=3)
    boxes = ElementTree.fromstring(draw_mask(cells, layout)).findall(f"{SVG}rect")
    facts = tokens(cells)
    seen = visible(facts, facts, layout, Visibility.ISOLATED)
    assert len(boxes) == len(cells) ** 2
    assert sum(box.get("fill") != "none" for box in boxes) == int(seen.sum())
    titles = [box.findtext(f"{SVG}title") for box in boxes]
    assert {"B sees A", "A sees boot", "boot does not see shoe", "A does not see Size", "A does not see red"} <= {
        *titles
    }
    assert ("9 sees Brand" in titles) == (layout is Layout.GAPS)


def test_every_token_is_drawn_at_its_position() -> None:
    cells = memory(Layout.GAPS, ["ask"], TWO, max_value_tokens=3)
    drawn = ElementTree.fromstring(draw_layout(cells))
    assert [box.findtext(f"{SVG}title") for box in drawn.findall(f"{SVG}rect")] == [
        f"position {cell.position}" for cell in cells
    ]
    assert "A<B" in [text.text for text in drawn.findall(f"{SVG}text")]
    assert draw_layout([]) and draw_mask([], Layout.GAPS)  # nothing is something to draw
