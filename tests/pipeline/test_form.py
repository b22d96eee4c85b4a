"""Names, types and folders of an output that others read: what is stored for Athena and Hive, what is refused and why,
folders that mirror the input's, and the list of files that other engines follow."""

from __future__ import annotations

import datetime as dt
import os
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

import pipeline.drive
from hpd_core.schema import Attribute, Schema
from pipeline.compact import compact
from pipeline.findings import OutputVerdict, Verification
from pipeline.form import cast, stored_form
from pipeline.job import JobError, JobSpec, OutputOptions
from pipeline.manifest import OutputFolder
from pipeline.partitions import _differs
from pipeline.prepare import prepare
from pipeline.run import run
from pipeline.storage import Storage
from pipeline.symlinks import write as write_symlinks
from pipeline.units import InputFile
from pipeline.verify import verify
from tests.pipeline.helpers import inline, job, write

ATHENA, HIVE = OutputOptions(profile="athena"), OutputOptions(layout="hive")


@pytest.fixture(autouse=True)
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline.drive, "drive", inline)


def check(tmp_path: Path) -> Verification:
    return verify(OutputFolder(str(tmp_path / "out"), Storage()), Storage())


def awkward(rows: int = 7) -> pa.Table:
    """What Athena reads only under other names and types."""

    def column(value: object, kind: pa.DataType) -> pa.Array:
        return pa.array([None if i % 3 == 2 else value for i in range(rows)], kind)

    moment = dt.datetime(2024, 3, 31, 1, 30, 0, 123456)
    return pa.table(
        {
            "title": [f"item {i}" for i in range(rows)],
            "Product_ID": column(2**53 + 1, pa.int64()),
            "u8": column(255, pa.uint8()),
            "u32": column(2**32 - 1, pa.uint32()),
            "half": column(1.5, pa.float16()),
            "nanos": column(1_700_000_000_123_456_789, pa.timestamp("ns", "Europe/Berlin")),
            "micros": column(moment, pa.timestamp("us")),
            "exact": column(Decimal("1.25"), pa.decimal256(38, 2)),
            "code": column(b"\0\1", pa.binary(2)),
            "large": column("x", pa.large_string()),
            "never": pa.nulls(rows),
            "size": column([1.5, 2.5], pa.list_(pa.float32(), 2)),
            "Offers": column(
                [{"Seller": "x", "At": moment}],
                pa.list_(pa.struct([("Seller", pa.string()), ("At", pa.timestamp("ns"))])),
            ),
            "facts": column([("k", 7)], pa.map_(pa.string(), pa.uint16())),
        }
    )  # fmt: skip


