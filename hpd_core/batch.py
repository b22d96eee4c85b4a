"""One step of work -> tensors and an attention plan, made once and run in every layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hpd_core.attention import PrefixRead, Read, StepPlan, Write
from hpd_core.cache import Slab
from hpd_core.mask import Tokens
from hpd_core.settings import Layout, Visibility

#: Least share of a grid that real rows or live blocks must fill.
_FILL = 0.6


@dataclass(frozen=True, slots=True)
class Feed:
    """Tokens of one document fed in one step: a prefill chunk, or the next tokens of each live slot. Lists are [n].

    cells: of the slab, handed out by its `append`, for their KV.
    wanted: places in this feed whose logits are needed.
    prefix: the document's shared prefix (a one-block slab), None while the prefix itself is fed.
    """

    slab: Slab
    block: int
    cells: Sequence[int]
    ids: Sequence[int]
    positions: Sequence[int]
    stubs: Sequence[int]
    indices: Sequence[int]
    reaches: Sequence[int]
    wanted: Sequence[int]
    prefix: Slab | None
    is_prefill: bool


@dataclass(frozen=True, slots=True)
class Step:
    """Tensors of one forward pass: ids and positions [T], rows [n] whose logits are wanted, in feed order."""

    ids: Tensor
    positions: Tensor
    rows: Tensor
    plan: StepPlan


@dataclass(frozen=True, slots=True)
class _Placed:
    feed: Feed
    start: int  # first row on the flat axis


def make_step(
    feeds: Sequence[Feed], layout: Layout, visibility: Visibility, device: torch.device, *, fast: bool = True
) -> Step:
    """Lays feeds one after another on the flat axis and plans their attention."""
    placed: list[_Placed] = []
    start = 0
    for feed in feeds:
        placed.append(_Placed(feed, start))
        start += len(feed.ids)

    def flat(name: str) -> Tensor:
        return torch.tensor([i for f in feeds for i in getattr(f, name)], dtype=torch.int64, device=device)

    ids, positions, stubs, indices, reaches = map(flat, ("ids", "positions", "stubs", "indices", "reaches"))
    rows = [p.start + w for p in placed for w in p.feed.wanted]
    writes = []
    for slab, members in _by_slab(placed).items():
        own = [r for p in members for r in range(p.start, p.start + len(p.feed.ids))]
        cells = [c for p in members for c in p.feed.cells]
        own_rows = torch.tensor(own, dtype=torch.int64, device=device)
        write = Write(slab, own_rows, torch.tensor(cells, dtype=torch.int64, device=device))
        slab.describe(write.cells, stubs[own_rows], positions[own_rows], indices[own_rows])
        writes.append(write)
    facts = Tokens(torch.zeros_like(stubs), stubs, positions, indices, reaches)
    reads = [_read(members, facts) for members in _read_groups(placed)]
    plan = StepPlan(
        layout=layout,
        visibility=visibility,
        writes=tuple(writes),
        reads=tuple(reads),
        order=_order(reads, start, device),
        prefix_reads=tuple(_prefix_reads(placed, positions)),
        fast=fast,
    )
    return Step(ids, positions, torch.tensor(rows, dtype=torch.int64, device=device), plan)


def _by_slab(placed: Sequence[_Placed]) -> dict[Slab, list[_Placed]]:
    groups: dict[Slab, list[_Placed]] = {}
    for p in placed:
        groups.setdefault(p.feed.slab, []).append(p)
    return groups


def _read_groups(placed: Sequence[_Placed]) -> Iterator[list[_Placed]]:
    """Feeds that attend in one product: of one slab, and of widths that pad little."""
    for members in _by_slab([p for p in placed if not p.feed.is_prefill]).values():
        yield members
    for members in _by_slab([p for p in placed if p.feed.is_prefill]).values():
        rest = sorted(members, key=lambda p: -len(p.feed.ids))
        while rest:
            least = len(rest[0].feed.ids) * _FILL
            yield [p for p in rest if len(p.feed.ids) >= least]
            rest = [p for p in rest if len(p.feed.ids) < least]


def _read(members: Sequence[_Placed], facts: Tokens) -> Read:
    slab, device = members[0].feed.slab, facts.stub.device
    blocks = sorted(p.feed.block for p in members)
    low, high = blocks[0], blocks[-1] + 1
    dense = len(blocks) >= _FILL * (high - low)
    # Blocks that lie close together are read where they are, idle ones among them; scattered ones are copied.
    number = {block: i for i, block in enumerate(range(low, high) if dense else blocks)}
    width = max(len(p.feed.ids) for p in members)
    grid = [members[0].start] * (len(number) * width)
    rows, cells = [], []
    for p in members:
        for k in range(len(p.feed.ids)):
            cell = number[p.feed.block] * width + k
            grid[cell] = p.start + k
            rows.append(p.start + k)
            cells.append(cell)
    at = torch.tensor(grid, dtype=torch.int64, device=device)
    return Read(
        slab=slab,
        blocks=slice(low, high) if dense else torch.tensor(blocks, dtype=torch.int64, device=device),
        width=width,
        columns=max(slab.used[b] for b in blocks),
        rows=torch.tensor(rows, dtype=torch.int64, device=device),
        cells=torch.tensor(cells, dtype=torch.int64, device=device),
        grid=at,
        queries=Tokens(*(t[at].view(len(number), width) for t in facts)),
    )


def _order(reads: Sequence[Read], rows: int, device: torch.device) -> Tensor:
    order = torch.empty(rows, dtype=torch.int64, device=device)
    start = 0
    for read in reads:
        order[read.rows] = read.cells + start
        start += len(read.grid)
    return order


def _prefix_reads(placed: Sequence[_Placed], positions: Tensor) -> list[PrefixRead]:
    groups: dict[Slab, list[int]] = {}
    for p in placed:
        if p.feed.prefix is not None:
            groups.setdefault(p.feed.prefix, []).extend(range(p.start, p.start + len(p.feed.ids)))
    reads = []
    for slab, rows in groups.items():
        at = torch.tensor(rows, dtype=torch.int64, device=positions.device)
        reads.append(PrefixRead(slab, slab.used[0], at, positions[at]))
    return reads
