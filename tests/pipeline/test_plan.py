from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.fit import check_fit, check_store
from pipeline.job import JobError, OutputOptions, Pool, UnitCaps
from pipeline.lease import PACE
from pipeline.plan import make_plan
from pipeline.prepare import prepare
from pipeline.record import SEGMENT_UNITS
from pipeline.storage import Storage
from tests.pipeline.fakes import TitleReader
from tests.pipeline.helpers import job, shards, write

CAPS = UnitCaps(rows=20)


def plan(*inputs: Path, limit: int | None = None):
    return make_plan([str(i) for i in inputs], Storage(), CAPS, limit)


def test_files_come_in_order_and_once(tmp_path: Path) -> None:
    a, b = shards(tmp_path / "a", 2), shards(tmp_path / "b", 1)
    made = plan(b, a, a / "part-0001.parquet")
    assert [f.uri for f in made.files] == [
        str(b / "part-0000.parquet"),
        *(str(a / f"part-000{i}.parquet") for i in (0, 1)),
    ]
    assert made.rows == 120 and len(made.units) == 9
    assert [u.file for u in made.units] == [f for f in made.files for _ in range(3)]


def test_the_expected_time_of_a_unit_caps_its_rows() -> None:
    assert UnitCaps(rows=10_000, seconds=60, documents_per_second=2.5).max_rows == 150


def test_footers_are_read_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, meeting, read = shards(tmp_path / "in", 16), threading.Barrier(16), pq.ParquetFile

    def together(*given: Any, **how: Any) -> pq.ParquetFile:
        meeting.wait(60)  # no footer is read before sixteen are being read
        return read(*given, **how)

    monkeypatch.setattr("pipeline.plan.pq.ParquetFile", together)
    assert plan(folder).rows == 16 * 40


def test_units_segments_and_leases_have_the_sizes_that_the_pages_tell() -> None:
    """docs/scale.md and docs/reliability.md calculate with them."""
    assert (UnitCaps().rows, UnitCaps().bytes, SEGMENT_UNITS) == (10_000, 64 * 2**20, 1000)
    assert (PACE.seconds, PACE.renew) == (30.0, 10.0)


def test_a_limit_leaves_the_schema_and_the_files_alone(tmp_path: Path) -> None:
    shards(tmp_path / "in", 2)
    write(tmp_path / "in/z.parquet", {"id": [1], "title": ["x"], "later": [1.5]})
    made = plan(tmp_path / "in", limit=17)
    assert made.rows == 17 and len(made.units) == 2 and len(made.files) == 3
    assert made.schema.names == ["id", "title", "later"]