def test_names_and_types_are_those_that_athena_reads(tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", awkward())
    assert run(job(tmp_path, tmp_path / "in", output_options=ATHENA)).complete
    [path] = (tmp_path / "out/data").iterdir()
    table = pq.read_table(path)
    wanted = {
        "product_id": "int64", "u8": "int16", "u32": "int64", "half": "float", "micros": "timestamp[us]",
        "nanos": "timestamp[us, tz=Europe/Berlin]", "exact": "decimal128(38, 2)", "code": "binary", "never": "string",
        "brand": "string", "hpd_status": "string",
    }  # fmt: skip
    assert {name: str(table.schema.field(name).type) for name in wanted} == wanted
    assert [f.name for f in table.schema.field("offers").type.value_type] == ["seller", "at"]
    assert table.column("nanos").cast(pa.int64()).to_pylist()[:2] == [1_700_000_000_123_456] * 2
    assert table.column("offers").to_pylist()[0] == [{"seller": "x", "at": dt.datetime(2024, 3, 31, 1, 30, 0, 123456)}]
    assert table.column("facts").to_pylist()[0] == [("k", 7)] and table.column("u32").to_pylist()[0] == 2**32 - 1
    result = check(tmp_path)
    assert result.findings == () and result.extent.rows_compared == 7
    compact(OutputFolder(str(tmp_path / "out"), Storage()), most=2**30)
    assert check(tmp_path).verdict is OutputVerdict.VERIFIED
    again = run(job(tmp_path, tmp_path / "in", output_options=ATHENA))
    assert again.complete and again.model_calls == 0


def test_a_renamed_column_that_differs_is_seen(tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", awkward())
    run(job(tmp_path, tmp_path / "in", output_options=ATHENA))
    stat = os.stat(tmp_path / "in/a.parquet")
    table = awkward()
    table = table.set_column(1, "Product_ID", pa.array([None] * 7, pa.int64()))
    write(tmp_path / "in/a.parquet", table)
    os.utime(tmp_path / "in/a.parquet", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert any(f.column == "product_id" for f in check(tmp_path).findings)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"big": pa.array([1], pa.uint64())}, "column 'big' is uint64, which readers of Hive tables lack"),
        ({"at": pa.array([1], pa.time64("us"))}, "column 'at' is time64"),
        ({"took": pa.array([1], pa.duration("us"))}, "column 'took' is duration"),
        ({"sum": pa.array([1], pa.decimal256(70, 2))}, "column 'sum' is decimal256"),
        ({"Größe": ["x"]}, "column 'Größe': a name there has only a to z"),
        ({"a.b": ["x"]}, "column 'a.b': a name there"),
        ({"1st": ["x"]}, "column '1st': a name there"),
        ({"ID": [1], "id": [1]}, "the columns 'ID' and 'id' would both be 'id'"),
        ({"o": pa.array([[{"a b": 1}]])}, "column 'o', its items, its field 'a b': a name there"),
        ({"o": pa.array([{"x": 1, "X": 2}])}, "column 'o': two of its fields differ in case alone"),
        ({"m": pa.array([[("k", 2**63)]], pa.map_(pa.string(), pa.uint64()))}, "column 'm', its values is uint64"),
    ],
)
def test_what_athena_cannot_read_is_refused_before_the_start(
    tmp_path: Path, columns: dict[str, Any], message: str
) -> None:
    write(tmp_path / "in/a.parquet", {"title": ["x"], **columns})
    with pytest.raises(JobError, match=r"output\.profile athena") as e:
        prepare(job(tmp_path, tmp_path / "in", output_options=ATHENA))
    assert message in str(e.value)
    prepare(job(tmp_path, tmp_path / "in", output_options=OutputOptions(columns=("title",), profile="athena")))
    prepare(job(tmp_path, tmp_path / "in"))


def test_an_attribute_of_another_name_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", {"title": ["x"]})
    schemas = (Schema("product", (Attribute("Brand", column="Brand"),)),)
    with pytest.raises(JobError, match="set 'column' of the attribute 'Brand' to 'brand'"):
        prepare(job(tmp_path, tmp_path / "in", output_options=ATHENA, schemas=schemas))


def test_times_are_cut_and_never_overflow_in_silence() -> None:
    nanos = pa.chunked_array([pa.array([1_999, -1_999, None], pa.timestamp("ns"))])
    assert cast(nanos, pa.timestamp("us")).cast(pa.int64()).to_pylist()[2] is None
    assert cast(nanos, pa.timestamp("us"))[0].value == 1
    with pytest.raises(pa.ArrowInvalid):
        cast(pa.chunked_array([pa.array([2**62], pa.timestamp("s"))]), pa.timestamp("ms"))
    nested = pa.chunked_array([pa.array([[2**62]], pa.list_(pa.timestamp("s")))])
    with pytest.raises(pa.ArrowInvalid):
        cast(nested, pa.list_(pa.timestamp("ms")))


def test_options_are_checked_and_old_fingerprints_stay() -> None:
    old = {"columns": None, "confidence": False, "statuses": False, "raw": True, "spans": False}
    assert OutputOptions(raw=True).facts() == old
    assert HIVE.facts()["layout"] == "hive" and ATHENA.facts()["profile"] == "athena"
    for wrong in ({"layout": "deep"}, {"profile": "spark"}):
        with pytest.raises(JobError, match=next(iter(wrong))):
            OutputOptions(**wrong)  # type: ignore[arg-type]


