"""Units are exactly their rows whichever reader gets them in whatever order; in order they cost one pass."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from threading import Barrier

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.block import failure
from pipeline.file_rows import FileRows
from pipeline.read import UnitSource, _readers, read_unit
from pipeline.storage import Storage
from pipeline.unit_reader import UnitReader
from pipeline.units import Unit
from tests.pipeline.helpers import same, write
from tests.pipeline.messy import messy
from tests.pipeline.reads import counted_reads

STORAGE = Storage()


def units_of(path: Path, edges: Sequence[int]) -> list[Unit]:
    file = STORAGE.stat(str(path))
    return [Unit(file, start, stop) for start, stop in pairwise(edges)]


def large(path: Path, rows: int = 60_000, text: str = "x", row_group_size: int | None = None) -> pa.Table:
    """Texts that compress badly, in one row group unless another size is given."""
    rng = random.Random(text)
    table = pa.table({"id": range(rows), "title": [f"{text}{i} {rng.getrandbits(400):x}" for i in range(rows)]})
    write(path, table, row_group_size or rows)
    return table


@pytest.mark.parametrize("seed", range(8))
def test_units_of_two_files_in_any_order_are_exactly_their_rows(tmp_path: Path, seed: int) -> None:
    rng, tables, units = random.Random(seed), {}, []
    for name in ("a", "b"):
        tables[name] = messy(97, first=ord(name))
        path = write(tmp_path / f"{name}.parquet", tables[name], row_group_size=rng.choice([10, 41, 97]))
        units += units_of(path, sorted({0, 97, *rng.sample(range(97), 9)}))
    rng.shuffle(units)
    reader = UnitReader(STORAGE)
    for unit in units:
        table = tables[Path(unit.file.uri).stem]
        assert same(reader.read(unit), table.slice(unit.start, unit.rows)), str(unit)


def test_the_units_of_one_row_group_are_one_pass_over_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = large(tmp_path / "a.parquet")
    units = units_of(tmp_path / "a.parquet", range(0, 60_001, 2000))
    decoded = 0
    next_ = FileRows._next

    def counting(self: FileRows) -> pa.RecordBatch:
        nonlocal decoded
        batch = next_(self)
        decoded += batch.num_rows
        return batch

    monkeypatch.setattr(FileRows, "_next", counting)
    with counted_reads() as reads:
        reader = UnitReader(STORAGE)
        for unit in units[:20] + units[25:]:  # some are committed, and passed over
            assert reader.read(unit).equals(table.slice(unit.start, unit.rows))
    assert decoded == 60_000 and reads.files == 1
    size = units[0].file.size
    assert size < reads.bytes < 1.2 * size  # the footer twice, and what stands between pages


def test_tasks_of_one_process_share_the_pass_and_those_of_another_job_do_not(tmp_path: Path) -> None:
    table = large(tmp_path / "a.parquet", 6000)
    units = units_of(tmp_path / "a.parquet", (0, 2000, 4000, 6000))
    with counted_reads() as reads:
        for task in UnitSource(units, STORAGE).get_read_tasks(3):
            [block] = task()
            start = block.column("__hpd_row")[0].as_py()
            assert block.select(["id", "title"]).equals(table.slice(start, 2000))
    assert reads.files == 1
    for columns in (["title"], ["id"], None):
        [task] = UnitSource(units[1:2], STORAGE, columns).get_read_tasks(1)
        [block] = task()
        assert block.column_names[:-2] == (columns or ["id", "title"])
    assert _readers.reader is not None and _readers.reader.is_for(STORAGE, None)


def test_threads_of_one_process_do_not_share_a_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two jobs in one process: each step of one stands between two steps of the other."""
    tables = {name: large(tmp_path / f"{name}.parquet", 6000, name) for name in ("a", "b")}
    meeting = Barrier(2, timeout=30)
    check = UnitReader._check_version

    def meet(self: UnitReader, unit: Unit) -> None:
        meeting.wait()
        check(self, unit)

    monkeypatch.setattr(UnitReader, "_check_version", meet)

    def read_all(name: str) -> bool:
        units = units_of(tmp_path / f"{name}.parquet", (0, 1000, 2500, 6000))
        return all(read_unit(unit, STORAGE).equals(tables[name].slice(unit.start, unit.rows)) for unit in units)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(read_all, tables)) == [True, True]


def test_whole_row_groups_are_not_held_open(tmp_path: Path) -> None:
    large(tmp_path / "a.parquet", 100, row_group_size=20)
    reader = UnitReader(STORAGE)
    for unit, held in zip(units_of(tmp_path / "a.parquet", (0, 20, 60, 70, 80, 85)), (0, 0, 1, 0, 1), strict=True):
        reader.read(unit)
        assert (reader._held is not None) == bool(held), str(unit)
    reader.close()
    assert reader._held is None


