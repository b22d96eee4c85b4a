"""Where keys, values and the facts of their tokens lie: cells, of one slab alone or of all slabs of a decoder."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hpd_core.layout import NO_STUB

#: Position of a free cell: behind every query, so that the visibility rule never shows it.
NEVER = 2**62
#: Cells of an arena that belong to no slab. VOID is never written and never seen: it is read where there is nothing to
#: read. SINK is never read: it is written where there is nothing to write. Not one, or a NaN of the second would reach
#: whoever reads the first.
VOID, SINK = 0, 1


class Store:
    """`cells` cells, each a token in every layer.

    stub, position, index: [cells] facts of their tokens.
    layers: {layer: keys and values, each [cells, kv_heads, head_dim]}, allocated when a layer first writes: their shape
        is the model's business and may differ from layer to layer.
    """

    def __init__(self, cells: int, device: torch.device) -> None:
        self.cells, self.device = cells, device
        self.stub = torch.full((cells,), NO_STUB, dtype=torch.int64, device=device)
        self.position = torch.full((cells,), NEVER, dtype=torch.int64, device=device)
        self.index = torch.zeros(cells, dtype=torch.int64, device=device)
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def of_layer(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer, to write such as `key` and `value` [n, kv_heads, head_dim] into."""
        if layer not in self.layers:
            self.layers[layer] = (
                _lazy_zeros((self.cells, *key.shape[1:]), key),
                _lazy_zeros((self.cells, *value.shape[1:]), value),
            )
        return self.layers[layer]

    @property
    def bytes_per_cell(self) -> int:
        return sum(t[0].nbytes for pair in self.layers.values() for t in pair)


class Arena(Store):
    """One store for all slabs and prefixes of a decoder: their tensors keep their addresses, so that a recorded CUDA
    graph finds them. Where it is full it grows, which moves them: `version` counts how often.

    cells: of slabs and prefixes together; VOID and SINK are two more. is_bound: whether memory is short, so that it
    grows by no more than what is missing; otherwise by as much as it has, so that it seldom does.

    Ranges are given out first fit, those of slabs from the end: prefixes stay, and would lie in their way, and in that
    of the end that grows. Cells of a fresh range are zero and free.
    """

    def __init__(self, cells: int, device: torch.device, *, is_bound: bool = False) -> None:
        super().__init__(cells + SINK + 1, device)
        self.version = 0
        self.is_bound = is_bound
        self._free = joined([(SINK + 1, self.cells)])
        self._let_go: list[tuple[int, int]] = []

    def take(self, cells: int, *, at_end: bool = False) -> int:
        """First cell of a range of `cells`."""
        if self.longest() < cells:
            self._grow(cells)
        fitting = [n for n, (start, stop) in enumerate(self._free) if stop - start >= cells]
        number = fitting[-1 if at_end else 0]
        start, stop = self._free[number]
        first = stop - cells if at_end else start
        self._free[number : number + 1] = [r for r in ((start, first), (first + cells, stop)) if r[0] < r[1]]
        here = slice(first, first + cells)
        self.stub[here], self.position[here], self.index[here] = NO_STUB, NEVER, 0
        for pair in self.layers.values():
            for stored in pair:
                stored[here] = 0  # NaN of the last owner would reach the next one: 0 * NaN is NaN
        return first

    def give_back(self, start: int, cells: int) -> None:
        self._free = joined([*self._free, (start, start + cells)])

    def let_go(self, start: int, cells: int) -> None:
        """As `give_back`, from a finalizer, which may run at any moment, in the middle of `take` too."""
        self._let_go.append((start, start + cells))

    def longest(self, idle: Sequence[tuple[int, int]] = ()) -> int:
        """Cells of the longest range that is free, or would be if the ranges `idle` (first cell, behind the last) were
        given back."""
        while self._let_go:
            self._free = joined([*self._free, self._let_go.pop()])
        return max((stop - start for start, stop in (joined([*self._free, *idle]) if idle else self._free)), default=0)

    def _grow(self, cells: int) -> None:
        """So that a range of `cells` is free at the end."""
        at_end = self.cells - self._free[-1][0] if self._free and self._free[-1][1] == self.cells else 0
        more = cells - at_end if self.is_bound else max(self.cells, cells)
        fresh = Store(more, self.device)
        self.stub = torch.cat([self.stub, fresh.stub])
        self.position = torch.cat([self.position, fresh.position])
        self.index = torch.cat([self.index, fresh.index])
        for layer, pair in self.layers.items():  # one after another, so that little is there twice
            key, value = (torch.cat([t, t.new_zeros(more, *t.shape[1:])]) for t in pair)
            self.layers[layer] = key, value
        self.give_back(self.cells, more)
        self.cells += more
        self.version += 1


def joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same cells in as few ranges (first cell, behind the last) as can be, in order; without empty ones."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if found and start == found[-1][1]:
            found[-1] = (found[-1][0], stop)
        elif start < stop:
            found.append((start, stop))
    return found


def _lazy_zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Zeros, because a masked cell has weight 0 and 0 * NaN of fresh memory is NaN.

    On CPU they come from numpy's calloc: pages that no document reaches are never touched, so that room reserved for
    values that stay short costs no memory (`torch.zeros` writes every page).
    """
    if like.device.type != "cpu":
        return torch.zeros(shape, dtype=like.dtype, device=like.device)
    size = math.prod(shape) * like.element_size()
    return torch.from_numpy(np.zeros(size, dtype=np.uint8)).view(like.dtype).view(shape)