def partitioned(tmp_path: Path, second: str = "colour=__HIVE_DEFAULT_PARTITION__/size=7") -> JobSpec:
    for folder, start in (("colour=light%2Fblue/size=007", 0), (second, 25)):
        table = {"id": list(range(start, start + 25)), "title": [f"t {i}" for i in range(start, start + 25)]}
        write(tmp_path / f"in/{folder}/part-0.parquet", table)
    return job(tmp_path, tmp_path / "in", output_options=HIVE)


def test_hive_folders_are_those_of_the_input(tmp_path: Path) -> None:
    assert run(partitioned(tmp_path)).complete
    paths = list((tmp_path / "out/data").rglob("*.parquet"))
    folders = {path.parent.relative_to(tmp_path / "out/data").as_posix() for path in paths}
    assert folders == {"colour=light%2Fblue/size=007", "colour=__HIVE_DEFAULT_PARTITION__/size=7"}
    assert all(not {"colour", "size"} & set(pq.read_schema(path).names) for path in paths)
    partitioning = pa.dataset.partitioning(pa.schema([("colour", pa.string()), ("size", pa.string())]), flavor="hive")
    table = pa.dataset.dataset(tmp_path / "out/data", partitioning=partitioning).to_table().sort_by("id")
    assert table.column("id").to_pylist() == list(range(50))
    assert table.column("colour").to_pylist() == ["light/blue"] * 25 + [None] * 25
    assert check(tmp_path).findings == ()
    again = run(partitioned(tmp_path))
    assert (again.complete and again.model_calls == 0) or again.rows_dropped  # the inputs were written again


def test_a_hive_output_is_merged_within_its_folders_and_goes_on(tmp_path: Path) -> None:
    spec = partitioned(tmp_path)
    run(spec)
    assert compact(OutputFolder(str(tmp_path / "out"), Storage()), most=2**30).files_after == 2
    assert check(tmp_path).findings == () and run(spec).model_calls == 0
    os.utime(next((tmp_path / "in/colour=light%2Fblue").rglob("*.parquet")), ns=(1, 1))
    write(tmp_path / "in/colour=light%2Fblue/size=007/part-1.parquet", {"id": [99], "title": ["more"]})
    assert run(spec).rows_in == 51 and check(tmp_path).findings == ()


def test_a_unit_in_another_folder_than_its_inputs_is_named(tmp_path: Path) -> None:
    run(partitioned(tmp_path))
    output = OutputFolder(str(tmp_path / "out"), Storage())
    listing = output.read_json("_manifest/job.json")
    assert listing is not None
    old = listing["objects"][0]["file"]
    new = f"colour=red/{old.rpartition('/')[2]}"
    for path in ("_manifest/job.json", f"_manifest/units/{old.rpartition('/')[2]}.json"):
        text = (tmp_path / "out" / path).read_text()
        (tmp_path / "out" / path).write_text(text.replace(old, new))
    (tmp_path / f"out/data/{new}.parquet").parent.mkdir()
    os.rename(tmp_path / f"out/data/{old}.parquet", tmp_path / f"out/data/{new}.parquet")
    assert any("has its data in the folder 'colour=red'" in f.message for f in check(tmp_path).findings)


def test_a_layout_that_cannot_be_mirrored_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"lies in folders of \['colour', 'size'\].*in folders of \['colour'\]"):
        prepare(partitioned(tmp_path, "colour=red"))
    write(tmp_path / "flat/a.parquet", {"title": ["x"]})
    with pytest.raises(JobError, match="no input file lies in a folder like colour=red"):
        prepare(job(tmp_path, tmp_path / "flat", output_options=HIVE))
    write(tmp_path / "both/size=7/a.parquet", {"title": ["x"], "size": [7]})
    with pytest.raises(JobError, match="the input column 'size' is int64 in a file and the name of a folder"):
        prepare(job(tmp_path, tmp_path / "both", output_options=HIVE))


