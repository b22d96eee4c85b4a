"""Attention of one step: what reads what, planned once per step and run in every layer.

The rows of a step (flat axis, no padding) belong to documents in different slabs. `StepPlan` says where each row's KV
is written and which cells it reads. Two twins run it:

- `attend_plain`: document by document, keys of prefix and document side by side, one masked softmax. Obvious, slow.
- `attend_fast`: all documents of a slab in one product, each shared prefix as one product of all rows that read it, the
  parts merged by their log-sum-exp.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from hpd_core import mask
from hpd_core.cache import Slab
from hpd_core.mask import Tokens
from hpd_core.products import Scoring, attend_blocks, masked_attention
from hpd_core.settings import Layout, Visibility


class Plan(Protocol):
    """What the registered attention function needs: the attention of one forward pass, planned before it."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, layer: int, scoring: Scoring) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Write:
    """Rows whose KV goes into `cells` (flat cell numbers) of a slab; both [n]."""

    slab: Slab
    rows: Tensor
    cells: Tensor


@dataclass(frozen=True, slots=True)
class Read:
    """Rows that attend to their own documents, as a padded grid [B, width] over B blocks of a slab.

    blocks: the blocks, as a slice where they lie close together (a view, no copy) or as an index [B].
    rows: [n] rows of the step. cells: [n] their place in the grid, counted flat.
    grid: [B * width] row of the step at each place of the grid; padding repeats one row and is never read back.
    queries: Tokens of the grid, each [B, width].
    """

    slab: Slab
    blocks: slice | Tensor
    width: int
    columns: int
    rows: Tensor
    cells: Tensor
    grid: Tensor
    queries: Tokens


@dataclass(frozen=True, slots=True)
class PrefixRead:
    """Rows [n] that attend to one shared prefix of `length` tokens; `positions` [n] are theirs."""

    slab: Slab
    length: int
    rows: Tensor
    positions: Tensor


@dataclass(slots=True)
class StepPlan:
    """One forward pass. Index arithmetic happens here, never inside a layer.

    order: [T] place of every row of the step in the reads' grids, laid one after another.

    Made on the device that the step begins on; a model whose layers are spread over several takes it along (`on`).
    """

    layout: Layout
    visibility: Visibility
    writes: tuple[Write, ...]
    reads: tuple[Read, ...]
    order: Tensor
    prefix_reads: tuple[PrefixRead, ...]
    fast: bool = True
    _bias: dict[tuple[int, int | None, int], Tensor] = field(default_factory=dict)
    _prefix_bias: dict[tuple[int, int, int], Tensor | None] = field(default_factory=dict)
    _home: StepPlan | None = None
    _elsewhere: dict[torch.device, StepPlan] = field(default_factory=dict)

    def on(self, device: torch.device) -> StepPlan:
        """The plan with its numbers on `device`, copied once per step. The slabs' facts stay where they are, so biases
        are made at home and then copied; KV lies where its layer does."""
        if device == self.order.device:
            return self
        if device not in self._elsewhere:
            self._elsewhere[device] = replace(
                self,
                writes=tuple(replace(w, rows=w.rows.to(device), cells=w.cells.to(device)) for w in self.writes),
                reads=tuple(_moved(read, device) for read in self.reads),
                order=self.order.to(device),
                prefix_reads=tuple(
                    replace(p, rows=p.rows.to(device), positions=p.positions.to(device)) for p in self.prefix_reads
                ),
                _bias={},
                _prefix_bias={},
                _home=self,
                _elsewhere={},
            )
        return self._elsewhere[device]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, layer: int, scoring: Scoring) -> Tensor:
        """Attention of one layer over all rows of a step.

        query [T, heads, d], key and value [T, kv_heads, d or d_v] -> [T, heads, d_v]. Writes key and value first, so
        that rows of one step see each other where the visibility says so.
        """
        here = self.on(query.device)
        for write in here.writes:
            if len(write.rows) == len(key):  # all rows, in their order
                write.slab.write(layer, write.cells, key, value)
            else:
                write.slab.write(layer, write.cells, key[write.rows], value[write.rows])
        run = attend_fast if self.fast else attend_plain
        return run(query, value.shape[-1], layer=layer, plan=here, scoring=scoring)

    def bias(self, number: int, window: int | None, group: int, dtype: torch.dtype) -> Tensor:
        """[documents, 1, width * group, columns] additive mask of read `number`, made once per window."""
        key = (number, window, group)
        if key not in self._bias and self._home is not None:
            self._bias[key] = self._home.bias(number, window, group, dtype).to(self.order.device)
        if key not in self._bias:
            read = self.reads[number]
            sees = mask.visible(read.queries, _keys(read), self.layout, self.visibility, window)
            grouped = mask.bias(sees, dtype).repeat_interleave(group, dim=1)
            self._bias[key] = grouped.unsqueeze(1)
        return self._bias[key]

    def prefix_bias(self, number: int, window: int | None, group: int, dtype: torch.dtype) -> Tensor | None:
        """[1, 1, n * group, length] additive mask of a prefix read, None where every row sees the whole prefix."""
        if window is None:
            return None
        key = (number, window, group)
        if key not in self._prefix_bias:
            read = self.prefix_reads[number]
            columns = torch.arange(read.length, device=read.positions.device)
            sees = read.positions[:, None] - columns[None, :] < window
            whole = bool(sees.all())
            self._prefix_bias[key] = None if whole else mask.bias(sees, dtype).repeat_interleave(group, 0)[None, None]
        return self._prefix_bias[key]