def test_files_that_are_not_parquet_are_named_and_the_others_planned(tmp_path: Path) -> None:
    folder = shards(tmp_path / "in", 1)
    good = (folder / "part-0000.parquet").read_bytes()
    (folder / "empty.parquet").write_bytes(b"")
    (folder / "text.parquet").write_bytes(b"hello, this is no Parquet file")
    (folder / "truncated.parquet").write_bytes(good[: len(good) // 2])
    made = plan(folder)
    assert made.rows == 40
    assert sorted(Path(b.file.uri).name for b in made.bad) == ["empty.parquet", "text.parquet", "truncated.parquet"]
    assert "0 bytes" in str(made.bad[0]) and str(folder) in str(made.bad[0])
    for name in ("part-0000", "text", "truncated"):
        (folder / f"{name}.parquet").unlink()
    with pytest.raises(JobError, match=r"no input file can be read.*empty\.parquet"):
        plan(folder)


def test_a_clash_of_schemas_names_both_files(tmp_path: Path) -> None:
    a = write(tmp_path / "a.parquet", {"id": [1], "title": ["x"]})
    b = write(tmp_path / "b.parquet", {"id": ["1"], "title": ["x"]})
    with pytest.raises(JobError, match=rf"'id' is int64 in {a} but string in {b}"):
        plan(tmp_path)


def test_files_without_rows_are_units_too(tmp_path: Path) -> None:
    schema = pa.schema([("title", pa.string())])
    write(tmp_path / "a.parquet", schema.empty_table())
    write(tmp_path / "b.parquet", pa.table({"title": pa.nulls(0)}))
    made = plan(tmp_path)
    assert [(u.start, u.stop) for u in made.units] == [(0, 0), (0, 0)]
    assert made.schema == schema


@pytest.mark.parametrize(
    ("table", "changes", "message"),
    [
        ({"title": ["x"], "brand": ["y"]}, {}, "input column 'brand' and the attribute 'Brand'"),
        (
            {"title": ["x"], "hpd_status": ["y"]},
            {},
            "'hpd_status' and the row column.*looks like an output.*run.json.*output.keep",
        ),
        ({"title": ["x"], "Brand": ["y"]}, {}, "input column 'Brand' and the attribute 'Brand' would be"),
        ({"title": ["x"], "__hpd_row": ["y"]}, {}, "reserved"),
        ({"title": ["x"]}, {"reader": TitleReader("name")}, "column 'name' is not in the input"),
        ({"title": ["x"]}, {"output_options": OutputOptions(columns=("id",))}, "'id' is to be kept"),
        ({"title": ["x"]}, {"output": "in/out"}, "lies inside the input"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: dict, changes: dict, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "in/a.parquet", table)
    with pytest.raises(JobError, match=message):
        prepare(job(tmp_path, tmp_path / "in", **changes))
    assert not (tmp_path / "out").exists()


def test_a_glob_that_would_find_the_output_is_refused_before_the_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the run could be begun, but never continued."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "cat" / "a.parquet", {"title": ["x"]})
    with pytest.raises(JobError, match=r"finds what is written to the output"):
        prepare(job(tmp_path, Path("cat/**/*.parquet"), output="cat/new"))
    prepare(job(tmp_path, Path("cat/*.parquet"), output="cat/new"))


@pytest.mark.parametrize("inputs", ["cat/data", "cat/data/a.parquet", "*/data/*.parquet", "link", "cat/other"])
def test_an_input_inside_the_output_is_refused_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inputs: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("data", "other"):
        write(tmp_path / "cat" / folder / "a.parquet", {"title": ["x"]})
    (tmp_path / "link").symlink_to(tmp_path / "cat/data")
    for begun in (False, True):  # a run.json from whatever run makes the file no less somebody's input
        with pytest.raises(
            JobError, match=r"finds what is written to .*/cat" if "*" in inputs else rf"{inputs} lies inside"
        ):
            prepare(job(tmp_path, Path(inputs), output="cat"))
        assert (tmp_path / "cat/data/a.parquet").exists() and begun == (tmp_path / "cat/run.json").exists()
        (tmp_path / "cat/run.json").write_text("{}")


def test_an_output_that_holds_somebody_elses_files_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", {"title": ["x"]})
    mine = write(tmp_path / "out/data/mine.parquet", {"a": [1]})
    with pytest.raises(JobError, match=rf"no run.json.*{mine}"):
        prepare(job(tmp_path, tmp_path / "in"))
    mine.rename(tmp_path / "out/mine.parquet")  # outside of data/ nothing is ever removed
    prepare(job(tmp_path, tmp_path / "in"))


def test_a_pool_that_does_not_fit_is_refused_with_the_numbers() -> None:
    check_fit(Pool(cpus=1.0), cpus=2, gpus=0)
    with pytest.raises(JobError, match=r"2 actors x 1 CPUs \+ 0.5 .* \+ 0.25 .* = 2.75 CPUs, and there are 2"):
        check_fit(Pool(cpus=1.0, max_size=2), cpus=2, gpus=0)
    with pytest.raises(JobError, match=r"1 actors x 2 GPUs = 2 GPUs, and there are 1"):
        check_fit(Pool(cpus=1.0, gpus=2), cpus=8, gpus=1)
    with pytest.raises(JobError, match="must differ"):
        Pool(cpus=0.5)
    with pytest.raises(JobError, match="stall_seconds"):
        Pool(stall_seconds=float("nan"))


def test_units_that_do_not_fit_the_object_store_are_refused_with_the_numbers() -> None:
    check_store(Pool(max_size=2), 25 * 2**20, 200 * 2**20)
    message = r"2 actors x 4 units x 25\.5 MiB \(the largest\) = 204\.0 MiB, and it has 200\.0 MiB\. Lower units\.bytes"
    with pytest.raises(JobError, match=message):
        check_store(Pool(max_size=2), int(25.5 * 2**20), 200 * 2**20)


def test_several_gpus_of_an_actor_are_whole_and_hold_one_model() -> None:
    assert Pool(gpus=2).model_device == "spread"
    assert (Pool(gpus=1).model_device, Pool(gpus=0.5, device="cuda").model_device) == ("auto", "cuda")
    with pytest.raises(JobError, match=r"gpus 1\.5 of one actor, device auto: a model is spread over a whole number"):
        Pool(gpus=1.5)
    with pytest.raises(JobError, match="gpus 2 of one actor, device cpu"):
        Pool(gpus=2, device="cpu")
    check_fit(Pool(cpus=1.0, max_size=2, gpus=4), cpus=8, gpus=8)
    with pytest.raises(JobError, match="2 actors x 4 GPUs = 8 GPUs, and there are 7"):
        check_fit(Pool(cpus=1.0, max_size=2, gpus=4), cpus=8, gpus=7)