@pytest.mark.parametrize(
    ("folder", "values", "is_known"),
    [
        ("size=7", ["7", "8"], True),
        ("size=7", ["8", "8"], True),
        ("size=7", ["7", None], True),
        ("size=7", [None, None], True),
        ("size=__HIVE_DEFAULT_PARTITION__", ["7", None], True),
        ("size=7", ["", "8"], False),  # the least may be the beginning of a longer one, and so be "7"
        ("size=7", ["7", "7"], None),
        ("size=__HIVE_DEFAULT_PARTITION__", [None, None], None),
        (f"size={'7' * 200}", ["7" * 200] * 2, None),
        ("size=light%2Fblue", ["light/blue"] * 2, None),
    ],
)
def test_a_column_that_contradicts_its_folder_is_refused_where_the_footer_tells_and_else_fails_its_unit(
    tmp_path: Path, folder: str, values: list[str | None], is_known: bool | None
) -> None:
    """is_known: None where there is no contradiction."""
    table = {"title": ["x", "y"], "size": pa.array(values, pa.string())}
    write(tmp_path / f"in/{folder}/a.parquet", table)
    spec = job(tmp_path, tmp_path / "in", output_options=HIVE)
    if is_known:
        with pytest.raises(JobError, match=r"layout hive: .*a\.parquet: its column 'size' does not hold"):
            prepare(spec)
        prepare(job(tmp_path, tmp_path / "in", output_options=OutputOptions(columns=("title",), layout="hive")))
        prepare(job(tmp_path, tmp_path / "in"))
        return
    summary = run(spec)
    assert summary.complete is (is_known is None)
    assert summary.complete or "its column 'size' is not '7' in every row" in summary.failures[0]


def test_what_statistics_leave_out_is_found_by_the_values(tmp_path: Path) -> None:
    path = tmp_path / "in/size=7/a.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"title": ["x", "y"], "size": ["7", "8"]}), path, write_statistics=False)
    summary = run(job(tmp_path, tmp_path / "in", output_options=HIVE))
    assert not summary.complete and "its column 'size' is not '7' in every row" in summary.failures[0]


@pytest.mark.parametrize(("least", "most"), [("x" * 64, "x" * 63 + "y"), ("x" * 100, "x" * 100)])
def test_statistics_that_a_writer_has_cut_prove_nothing(least: str, most: str) -> None:
    statistics = SimpleNamespace(has_null_count=True, null_count=0, has_min_max=True, min=least, max=most)
    assert not _differs(statistics, "x" * 100)  # type: ignore[arg-type]
    assert _differs(statistics, "x" * 30) and _differs(statistics, "y" * 100)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("brand=x", "the attribute 'Brand' would be the output column 'brand', and a folder is called brand="),
        ("Brand=x", "the attribute 'Brand' would be the output column 'brand', and a folder is called Brand="),
        ("hpd_status=ok", "the row column 'hpd_status' would be the output column 'hpd_status', and a folder"),
        ("size=7/size=8", r"lies in folders of \['size', 'size'\], two of which are one to readers"),
        ("Size=7/size=8", r"lies in folders of \['Size', 'size'\], two of which"),
    ],
)
def test_folders_that_no_output_can_have_are_refused_before_the_start(
    tmp_path: Path, folder: str, message: str
) -> None:
    write(tmp_path / f"in/{folder}/a.parquet", {"title": ["x"]})
    kept = OutputOptions(columns=("title",), layout="hive")  # the input's own column of that name does not go on
    with pytest.raises(JobError, match=f"output.layout hive: .*{message}"):
        prepare(job(tmp_path, tmp_path / "in", output_options=kept))
    prepare(job(tmp_path, tmp_path / "in", output_options=OutputOptions(columns=("title",))))


