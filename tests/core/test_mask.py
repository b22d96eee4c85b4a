"""The predicate equals a double loop over the written rule, over packed documents."""

from __future__ import annotations

import pytest
import torch

from hpd_core import mask, serial
from hpd_core.layout import NO_STUB
from hpd_core.mask import PREFIX, Tokens
from hpd_core.settings import Layout, Visibility
from tests.core.test_exactness import WAYS
from tests.core.tiny import prompts_of


def packed(prompts, layout):
    """(document, Token) of one shared prefix, every prompt behind it, and values of different lengths."""
    line = [(PREFIX, t) for t in serial.tokens_of(prompts[0], layout)[: len(prompts[0].shared.prefix)]]
    for number, prompt in enumerate(prompts):
        own = serial.tokens_of(prompt, layout)
        line += [(number, t) for t in own[len(prompt.shared.prefix) :]]
        for stub in range(len(prompt.shared.stubs)):
            end = max(t.position for t in own if t.stub == stub)
            line += [(number, serial.Token(0, end + k, stub, k)) for k in range(1, 1 + (stub * 2 + number) % 5)]
    return line


def reach(line, owner, token):
    """By hand: the last position of the block that a token of a document stands in."""
    if token.block is None:
        return token.position
    return max(t.position for o, t in line if o == owner and t.block == token.block)


def tokens(line):
    return Tokens(
        torch.tensor([d for d, _ in line]),
        torch.tensor([NO_STUB if t.stub is None else t.stub for _, t in line]),
        torch.tensor([t.position for _, t in line]),
        torch.tensor([t.index for _, t in line]),
        torch.tensor([reach(line, owner, t) for owner, t in line]),
    )


@pytest.mark.parametrize("layout, visibility", WAYS)
@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("block", [1, 3, 100])
def test_dense_mask_equals_the_double_loop(layout, visibility, window, block):
    line = packed(prompts_of(0, [5, 1, 12], document_block=block), layout)
    got = mask.visible(tokens(line), tokens(line), layout, visibility, window)
    for i, (document, q) in enumerate(line):
        for j, (owner, x) in enumerate(line):
            expected = owner in (document, PREFIX) and serial.sees(q, x, layout, visibility, window)
            assert bool(got[i, j]) == expected, (q, x)


def test_memory_order_means_nothing():
    line = packed(prompts_of(1, [6, 3]), Layout.GAPS)
    order = torch.randperm(len(line), generator=torch.Generator().manual_seed(0))
    whole = mask.visible(tokens(line), tokens(line), Layout.GAPS, Visibility.CAUSAL)
    mixed = [line[i] for i in order]
    assert torch.equal(
        mask.visible(tokens(mixed), tokens(mixed), Layout.GAPS, Visibility.CAUSAL), whole[order][:, order]
    )


def test_causal_shows_more_than_isolated_and_only_values():
    line = packed(prompts_of(2, [4]), Layout.GAPS)
    isolated, causal = (
        mask.visible(tokens(line), tokens(line), Layout.GAPS, v) for v in (Visibility.ISOLATED, Visibility.CAUSAL)
    )
    more = causal & ~isolated
    assert not (isolated & ~causal).any() and more.any()
    index = tokens(line).value_index
    assert all(index[j] >= 1 and index[i] >= index[j] for i, j in more.nonzero().tolist())


def test_bias_is_zero_or_minus_infinity():
    assert mask.bias(torch.tensor([True, False]), torch.float32).tolist() == [0.0, float("-inf")]
