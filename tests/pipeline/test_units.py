from __future__ import annotations

import random
from itertools import pairwise

import pytest

from pipeline.units import InputFile, RowGroup, Unit, cut, first_rows, uncovered

FILE = InputFile("/in/part 1.parquet", 1000, "etag-1")
MIB = 2**20


def ranges(units: list[Unit]) -> list[tuple[int, int]]:
    return [(u.start, u.stop) for u in units]


def test_whole_row_groups_are_joined_while_they_fit() -> None:
    units = cut(FILE, [RowGroup(40, 10), RowGroup(40, 10), RowGroup(40, 10)], max_rows=100, max_bytes=MIB)
    assert ranges(units) == [(0, 80), (80, 120)]
    assert [u.bytes for u in units] == [20, 10]
    assert ranges(cut(FILE, [RowGroup(50, 10), RowGroup(51, 10)], max_rows=100, max_bytes=MIB)) == [(0, 50), (50, 101)]
    assert ranges(cut(FILE, [RowGroup(5, 50), RowGroup(5, 51)], max_rows=100, max_bytes=100)) == [(0, 5), (5, 10)]


def test_a_large_row_group_is_cut_evenly_inside() -> None:
    units = cut(FILE, [RowGroup(10, 10), RowGroup(250, 250), RowGroup(10, 10)], max_rows=100, max_bytes=MIB)
    assert ranges(units) == [(0, 10), (10, 93), (93, 176), (176, 260), (260, 270)]


def test_the_cap_in_bytes_cuts_too_and_a_row_is_never_split() -> None:
    assert ranges(cut(FILE, [RowGroup(4, 400)], max_rows=100, max_bytes=100)) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert ranges(cut(FILE, [RowGroup(2, 400)], max_rows=100, max_bytes=100)) == [(0, 1), (1, 2)]
    assert ranges(cut(FILE, [RowGroup(5, 60), RowGroup(5, 60)], max_rows=100, max_bytes=100)) == [(0, 5), (5, 10)]


@pytest.mark.parametrize("seed", range(20))
def test_units_cover_every_row_once_and_keep_the_caps(seed: int) -> None:
    rng = random.Random(seed)
    groups = [RowGroup(rng.choice([0, 1, 7, 97, 130, 191]), rng.randrange(1, 500)) for _ in range(rng.randrange(6))]
    max_rows, max_bytes = rng.choice([1, 3, 50, 1000]), rng.choice([10, 100, 10_000])
    units = cut(FILE, groups, max_rows=max_rows, max_bytes=max_bytes)
    total = sum(g.rows for g in groups)
    if total == 0:
        assert ranges(units) == [(0, 0)]
    else:
        assert units[0].start == 0 and units[-1].stop == total
        assert all(a.stop == b.start for a, b in pairwise(units))
        assert all(0 < u.rows <= max_rows for u in units)


def test_a_file_without_row_groups_is_one_empty_unit() -> None:
    assert ranges(cut(FILE, [], max_rows=10, max_bytes=10)) == [(0, 0)]


def test_a_limit_narrows_the_last_unit_and_leaves_the_rest() -> None:
    units = cut(FILE, [RowGroup(10, 10)] * 3, max_rows=10, max_bytes=MIB)
    assert ranges(first_rows(units, 15)) == [(0, 10), (10, 15)]
    assert ranges(first_rows(units, 10)) == [(0, 10)]
    assert first_rows(units, None) == units
    assert ranges(first_rows(units, 99)) == ranges(units)


def test_committed_rows_are_taken_out_of_a_unit() -> None:
    unit = Unit(FILE, 100, 200, 50)
    assert uncovered(unit, []) == [unit]
    assert uncovered(unit, [(0, 100), (200, 300)]) == [unit]
    assert uncovered(unit, [(100, 200)]) == []
    assert ranges(uncovered(unit, [(150, 160), (90, 110)])) == [(110, 150), (160, 200)]
    assert ranges(uncovered(unit, [(90, 199), (120, 130)])) == [(199, 200)]
    empty = Unit(FILE, 0, 0)
    assert uncovered(empty, []) == [empty] and uncovered(empty, [(0, 0)]) == []


def test_identity_is_where_the_rows_come_from() -> None:
    unit = Unit(FILE, 0, 10)
    other_version = Unit(InputFile(FILE.uri, 1000, "etag-2"), 0, 10)
    assert unit.name == other_version.name
    names = {
        unit.object_name("f1"),
        unit.object_name("f2"),
        other_version.object_name("f1"),
        Unit(FILE, 0, 11).object_name("f1"),
        Unit(InputFile("/other/part 1.parquet", 1000, "etag-1"), 0, 10).object_name("f1"),
    }
    assert len(names) == 5
    assert Unit(FILE, 0, 10, bytes=77).object_name("f1") == unit.object_name("f1")
    assert Unit(FILE, 9, 10).name < Unit(FILE, 10, 11).name < Unit(FILE, 100, 101).name
    assert " " not in unit.name and unit.name.startswith("part_1-")


def test_a_unit_survives_json_and_cutting() -> None:
    unit = Unit(InputFile("s3://b/käse/x.parquet", 3, "e"), 4, 9, 100)
    assert Unit.from_json(unit.to_json()) == unit
    assert ranges(unit.cut_at([6])) == [(4, 6), (6, 9)]
    assert ranges(unit.cut_at([8, 5, 4, 0, 5, 9, 99])) == [(4, 5), (5, 8), (8, 9)]
    assert unit.cut_at([4, 9]) == [unit]
    with pytest.raises(ValueError, match="not a range"):
        Unit(FILE, 2, 1)
    with pytest.raises(ValueError, match="one row"):
        Unit(FILE, 0, 2, poison="x")