def test_a_key_that_is_written_with_escapes_is_lowered_as_it_is_read(tmp_path: Path) -> None:
    write(tmp_path / "in/%43olour=Red/a.parquet", {"title": ["x"]})
    assert run(job(tmp_path, tmp_path / "in", output_options=OutputOptions(layout="hive", profile="athena"))).complete
    [path] = (tmp_path / "out/data").rglob("*.parquet")
    assert path.parent.name == "colour=Red" and check(tmp_path).findings == ()


def test_both_together(tmp_path: Path) -> None:
    write(tmp_path / "in/Colour=Red/a.parquet", {"ID": [1], "title": ["x"]})
    options = OutputOptions(layout="hive", profile="athena")
    assert run(job(tmp_path, tmp_path / "in", output_options=options)).complete
    [path] = (tmp_path / "out/data").rglob("*.parquet")
    assert path.parent.name == "colour=Red" and pq.read_schema(path).names[0] == "id"
    assert check(tmp_path).findings == ()


def symlinks(tmp_path: Path) -> dict[str, list[str]]:
    base = tmp_path / "out/_symlink_format_manifest"
    return {p.parent.relative_to(base).as_posix(): p.read_text().splitlines() for p in base.rglob("manifest")}


def test_other_engines_are_told_the_committed_files(tmp_path: Path) -> None:
    run(partitioned(tmp_path))
    found = symlinks(tmp_path)
    assert set(found) == {"colour=light%2Fblue/size=007", "colour=__HIVE_DEFAULT_PARTITION__/size=7"}
    listed = sorted(line for lines in found.values() for line in lines)
    assert (
        listed == sorted(f"file://{path}" for path in (tmp_path / "out/data").rglob("*.parquet")) and len(listed) == 4
    )
    compact(OutputFolder(str(tmp_path / "out"), Storage()), most=2**30)
    merged = symlinks(tmp_path)
    assert {len(lines) for lines in merged.values()} == {1} and check(tmp_path).findings == ()
    (tmp_path / "out/_symlink_format_manifest/colour=light%2Fblue/size=007/manifest").write_text(
        "file:///old.parquet\n"
    )
    result = check(tmp_path)
    assert result.verdict is OutputVerdict.INCOMPLETE and "lists other files" in result.findings[0].message
    compact(OutputFolder(str(tmp_path / "out"), Storage()), most=2**30)
    assert symlinks(tmp_path) == merged and check(tmp_path).findings == ()


def test_a_flat_output_has_one_list_which_follows_the_job(tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", {"title": ["x"]})
    write(tmp_path / "in/b.parquet", {"title": ["y"]})
    run(job(tmp_path, tmp_path / "in"))
    assert {key: len(lines) for key, lines in symlinks(tmp_path).items()} == {".": 2}
    (tmp_path / "in/b.parquet").unlink()
    run(job(tmp_path, tmp_path / "in"))
    assert {key: len(lines) for key, lines in symlinks(tmp_path).items()} == {".": 1}


def test_what_another_writer_has_under_way_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "_symlink_format_manifest"
    for name in ("manifest", ".manifest.1a2b.tmp", "colour=red/manifest"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("file:///a.parquet\n")
    write_symlinks(str(tmp_path), Storage(), {"_symlink_format_manifest/manifest": "file:///b.parquet\n"})
    left = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert left == {"manifest", ".manifest.1a2b.tmp"}


def test_plain_options_store_what_was_decoded() -> None:
    schema = pa.schema([pa.field("Ä b", pa.uint64(), nullable=False), pa.field("x", pa.null())])
    form = stored_form(schema, OutputOptions(), [InputFile("/in/colour=red/a.parquet", 1, "v")])
    assert form.schema.equals(schema) and form.folder("/in/colour=red/a.parquet") == ""
    table = pa.Table.from_pylist([{"Ä b": 1}], schema=schema)
    assert form.stored(table, "/in/a.parquet").equals(table)