def _moved(read: Read, device: torch.device) -> Read:
    blocks = read.blocks if isinstance(read.blocks, slice) else read.blocks.to(device)
    rows, cells, grid = (t.to(device) for t in (read.rows, read.cells, read.grid))
    queries = Tokens(*(t.to(device) for t in read.queries))
    return replace(read, blocks=blocks, rows=rows, cells=cells, grid=grid, queries=queries)


def _keys(read: Read) -> Tokens:
    """Tokens of the cells that a read covers, each [documents, columns]."""
    slab = read.slab
    stub, position, index = (t[read.blocks, : read.columns] for t in (slab.stub, slab.position, slab.index))
    nothing = torch.zeros_like(stub)
    return Tokens(nothing, stub, position, index, reach=nothing)


def attend_plain(query: Tensor, width: int, *, layer: int, plan: StepPlan, scoring: Scoring) -> Tensor:
    """The obvious twin: per document, one masked softmax over [prefix | document]."""
    rows_total, heads, _ = query.shape
    out = query.new_zeros(rows_total, heads, width)
    prefix_of: dict[int, PrefixRead] = {r: p for p in plan.prefix_reads for r in p.rows.tolist()}
    for read in plan.reads:
        place = dict(zip(read.cells.tolist(), read.rows.tolist(), strict=True))
        for number, block in enumerate(torch.arange(read.slab.documents)[read.blocks].tolist()):
            cells = [c for c in place if c // read.width == number]
            if not cells:
                continue
            rows = torch.tensor([place[c] for c in cells], device=query.device)
            keys, values = (
                t[0] for t in read.slab.read(layer, slice(block, block + 1), read.columns)
            )  # [kv_heads, C, d]
            tokens = Tokens(*(t[number] for t in _keys(read)))
            prefix = prefix_of.get(int(rows[0]))
            if prefix is not None:
                shared = prefix.slab.read(layer, slice(0, 1), prefix.length)
                keys, values = torch.cat([shared[0][0], keys], 1), torch.cat([shared[1][0], values], 1)
                tokens = _with_prefix(tokens, prefix.length)
            asked = Tokens(*(t.reshape(-1)[torch.tensor(cells, device=query.device)] for t in read.queries))
            sees = mask.visible(asked, tokens, plan.layout, plan.visibility, scoring.window)
            out[rows] = masked_attention(query[rows], keys, values, sees, scoring)
    return out


def _with_prefix(tokens: Tokens, length: int) -> Tokens:
    line = torch.arange(length, device=tokens.position.device)
    nothing = torch.zeros_like(line)
    facts = (torch.full_like(line, mask.PREFIX), torch.full_like(line, mask.NO_STUB), line, nothing, nothing)
    return Tokens(*(torch.cat([p, t]) for p, t in zip(facts, tokens, strict=True)))


def attend_fast(query: Tensor, width: int, *, layer: int, plan: StepPlan, scoring: Scoring) -> Tensor:
    """The fast twin: one product per slab, one per prefix, merged by log-sum-exp."""
    rows_total, heads, _ = query.shape
    parts, sums = [], []
    for number, read in enumerate(plan.reads):
        keys, values = read.slab.read(layer, read.blocks, read.columns)
        grid = query.index_select(0, read.grid).view(keys.shape[0], read.width, heads, -1)
        added = plan.bias(number, scoring.window, heads // keys.shape[1], query.dtype)
        part, log_sum = attend_blocks(grid, keys, values, added, scoring)
        parts.append(part.reshape(-1, heads, width))
        sums.append(log_sum.reshape(-1, heads))
    out = torch.cat(parts).index_select(0, plan.order)
    log_sums = torch.cat(sums).index_select(0, plan.order)
    # Pair by pair and not by `products.merged`, which wants every part for every row: a prefix has rows of its own.
    if scoring.sinks is not None:  # a part of its own that adds nothing
        beside = scoring.sinks.to(log_sums.dtype)
        out = out * torch.sigmoid(log_sums - beside).unsqueeze(-1).to(out.dtype)
        log_sums = torch.logaddexp(log_sums, beside)
    for number, prefix in enumerate(plan.prefix_reads):
        keys, values = prefix.slab.read(layer, slice(0, 1), prefix.length)
        added_or_none = plan.prefix_bias(number, scoring.window, heads // keys.shape[1], query.dtype)
        everything = len(prefix.rows) == rows_total
        rows = query if everything else query.index_select(0, prefix.rows)
        part, log_sum = attend_blocks(rows[None], keys, values, added_or_none, scoring)
        own, own_sum = (out, log_sums) if everything else (out[prefix.rows], log_sums[prefix.rows])
        if added_or_none is not None:
            # Rows whose window has left the prefix behind: their part is NaN or 0, their log-sum must weigh nothing.
            blind = (added_or_none[0, 0] == float("-inf")).all(-1).view(len(rows), -1)[:, 0]
            part = part.masked_fill(blind[None, :, None, None], 0.0)
            log_sum = log_sum.masked_fill(blind[None, :, None], float("-inf"))
        weight = torch.sigmoid(log_sum[0] - own_sum).unsqueeze(-1).to(out.dtype)
        merged = torch.lerp(own, part[0], weight)
        if everything:
            out = merged
        else:
            out[prefix.rows] = merged
    return out
