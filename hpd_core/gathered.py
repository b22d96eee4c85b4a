"""Attention of one step over an arena, in shapes that do not depend on what a step holds: what a CUDA graph can record.

The twin of `attention.attend_fast` for steps without prefill. Instead of views of slabs, whose number and widths change
from step to step, every document's keys are gathered from the arena by cell number; a shared prefix is one more such
range, which all rows read. What is visible follows from the facts of the cells, on the device, with nothing read back.

Why gathered products, and no attention kernel: a slot sees the document, its own stub and its own value, which are
scattered over the block, so that `torch.nn.attention.varlen.varlen_attn` (CUDA only, keys in one range, no mask) could
do prefix and document and never the rest; the fused kernels behind `scaled_dot_product_attention` take a mask and keep
the log-sum-exp to themselves; FlexAttention compiles a kernel for each mask. All slots of a document share its keys, so
that gathering them costs a copy per document and layer, not per slot. Whether that is what to improve next, a GPU must
say: nothing here has run on one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hpd_core import mask
from hpd_core.arena import VOID, Arena
from hpd_core.mask import Tokens
from hpd_core.products import Scoring, attend_blocks, merged
from hpd_core.settings import Layout, Visibility


@dataclass(frozen=True, slots=True)
class Ranges:
    """B ranges of cells of an arena, and the rows of a step that read them as a grid [B, W].

    starts, used: [B] first cell and number of cells; 0 cells are read as none. columns: most of a range that is read.
    grid: [B * W] row of the step at each place; padding repeats any row and is never read back.
    at: [T] place of each row in the grid, counted flat.
    """

    starts: Tensor
    used: Tensor
    columns: int
    grid: Tensor
    at: Tensor

    def cells(self) -> Tensor:
        """[B, columns], VOID where a range is shorter."""
        line = torch.arange(self.columns, device=self.starts.device)
        return (self.starts[:, None] + line).masked_fill_(line >= self.used[:, None], VOID)


class GatheredPlan:
    """The attention of one forward pass; a `Plan`.

    cells: [T] of the arena that the rows' KV goes to. rows: their facts, each [T]; the arena keeps them from now on.
    reads: what rows attend to, merged by log-sum-exp. Each row has to see a cell of the first, itself at least.
    """

    def __init__(
        self,
        arena: Arena,
        layout: Layout,
        visibility: Visibility,
        cells: Tensor,
        rows: Tokens,
        reads: tuple[Ranges, ...],
    ) -> None:
        self._arena, self._layout, self._visibility = arena, layout, visibility
        self._cells, self._reads = cells, reads
        arena.stub.index_copy_(0, cells, rows.stub)
        arena.position.index_copy_(0, cells, rows.position)
        arena.index.index_copy_(0, cells, rows.value_index)
        self._columns = [read.cells() for read in reads]
        self._queries = [
            Tokens(*(t.index_select(0, read.grid).view(len(read.starts), -1) for t in rows)) for read in reads
        ]
        self._indices: dict[tuple[int, int], Tensor] = {}
        self._bias: dict[tuple[int, int | None, int], Tensor] = {}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, layer: int, scoring: Scoring) -> Tensor:
        """As `StepPlan.attend`: query [T, heads, d], key and value [T, kv_heads, d or d_v] -> [T, heads, d_v]."""
        stored = self._arena.of_layer(layer, key, value)
        for where, new in zip(stored, (key, value), strict=True):
            where.index_copy_(0, self._cells, new)
        _, heads, _ = query.shape
        parts, sums = [], []
        for number, read in enumerate(self._reads):
            keys, values = (self._gathered(number, t) for t in stored)
            grid = query.index_select(0, read.grid).view(len(read.starts), -1, heads, query.shape[-1])
            added = self._added(number, scoring.window, heads // key.shape[1], query.dtype)
            part, log_sum = attend_blocks(grid, keys, values, added, scoring, products=True)
            parts.append(part.reshape(-1, heads, value.shape[-1]).index_select(0, read.at))
            sums.append(log_sum.reshape(-1, heads).index_select(0, read.at))
        if scoring.sinks is not None:  # a part that adds nothing
            parts.append(torch.zeros_like(parts[0]))
            sums.append(scoring.sinks.to(sums[0].dtype).expand_as(sums[0]))
        return merged(torch.stack(parts), torch.stack(sums))

    def _gathered(self, number: int, stored: Tensor) -> Tensor:
        """[cells, kv_heads, d] of one layer -> [B, kv_heads, columns, d], head by head, so that it is copied once."""
        columns, heads = self._columns[number], stored.shape[1]
        if (number, heads) not in self._indices:
            line = torch.arange(heads, device=stored.device)
            self._indices[number, heads] = (columns[:, None] * heads + line[:, None]).view(-1)
        rows = stored.view(-1, stored.shape[-1]).index_select(0, self._indices[number, heads])
        return rows.view(len(columns), heads, columns.shape[1], stored.shape[-1])

    def _added(self, number: int, window: int | None, group: int, dtype: torch.dtype) -> Tensor:
        """[B, 1, W * group, columns] additive mask of a read, made once per window."""
        key = (number, window, group)
        if key not in self._bias:
            cells = self._columns[number]
            stub, position, index = (
                t.index_select(0, cells.view(-1)).view(cells.shape)
                for t in (self._arena.stub, self._arena.position, self._arena.index)
            )
            nothing = torch.zeros_like(stub)
            keys = Tokens(nothing, stub, position, index, reach=nothing)
            sees = mask.visible(self._queries[number], keys, self._layout, self._visibility, window)
            self._bias[key] = mask.bias(sees, dtype).repeat_interleave(group, dim=1).unsqueeze(1)
        return self._bias[key]
