"""Which token a query sees: a predicate over document, stub, position and value index, never over memory order."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hpd_core.layout import NO_STUB
from hpd_core.settings import Layout, Visibility

#: Document number of the shared prefix.
PREFIX = -1


class Tokens(NamedTuple):
    """Facts of tokens as int64 tensors of one shape (or shapes that broadcast).

    stub: NO_STUB for prefix and document. value_index: k of the k-th value token (1, 2, …), 0 for every other token.
    reach: of a query, the furthest position that it sees, its own where it is causal; of a key it means nothing.
    """

    document: Tensor
    stub: Tensor
    position: Tensor
    value_index: Tensor
    reach: Tensor

    def expand_queries(self) -> Tokens:
        """[..., Q] -> [..., Q, 1]."""
        return Tokens(*(t.unsqueeze(-1) for t in self))

    def expand_keys(self) -> Tokens:
        """[..., K] -> [..., 1, K]."""
        return Tokens(*(t.unsqueeze(-2) for t in self))


def visible(q: Tokens, x: Tokens, layout: Layout, visibility: Visibility, window: int | None = None) -> Tensor:
    """[..., Q, K] bool: whether query q [..., Q] sees key x [..., K] (docs/models.md has it in words).

    Both in one document (or x in the prefix), p_x <= reach of q, |p_q - p_x| < window, and x has no stub or q's stub;
    in `gaps` also key tokens of earlier stubs, and under `causal` their value tokens of the same or an earlier step.
    """
    q, x = q.expand_queries(), x.expand_keys()
    sees = (x.document == q.document) | (x.document == PREFIX)
    sees &= x.position <= q.reach
    if window is not None:
        sees &= (q.position - x.position).abs() < window
    stub = (x.stub == NO_STUB) | (x.stub == q.stub)
    if layout is Layout.GAPS:
        newest = q.value_index if visibility is Visibility.CAUSAL else torch.zeros_like(q.value_index)
        stub |= (x.stub < q.stub) & (x.value_index <= newest)
    return sees & stub


def bias(sees: Tensor, dtype: torch.dtype) -> Tensor:
    """Additive form of a visibility: 0 where seen, -inf where not."""
    return torch.zeros(sees.shape, dtype=dtype, device=sees.device).masked_fill_(~sees, float("-inf"))
