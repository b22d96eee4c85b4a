"""Inputs of a step without prefill, in a few bucketed shapes, at addresses that stay: what a CUDA graph reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from hpd_core.arena import SINK
from hpd_core.batch import Feed
from hpd_core.cache import Slab

#: Least columns of a shape.
_COLUMNS = 64


def bucket(count: int, least: int = 1) -> int:
    """The least of 1, 2, 3, 4, 6, 8, 12, 16, 24 … times `least` that holds `count`: at most a third is padding."""
    size = least
    while size < count:
        half = size + size // 2
        if size < half >= count:
            return half
        size *= 2
    return size


@dataclass(frozen=True, slots=True)
class StepShape:
    """Sizes of a step, each a bucket: rows of `documents` documents, at most `width` each, that read at most `columns`
    cells of their own and one of `prefixes` prefixes of at most `prefix_columns` tokens (0 and 0: there is none).

    logits: whether they are kept beside the ids that are chosen.
    """

    rows: int
    documents: int
    width: int
    columns: int
    prefixes: int
    prefix_columns: int
    logits: bool

    @classmethod
    def of(cls, feeds: Sequence[Feed], *, logits: bool) -> StepShape:
        prefixes = {f.prefix for f in feeds}
        longest = max(0 if p is None else p.used[0] for p in prefixes)
        lengths = [len(f.ids) for f in feeds]
        return cls(
            rows=bucket(sum(lengths)),
            documents=bucket(len(feeds)),
            width=bucket(max(lengths)),
            columns=bucket(max(f.slab.used[f.block] for f in feeds), _COLUMNS),
            prefixes=bucket(len(prefixes)) if longest else 0,
            prefix_columns=bucket(longest, _COLUMNS) if longest else 0,
            logits=logits,
        )


class Buffers:
    """Inputs of steps of one shape: int64 parts of one tensor, which is filled on the host and copied whole.

    Of each row: `ids`, or the place in `source` of the choice of the step before that it feeds (-1: `ids` says it);
    `positions`, `stubs`, `indices`, its `cells` of the arena, its places `at` and `prefix_at` in the two grids.
    Of each choice: the row `wanted`, the id `taught` in its place (-1: none). Of each document and prefix: first cell
    and cells. Padding rows are copies of row 0 that are written to the arena's sink; padding ranges have no cells.
    """

    def __init__(self, shape: StepShape, device: torch.device) -> None:
        self.shape = shape
        by_row = ("ids", "source", "positions", "stubs", "indices", "cells", "at", "prefix_at", "wanted", "taught")
        sizes = dict.fromkeys(by_row, shape.rows) | {
            "grid": shape.documents * shape.width,
            "starts": shape.documents,
            "used": shape.documents,
            "prefix_starts": shape.prefixes,
            "prefix_used": shape.prefixes,
        }
        total = sum(sizes.values())
        self.whole = torch.zeros(total, dtype=torch.int64, device=device)
        self.parts = dict(zip(sizes, self.whole.split(list(sizes.values())), strict=True))
        # Every row asks every prefix, and keeps the answer of its own: mostly there is one.
        self.prefix_grid = torch.arange(shape.rows, device=device).repeat(shape.prefixes)
        # Two by turns: the copy of the last step's may not have begun when this step's are written.
        pinned = device.type == "cuda"
        self._hosts = [torch.zeros(total, dtype=torch.int64, pin_memory=pinned) for _ in range(2)]
        self._sizes = list(sizes.values())

    def fill(self, feeds: Sequence[Feed], source: Sequence[int], taught: Sequence[int]) -> None:
        """source: [rows] or empty, taught: [wanted rows] or empty."""
        self._hosts.reverse()
        host = dict(zip(self.parts, (t.numpy() for t in self._hosts[0].split(self._sizes)), strict=True))
        shape = self.shape
        *starts, rows = accumulate((len(f.ids) for f in feeds), initial=0)
        prefixes: dict[Slab | None, int] = {}
        for f in feeds:
            prefixes.setdefault(f.prefix, len(prefixes))
        owners = [prefixes[f.prefix] for f in feeds for _ in f.ids]
        for name in ("ids", "positions", "stubs", "indices"):
            host[name][:rows] = [i for f in feeds for i in getattr(f, name)]
        host["source"][:rows] = source or -1
        host["at"][:rows] = [b * shape.width + k for b, f in enumerate(feeds) for k in range(len(f.ids))]
        host["prefix_at"][:rows] = [g * shape.rows + row for row, g in enumerate(owners)]
        for name in ("ids", "source", "positions", "stubs", "indices", "at", "prefix_at"):
            host[name][rows:] = host[name][0]
        host["cells"][:rows] = [f.slab.start + c for f in feeds for c in f.cells]
        host["cells"][rows:] = SINK
        wanted = [start + w for start, f in zip(starts, feeds, strict=True) for w in f.wanted]
        host["wanted"][:] = 0
        host["wanted"][: len(wanted)] = wanted
        host["taught"][:] = -1
        host["taught"][: len(taught)] = taught
        host["grid"][:] = 0
        host["grid"][host["at"][:rows]] = range(rows)
        for name in ("starts", "used", "prefix_starts", "prefix_used"):
            host[name][:] = 0
        host["starts"][: len(feeds)] = [f.slab.start + f.block * f.slab.columns for f in feeds]
        host["used"][: len(feeds)] = [f.slab.used[f.block] for f in feeds]
        if shape.prefixes:
            host["prefix_starts"][: len(prefixes)] = [0 if p is None else p.start for p in prefixes]
            host["prefix_used"][: len(prefixes)] = [0 if p is None else p.used[0] for p in prefixes]
        self.whole.copy_(self._hosts[0], non_blocking=True)
