"""Cells that all slabs share: ranges never overlap, come back, and come back clean."""

from __future__ import annotations

import gc
import random

import pytest
import torch

from hpd_core.arena import NEVER, SINK, Arena, joined
from hpd_core.cache import Slab, SlabPool

CPU = torch.device("cpu")


def cells_of(slabs: list[Slab]) -> list[int]:
    return [c for slab in slabs for c in range(*slab.span)]


def test_ranges_never_overlap_and_are_merged_when_they_come_back():
    rng, arena, slabs = random.Random(0), Arena(300, CPU), list[Slab]()
    for _ in range(300):
        if slabs and rng.random() < 0.5:
            slabs.pop(rng.randrange(len(slabs))).free()
        else:
            slabs.append(Slab(rng.randint(1, 3), rng.randint(1, 40), CPU, arena, at_end=rng.random() < 0.3))
        cells = cells_of(slabs)
        assert len(set(cells)) == len(cells) and min(cells, default=2) > SINK and max(cells, default=0) < arena.cells
    assert arena.version > 0 and len(arena.position) == arena.cells
    for slab in slabs:
        slab.free()
    assert arena._free == [(SINK + 1, arena.cells)]


def test_a_prefix_lives_as_long_as_anybody_knows_it():
    arena = Arena(100, CPU)
    pool = SlabPool(CPU, 100, arena)
    slab = pool.take_prefix(30)
    assert slab.span == (2, 32)
    reader = [slab]
    del slab
    gc.collect()
    other = pool.take_prefix(30)
    assert other.start == 32 and arena.longest() == 40
    reader.clear()
    assert arena.longest() == 40 and pool.take_prefix(30).start == 2
    assert arena.take(5, at_end=True) == 97  # as slabs are


def test_what_is_let_go_in_the_middle_of_something_is_free_afterwards():
    arena = Arena(50, CPU)
    start = arena.take(50)
    arena.let_go(start, 20)
    assert arena._free == [] and arena.longest() == 20 and arena.take(20) == start and arena.version == 0


def test_ranges_are_joined_where_they_touch():
    assert joined([(5, 9), (0, 2), (9, 12), (2, 2), (3, 5)]) == [(0, 2), (3, 12)]
    arena = Arena(30, CPU)
    for _ in range(3):
        arena.take(10)
    arena.give_back(2, 10)
    assert arena.longest() == 10 and arena.longest([(22, 32)]) == 10 and arena.longest([(12, 22)]) == 20


@pytest.mark.parametrize(("is_bound", "cells"), [(False, 112), (True, 110)])
def test_growing_moves_what_is_there_and_keeps_it(is_bound, cells):
    arena = Arena(10, CPU, is_bound=is_bound)
    slab = Slab(2, 4, CPU, arena)
    slab.take()
    written = torch.tensor(slab.append(0, 3))
    slab.describe(written, written, written + 10, written + 20)
    key, value = torch.rand(3, 2, 5), torch.rand(3, 2, 7)
    slab.write(0, written, key, value)
    other = Slab(1, 100, CPU, arena)
    assert arena.version == 1 and other.start == 10 and arena.cells == cells  # two at the end were free
    found = slab.read(0, slice(0, 1), 3)
    assert torch.equal(found[0][0], key.transpose(0, 1)) and torch.equal(found[1][0], value.transpose(0, 1))
    assert slab.position[0].tolist() == [10, 11, 12, NEVER] and slab.index[0, 2] == 22
    other.write(0, torch.tensor([99]), key[:1], value[:1])
    assert torch.equal(other.read(0, slice(0, 1), 100)[0][0, :, 99], key[0])


def test_without_a_bound_it_grows_by_what_it_has():
    arena = Arena(98, CPU)
    Slab(1, 98, CPU, arena), Slab(1, 5, CPU, arena)
    assert arena.cells == 200


def test_a_range_comes_back_zero_and_free():
    arena = Arena(10, CPU)
    for _ in range(2):
        slab = Slab(1, 5, CPU, arena)
        cells = torch.arange(5)
        assert slab.start == 2 and slab.position.eq(NEVER).all()
        slab.describe(cells, cells, cells, cells)
        slab.write(0, cells, torch.full((5, 1, 2), float("nan")), torch.full((5, 1, 2), float("nan")))
        assert slab.read(0, slice(0, 1), 5)[0].isnan().all()
        slab.free()
    arena.take(5)
    assert not any(t.isnan().any() for t in arena.layers[0])
    assert arena.stub.eq(-1).all() and arena.index.eq(0).all()


def test_an_idle_slab_goes_whoever_still_knows_it():
    """A decoding step's own variables know the slabs of the one before."""
    arena = Arena(4096, CPU, is_bound=True)
    pool = SlabPool(CPU, 4096, arena)
    known = [pool.take(100)]
    assert known[0][0].span[1] == arena.cells
    for slab, block in known:
        slab.release(block)
    known.append(pool.take(4000))  # of another width: there is room for one of them
    assert pool.slabs == [known[1][0]] and arena.version == 0


@pytest.mark.parametrize(("bound", "lengths"), [(4096, (0, 0, 0, 40, 90)), (1500, (0, 0, 150, 350))])
def test_a_bounded_arena_never_grows_whatever_widths_and_prefixes_come_and_go(bound, lengths):
    rng, most, waited = random.Random(3), 0, 0
    arena = Arena(bound + 200, CPU, is_bound=True)
    pool, taken, prefixes = SlabPool(CPU, bound, arena), list[tuple[Slab, int]](), list[Slab]()
    for _ in range(3000):
        columns, length = rng.choice([10, 64, 65, 300, 900]), rng.choice(lengths)
        if rng.random() < 0.6:
            if pool.fits(columns, length):
                if length:
                    prefixes.append(pool.take_prefix(length))
                taken.append(pool.take(columns))
            else:
                waited += pool.fits(columns)
        elif taken:
            slab, block = taken.pop(rng.randrange(len(taken)))
            slab.release(block)
            prefixes = prefixes[-rng.randint(1, 6) :] if rng.random() < 0.5 else []
        cells = cells_of([*pool.slabs, *prefixes])
        assert len(set(cells)) == len(cells) and arena.version == 0
        most = max(most, sum(slab.columns for slab, _ in taken))
    assert most > bound * 0.7 and waited > 0  # and it is made use of


@pytest.mark.parametrize("cells", [0, 1, 2])
def test_void_and_sink_are_always_there(cells):
    assert Arena(cells, CPU).take(1) == 2
