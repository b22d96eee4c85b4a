"""Cells that all slabs share: ranges never overlap, come back, and come back clean."""

from __future__ import annotations

import gc
import random

import pytest
import torch

from hpd_core.arena import NEVER, SINK, Arena
from hpd_core.cache import Slab, SlabPool

CPU = torch.device("cpu")


def held(slab: Slab) -> range:
    return range(slab.start, slab.start + slab.documents * slab.columns)


def test_ranges_never_overlap_and_are_merged_when_they_come_back():
    rng, arena, slabs = random.Random(0), Arena(300, CPU), list[Slab]()
    for _ in range(300):
        if slabs and rng.random() < 0.5:
            slabs.pop(rng.randrange(len(slabs)))
        else:
            slabs.append(Slab(rng.randint(1, 3), rng.randint(1, 40), CPU, arena))
        cells = [c for slab in slabs for c in held(slab)]
        assert len(set(cells)) == len(cells) and min(cells, default=2) > SINK and max(cells, default=0) < arena.cells
    assert arena.version > 0 and len(arena.position) == arena.cells
    slabs.clear()
    assert arena._free == [(SINK + 1, arena.cells)]


def test_a_range_lives_as_long_as_anybody_knows_its_slab():
    arena = Arena(100, CPU)
    slab = Slab(1, 30, CPU, arena)
    reader = [slab]
    del slab
    gc.collect()
    assert Slab(1, 30, CPU, arena).start == 32
    reader.clear()
    assert Slab(1, 30, CPU, arena).start == 2


def test_growing_moves_what_is_there_and_keeps_it():
    arena = Arena(12, CPU)
    slab = Slab(2, 4, CPU, arena)
    slab.take()
    cells = torch.tensor(slab.append(0, 3))
    slab.describe(cells, cells, cells + 10, cells + 20)
    key, value = torch.rand(3, 2, 5), torch.rand(3, 2, 7)
    slab.write(0, cells, key, value)
    other = Slab(1, 100, CPU, arena)
    assert arena.version == 1 and other.start == 10
    found = slab.read(0, slice(0, 1), 3)
    assert torch.equal(found[0][0], key.transpose(0, 1)) and torch.equal(found[1][0], value.transpose(0, 1))
    assert slab.position[0].tolist() == [10, 11, 12, NEVER] and slab.index[0, 2] == 22
    other.write(0, torch.tensor([99]), key[:1], value[:1])
    assert torch.equal(other.read(0, slice(0, 1), 100)[0][0, :, 99], key[0])


def test_a_range_comes_back_zero_and_free():
    arena = Arena(12, CPU)
    for _ in range(2):
        slab = Slab(1, 5, CPU, arena)
        cells = torch.arange(5)
        assert slab.start == 2 and slab.position.eq(NEVER).all()
        slab.describe(cells, cells, cells, cells)
        slab.write(0, cells, torch.full((5, 1, 2), float("nan")), torch.full((5, 1, 2), float("nan")))
        assert slab.read(0, slice(0, 1), 5)[0].isnan().all()
        del slab
    arena.take(5)
    assert not any(t.isnan().any() for t in arena.layers[0])
    assert arena.stub.eq(-1).all() and arena.index.eq(0).all()


def test_a_pool_takes_and_drops_slabs_of_an_arena():
    arena = Arena(64, CPU)
    pool = SlabPool(CPU, 4096, arena)
    slab, block = pool.take(100)
    slab.release(block)
    del slab
    first = {s.start for s in pool.slabs}
    pool.take(200)  # the idle slab of another width goes first, and its cells with it
    assert len(pool.slabs) == 1 and {s.start for s in pool.slabs} == first == {2}


@pytest.mark.parametrize("cells", [0, 1, 2])
def test_void_and_sink_are_always_there(cells):
    assert Arena(cells, CPU).take(1) == 2
