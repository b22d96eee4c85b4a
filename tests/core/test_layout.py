from __future__ import annotations

import pytest

from hpd_core.layout import NO_STUB, place, tail
from hpd_core.settings import Layout


def test_gaps_by_hand():
    """P = 3, D = 2, stubs of 1 and 2 tokens, K_max = 4: the value of stub 1 takes 6..9, stub 2 starts at 5 + 4 + 1."""
    layout = place(Layout.GAPS, 3, 2, [1, 2], 4)
    assert layout.positions == (3, 4, 5, 10, 11)
    assert layout.stubs == (NO_STUB, NO_STUB, 0, 1, 1)
    assert layout.ends == (2, 4)
    assert [layout.value_position(0, k) for k in (1, 4)] == [6, 9]
    assert layout.value_position(1, 1) == 12


def test_branches_by_hand():
    layout = place(Layout.BRANCHES, 3, 2, [1, 2], 4)
    assert layout.positions == (3, 4, 5, 5, 6)
    assert [layout.value_position(n, 1) for n in (0, 1)] == [6, 7]


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("lengths", [[1], [3, 1, 2], [5] * 12])
def test_the_tail_is_what_the_layout_takes(layout, lengths):
    prefix, document, k_max = 7, 11, 6
    placed = place(layout, prefix, document, lengths, k_max)
    last = max(placed.value_position(n, k_max) for n in range(len(lengths)))
    assert last + 1 == prefix + document + tail(layout, lengths, k_max)


def test_gaps_never_overlap():
    placed = place(Layout.GAPS, 0, 5, [2, 1, 4, 3], 6)
    taken = list(placed.positions) + [placed.value_position(n, k) for n in range(4) for k in range(1, 7)]
    assert len(set(taken)) == len(taken)


def test_blocks_by_hand():
    """P = 3, D = 5 in blocks of 2: positions 3 4 | 5 6 | 7, then stubs, which see no further than themselves."""
    layout = place(Layout.BRANCHES, 3, 5, [2, 1], 4, document_block=2)
    assert layout.positions == (3, 4, 5, 6, 7, 8, 9, 8)
    assert layout.reaches == (4, 4, 6, 6, 7, 8, 9, 8)
    assert place(Layout.GAPS, 3, 5, [2, 1], 4).reaches == place(Layout.GAPS, 3, 5, [2, 1], 4).positions


@pytest.mark.parametrize("block", [1, 2, 5, 7, 100])
@pytest.mark.parametrize("most", [1, 3, 5, 12, 99])
def test_chunks_split_no_block_and_are_as_long_as_they_may(block, most):
    document, rows = 17, 17 + 6
    placed = place(Layout.BRANCHES, 4, document, [3, 3], 4, document_block=block)
    borders = {*range(0, document, block), *range(document, rows + 1)}  # where a chunk may end or begin
    start = 0
    while start < rows:
        stop = placed.chunk_end(start, most)
        longest = max([b for b in borders if start < b <= start + most], default=0)
        assert stop == (longest or min(b for b in borders if b > start))
        start = stop
    assert start == rows


def test_a_stub_without_tokens_is_refused():
    with pytest.raises(ValueError, match="every stub needs a token"):
        place(Layout.GAPS, 0, 1, [2, 0], 4)
