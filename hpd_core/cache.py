"""KV storage: slabs of equally wide document blocks, and the shared prefixes kept between calls.

A slab holds the KV of up to `documents` documents in blocks of `columns` cells; a cell is one token in every layer.
Cells are handed out in the order tokens are fed, so a block is dense and memory order carries no meaning: what a token
may see follows from its facts (stub, position, index), which the slab keeps beside the KV. A cell that is given back
(a rejected draft) is seen by nobody until it is handed out again.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from hpd_core.arena import NEVER, Arena, Store

_CELLS_PER_SLAB = 16384
_MAX_DOCUMENTS = 32
#: Slabs that a bound is divided into at least, where documents are that small.
_LEAST_SLABS = 4
_STEP = 64


class Slab:
    """KV of up to `documents` documents of at most `columns` tokens each, in a store of its own or in an `arena`.

    start: its first cell there. Whoever has taken a slab of an arena frees it.
    """

    def __init__(
        self,
        documents: int,
        columns: int,
        device: torch.device,
        arena: Arena | None = None,
        *,
        at_end: bool = False,
    ) -> None:
        """at_end: see `Arena.take`."""
        self.documents, self.columns, self.device = documents, columns, device
        self.used = [0] * documents
        self.start = 0
        self._arena = arena
        self._store = arena or Store(documents * columns, device)
        if arena is not None:
            self.start = arena.take(documents * columns, at_end=at_end)
        self._free = list(range(documents))
        self._given_back: list[list[int]] = [[] for _ in range(documents)]

    @property
    def span(self) -> tuple[int, int]:
        """Its first cell in the store, and the one behind its last."""
        return self.start, self.start + self.documents * self.columns

    def free(self) -> None:
        """Gives its range of an arena back; nobody may use the slab any more."""
        if self._arena is not None:
            self._arena.give_back(self.start, self.documents * self.columns)

    @property
    def stub(self) -> Tensor:
        """[documents, columns], as the next two are."""
        return self._own(self._store.stub)

    @property
    def position(self) -> Tensor:
        return self._own(self._store.position)

    @property
    def index(self) -> Tensor:
        return self._own(self._store.index)

    def _own(self, stored: Tensor) -> Tensor:
        """[documents, columns, …] view of the slab's part of a tensor of its store."""
        cells = stored.narrow(0, self.start, self.documents * self.columns)
        return cells.view(self.documents, self.columns, *stored.shape[1:])

    def take(self) -> int:
        """Lowest free block: blocks in use stay close together, so that a step reads a dense range."""
        self._free.sort(reverse=True)
        return self._free.pop()

    def release(self, block: int) -> None:
        for pair in self._store.layers.values():
            for stored in pair:
                # NaN of this document would reach the next one: 0 * NaN is NaN.
                self._own(stored)[block, : self.used[block]] = 0
        self.position[block] = NEVER
        self.used[block] = 0
        self._given_back[block].clear()
        self._free.append(block)

    @property
    def is_full(self) -> bool:
        return not self._free

    @property
    def is_empty(self) -> bool:
        return len(self._free) == self.documents

    def append(self, block: int, count: int) -> list[int]:
        """Hands out `count` cells of a block, as flat cell numbers of the slab: those that were given back first."""
        back, start = self._given_back[block], self.used[block]
        again, back[:] = back[:count], back[count:]
        stop = start + count - len(again)
        if stop > self.columns:
            raise IndexError(f"block of {self.columns} cells is asked for {stop}")
        self.used[block] = stop
        return [*again, *range(block * self.columns + start, block * self.columns + stop)]

    def give_back(self, block: int, cells: Sequence[int]) -> None:
        """Cells of a block whose tokens are to be forgotten."""
        self.position.view(-1)[torch.tensor(cells, dtype=torch.int64, device=self.device)] = NEVER
        self._given_back[block] += cells

    def describe(self, cells: Tensor, stub: Tensor, position: Tensor, index: Tensor) -> None:
        """Records the facts of freshly handed out cells (all [n])."""
        self.stub.view(-1)[cells] = stub
        self.position.view(-1)[cells] = position
        self.index.view(-1)[cells] = index

    def write(self, layer: int, cells: Tensor, key: Tensor, value: Tensor) -> None:
        """key, value: [n, kv_heads, head_dim] into `cells` [n] of one layer."""
        for stored, new in zip(self._store.of_layer(layer, key, value), (key, value), strict=True):
            self._own(stored).view(-1, *new.shape[1:]).index_copy_(0, cells, new)

    def copy(self, block: int, prefix: Slab) -> None:
        """A shared prefix as the first tokens of an empty block: their KV in every layer, and their facts."""
        length = prefix.used[0]
        cells = torch.tensor(self.append(block, length), dtype=torch.int64, device=self.device)
        for layer, stored in prefix._store.layers.items():
            key, value = (prefix._own(t)[0, :length] for t in stored)
            self.write(layer, cells, key, value)
        self.describe(cells, prefix.stub[0, :length], prefix.position[0, :length], prefix.index[0, :length])

    def read(self, layer: int, blocks: slice | Tensor, columns: int) -> tuple[Tensor, Tensor]:
        """Keys and values [B, kv_heads, columns, head_dim]: views for a slice of blocks, copies for an index [B]."""
        key, value = (self._own(t)[:, :columns][blocks].transpose(1, 2) for t in self._store.layers[layer])
        return key, value

    @property
    def bytes(self) -> int:
        return self.documents * self.columns * self._store.bytes_per_cell