def test_a_file_that_changes_behind_a_unit_fails_the_next_and_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    large(path, 6000)
    reader, units = UnitReader(STORAGE), units_of(path, (0, 2000, 6000))
    reader.read(units[0])
    other = large(tmp_path / "b.parquet", 6000, "other")
    os.replace(tmp_path / "b.parquet", path)  # the open file is still the old one
    with pytest.raises(ValueError, match="changed since it was planned"):
        reader.read(units[1])
    again = units_of(path, (0, 2000, 6000))[1]
    assert reader.read(again).equals(other.slice(2000, 4000))


def test_a_read_that_fails_is_tried_anew(tmp_path: Path) -> None:
    table = large(tmp_path / "a.parquet")
    reader, units = UnitReader(STORAGE), units_of(tmp_path / "a.parquet", (0, 5000, 40_000, 60_000))
    with counted_reads() as reads:
        reader.read(units[0])
        reads.fault = OSError("gone for now")
        with pytest.raises(OSError, match="gone for now"):
            reader.read(units[1])
        for unit in units[1:]:
            assert reader.read(unit).equals(table.slice(unit.start, unit.rows))
    assert reads.files == 2


ODD = {
    "a.b": pa.array(["dotted"] * 3),
    "a": pa.array([{"b": 1, "c": 2}] * 3),
    "title": pa.array(["lower"] * 3),
    "Title": pa.array(["upper"] * 3),
    "": pa.array(["no name"] * 3),
    "l": pa.array([[1], None, []], pa.list_(pa.int64())),
    "l.list": pa.array(["like a list's path"] * 3),
    "😀 ü": pa.array([{"x": {"y": None}}] * 3, pa.struct([("x", pa.struct([("y", pa.string())]))])),
}


@pytest.mark.parametrize("names", [[name] for name in ODD] + [["a", "title"], ["Title", "title"], ["l", "a.b"]])
def test_columns_are_read_by_their_whole_names(tmp_path: Path, names: list[str]) -> None:
    table = pa.table(ODD)
    path = write(tmp_path / "a.parquet", table)
    for start, stop in ((0, 3), (1, 2)):  # whole row groups, and a part of one
        [unit] = units_of(path, (start, stop))
        found = UnitReader(STORAGE, names).read(unit)
        assert same(found, table.select([n for n in ODD if n in names]).slice(start, stop - start))


def test_columns_that_a_file_lacks_or_its_path_has(tmp_path: Path) -> None:
    path = write(tmp_path / "size=007/a.parquet", {"id": [1, 2], "title": ["a", "b"]})
    [unit] = units_of(path, (0, 2))
    read = UnitReader(STORAGE, ["size", "title", "nowhere"]).read(unit)
    assert read.to_pylist() == [{"title": "a", "size": "007"}, {"title": "b", "size": "007"}]
    assert UnitReader(STORAGE, ["nowhere"]).read(unit).select(["id"]).num_rows == 2
    own = write(tmp_path / "size=007/b.parquet", {"id": [1], "size": [7]})
    assert UnitReader(STORAGE, ["size"]).read(units_of(own, (0, 1))[0]).to_pylist() == [{"size": 7}]


def test_few_columns_of_many_are_few_bytes(tmp_path: Path) -> None:
    wide = {f"c{i}": [os.urandom(100).hex() for _ in range(2000)] for i in range(20)}
    path = write(tmp_path / "a.parquet", wide)
    size = path.stat().st_size
    for edges in ((0, 2000), (0, 700, 2000)):
        with counted_reads() as reads:
            reader = UnitReader(STORAGE, ["c3"])
            for unit in units_of(path, edges):
                reader.read(unit)
        assert size / 20 < reads.bytes < size / 8


def test_a_corrupt_page_in_a_column_that_nobody_needs_costs_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"spoiled": [f"{i}" * 50 for i in range(1000)], "title": ["x"] * 1000})
    raw = bytearray(path.read_bytes())
    raw[100:4000] = bytes(3900)
    path.write_bytes(raw)
    units = units_of(path, (0, 1000))
    faults = []
    for columns in (None, ["title"]):
        [task] = UnitSource(units, STORAGE, columns).get_read_tasks(1)
        [block] = task()
        faults.append(failure(block))
    assert faults[0] is not None and faults[1] is None
    assert pq.ParquetFile(path).metadata.num_rows == 1000
