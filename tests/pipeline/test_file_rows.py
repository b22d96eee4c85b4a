from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import file_rows
from pipeline.equality import first_difference, shown
from pipeline.file_rows import FileRows
from tests.pipeline.helpers import write

TABLE = pa.table({"id": range(100), "a.b": [f"t{i}" for i in range(100)]})


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    with pq.ParquetWriter(folder / "x.parquet", TABLE.schema) as writer:
        for start, stop in ((0, 40), (40, 40), (40, 41), (41, 100)):
            writer.write_table(TABLE.slice(start, stop - start))
    return folder / "x.parquet"


@given(ranges=st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=5), stride=st.integers(1, 50))
def test_any_ranges_in_any_order(path: Path, ranges: list[tuple[int, int]], stride: int) -> None:
    with pytest.MonkeyPatch.context() as patch, pq.ParquetFile(path) as parquet:
        patch.setattr(file_rows, "STRIDE", stride)
        rows = FileRows(parquet)
        for start, stop in ((min(r), max(r)) for r in ranges):
            assert rows.take(start, stop).equals(TABLE.slice(start, stop - start))
        with pytest.raises(ValueError, match=r"rows 90\.\.101 of a file that has only 100"):
            rows.take(90, 101)


def test_ascending_ranges_decode_each_row_group_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    with pq.ParquetFile(path) as parquet:
        rows = FileRows(parquet)
        open_ = FileRows._open
        monkeypatch.setattr(FileRows, "_open", lambda self, row: (opened.append(row), open_(self, row))[1])
        for start in range(0, 100, 10):
            rows.take(start, start + 10)
    assert opened == [0, 40, 41]


def test_large_rows_are_decoded_few_at_a_time(tmp_path: Path) -> None:
    """A unit of a few rows in a row group of many large ones must not hold them all."""
    table = pa.table({"image": [os.urandom(2**20).hex() for _ in range(40)]})  # 80 MiB
    with pq.ParquetFile(write(tmp_path / "x.parquet", table)) as parquet:
        rows = FileRows(parquet)
        assert rows.take(35, 36).equals(table.slice(35, 1))
        assert rows._batch is not None and rows._batch.num_rows <= 16


NAN = float("nan")


@pytest.mark.parametrize(
    ("kind", "a", "b", "where"),
    [
        (pa.float64(), [1.0, NAN, None], [1.0, NAN, None], None),
        (pa.float64(), [1.0, NAN, None], [1.0, None, None], 1),
        (pa.float32(), [1.0, 0.0], [1.0, -0.0], 1),
        (pa.list_(pa.float64()), [[NAN], None, []], [[NAN], None, None], 2),
        (pa.struct([("x", pa.map_(pa.string(), pa.float64()))]), [{"x": [("k", NAN)]}], [{"x": [("k", NAN)]}], None),
        (pa.struct([("x", pa.map_(pa.string(), pa.float64()))]), [{"x": [("k", NAN)]}], [{"x": [("k", 1.0)]}], 0),
        (pa.string(), ["a"] * 99 + ["b"], ["a"] * 100, 99),
        (pa.null(), [None], [None], None),
        (pa.string(), [], [], None),
    ],
)
def test_the_first_difference(kind: pa.DataType, a: list, b: list, where: int | None) -> None:
    left, right = pa.array(a, kind), pa.array(b, kind)
    assert first_difference(left, right) == where == first_difference(right, left)
    if len(a):  # a slice of something longer
        longer = pa.concat_arrays([right[:1], right])
        assert first_difference(left, longer[1:]) == where


def test_what_cannot_be_compared_or_shown() -> None:
    with pytest.raises(ValueError, match="2 values of int64 cannot be compared with 1 of int64"):
        first_difference(pa.array([1, 2]), pa.array([1]))
    assert shown(pa.array([b"\xff"]).view(pa.string())[0]) == "b'\\xff'"
    assert shown(pa.scalar("x" * 1000)).endswith("…") and len(shown(pa.scalar("x" * 1000))) == 80
    assert "timestamp" in shown(pa.array([2**62], pa.timestamp("us"))[0])