def block_width(columns: int) -> int:
    """Cells of a block that is asked to hold `columns`."""
    return -(-columns // _STEP) * _STEP


class SlabPool:
    """Slabs by width class. Freed slabs of a width are reused, so that a run does not allocate at every step.

    cells: bound of all slabs together, whether their blocks are in use or free; None: no bound.
    arena: what the slabs and prefixes lie in; each in a store of its own where it is None.
    """

    def __init__(self, device: torch.device, cells: int | None = None, arena: Arena | None = None) -> None:
        self.device, self.cells, self.arena = device, cells, arena
        self._slabs: dict[int, list[Slab]] = {}

    def fits(self, columns: int, prefix: int = 0) -> bool:
        """Whether a block of `columns` cells can be taken within the bound, and a fresh prefix of `prefix` cells before
        it. Whole slabs count, which is what a GPU allocates."""
        if self.cells is None:
            return True
        width = block_width(columns)
        slab = self._free_slab(width)
        if slab is None and self._used_cells() + width > self.cells:
            return False
        if self.arena is None or (slab is not None and not prefix):
            return True
        # No range for a block and its prefix, however many cells are free between the others: it waits. An idle slab
        # may go for the prefix.
        idle = [s.span for s in self.slabs if s.is_empty]
        stays = slab is not None and not slab.is_empty
        return self.arena.longest(idle) >= prefix + (0 if stays else width)

    def take(self, columns: int) -> tuple[Slab, int]:
        """A block of at least `columns` cells: (slab, block). Beyond the bound where it does not fit: whoever has
        nothing else in flight takes a document however long it is."""
        width = block_width(columns)
        slab = self._free_slab(width)
        if slab is None:
            # Idle slabs go first: documents come sorted by length, and those widths are done with.
            self._drop_idle()
            slab = Slab(self._documents(width), width, self.device, self.arena, at_end=True)
            self._slabs.setdefault(width, []).append(slab)
        return slab, slab.take()

    def take_prefix(self, length: int) -> Slab:
        """A slab of one block for a shared prefix. It lives as long as anybody knows it: documents read a prefix on
        that its cache has let go."""
        columns = max(1, length)
        if self.arena is None:
            slab = Slab(1, columns, self.device)
        else:
            if self.arena.longest() < columns:
                self._drop_idle()
            slab = Slab(1, columns, self.device, self.arena)
            weakref.finalize(slab, self.arena.let_go, slab.start, columns).atexit = False
        slab.take()
        return slab

    def _drop_idle(self) -> None:
        for slab in self.slabs:
            if slab.is_empty:
                slab.free()
        self._slabs = {width: [s for s in group if not s.is_empty] for width, group in self._slabs.items()}

    def _free_slab(self, width: int) -> Slab | None:
        return next((slab for slab in self._slabs.get(width, ()) if not slab.is_full), None)

    def _used_cells(self) -> int:
        """Cells of all slabs that hold a document: idle ones go before a new one comes."""
        return sum(slab.documents * slab.columns for slab in self.slabs if not slab.is_empty)

    def _documents(self, width: int) -> int:
        """Blocks of a new slab. Under a bound it takes what is left, and a share at most: documents of another width
        wait until some slab is empty, not for all of them."""
        cells = _CELLS_PER_SLAB
        if self.cells is not None:
            cells = min(cells, self.cells // _LEAST_SLABS, self.cells - self._used_cells())
            if self.arena is not None:
                cells = min(cells, self.arena.longest())
        return max(1, min(_MAX_DOCUMENTS, cells // width))

    @property
    def slabs(self) -> list[Slab]:
        return [slab for group in self._slabs.values() for slab in group]


class PrefixCache:
    """Shared prefixes as one-block slabs, least recently used out first, under a budget in bytes.

    A prefix that documents still read lives on through their own reference to it.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._prefixes: OrderedDict[Hashable, Slab] = OrderedDict()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._prefixes

    def get(self, key: Hashable) -> Slab | None:
        slab = self._prefixes.get(key)
        if slab is not None:
            self._prefixes.move_to_end(key)
        return slab

    def make_room(self, columns: int) -> None:
        """Lets prefixes go until one more of `columns` cells, which take as much as those of the others, is within the
        budget, or alone."""
        while held := list(self._prefixes.values()):
            cells, taken = sum(s.columns for s in held), sum(s.bytes for s in held)
            if taken * (cells + columns) <= self.budget * cells:
                return
            self._prefixes.popitem(last=False)

    def put(self, key: Hashable, slab: Slab) -> None:
        self._prefixes[key] = slab
