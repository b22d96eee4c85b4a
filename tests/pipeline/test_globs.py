"""What patterns of inputs stand for, on a local disk; tests/faults/test_storage.py does some of it on S3."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import globs
from pipeline.job import JobError, OutputOptions, UnitCaps
from pipeline.manifest import OutputFolder
from pipeline.plan import make_plan
from pipeline.prepare import prepare
from pipeline.run import run
from pipeline.storage import Storage
from pipeline.verify import verify
from tests.pipeline.helpers import inline, job, output_table, write

FILES = [
    "a.parquet", "b.PARQ", "part-00000", "_c.parquet", ".d.parquet", "_SUCCESS", "x.json", "y.parquet.tmp", "README.md",
    "colour=red/e.parquet", "colour=red/_SUCCESS", "colour=red/x.json", "colour=blue/size=07/f.parquet",
    "_temporary/0/g.parquet", ".hidden/h.parquet", "table.parquet/part-0.parquet", "table.parquet/_metadata",
    "empty/nothing.txt",
]  # fmt: skip
BELOW = [
    "colour=blue/size=07/f.parquet",
    "colour=red/e.parquet",
    "table.parquet/part-0.parquet",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in FILES:
        path = tmp_path / "x" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"1234")
    return tmp_path / "x"


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("*", ["a.parquet", "b.PARQ", *BELOW, "part-00000"]),
        ("**", ["a.parquet", "b.PARQ", *BELOW, "part-00000"]),
        ("*.parquet", ["a.parquet", "table.parquet/part-0.parquet"]),
        ("**/*.parquet", ["a.parquet", *BELOW]),
        ("part-*", ["part-00000"]),
        ("?.parquet", ["a.parquet"]),
        ("[ab].*", ["a.parquet", "b.PARQ"]),
        ("*.json", ["x.json"]),
        ("_*", ["_SUCCESS", "_c.parquet", "_temporary/0/g.parquet"]),
        ("_temporary/*/*.parquet", ["_temporary/0/g.parquet"]),
        (".h*/*.parquet", [".hidden/h.parquet"]),
        ("colour=*", BELOW[:2]),
        ("colour=*/", BELOW[:2]),
        ("colour=*/*.parquet", BELOW[1:2]),
        ("colour=[br]*/**", BELOW[:2]),
        ("*/size=*/*", BELOW[:1]),
    ],
)
def test_a_pattern_stands_for_each_file_and_folder_that_it_matches(
    folder: Path, pattern: str, wanted: list[str]
) -> None:
    for uri in (f"{folder}/{pattern}", f"file://{folder}/{pattern}"):
        assert [f.uri for f in Storage().find(uri)] == [str(folder / name) for name in sorted(wanted)]


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("z*", "the pattern matches no file"),
        ("z*/*.parquet", "the pattern matches no file"),
        ("emp*", "the pattern matches 1 name"),
        ("README*", "the pattern matches 1 name.*but no Parquet file"),
        ("a**", "can only be an entire path component"),
    ],
)
def test_a_pattern_without_a_file_is_an_error_that_names_it(folder: Path, pattern: str, reason: str) -> None:
    with pytest.raises(JobError, match=f"{pattern.replace('*', '[*]')}.*({reason})"):
        Storage().find(f"{folder}/{pattern}")


@pytest.mark.parametrize(
    ("pattern", "finds"),
    [
        ("/d/*", True),
        ("/d/o*", True),
        ("/*/out", True),
        ("/d/**", True),
        ("/d/**/*.parquet", True),
        ("/d/*/data/*", True),
        ("/d/*/data/*.parquet", True),
        ("/d/*.parquet", False),
        ("/d/*/*.parquet", False),
        ("/d/in*", False),
        ("/d/out?", False),
        ("/e/**", False),
    ],
)
def test_a_pattern_that_will_find_the_output_is_known_beforehand(pattern: str, finds: bool) -> None:
    assert globs.may_find(pattern, "/d/out/") is finds
    assert globs.may_find(pattern.replace("/d/", "s3://d/", 1), "s3://d/out") is (finds and pattern != "/*/out")


def test_an_output_that_is_bookkeeping_is_not_found() -> None:
    assert not globs.may_find("/d/*", "/d/_out") and globs.may_find("/d/_*", "/d/_out")


@pytest.mark.parametrize("pattern", ["*", "**", "ou*"])
def test_an_output_that_its_input_would_find_is_refused_before_it_is_begun(tmp_path: Path, pattern: str) -> None:
    write(tmp_path / "ours.parquet", {"title": ["x"]})
    with pytest.raises(JobError, match="finds what is written to the output"):
        prepare(job(tmp_path, tmp_path / pattern))
    assert prepare(job(tmp_path, tmp_path / "*.parquet")).plan.rows == 1


def test_several_prefixes_are_read_once_each_in_their_order(tmp_path: Path) -> None:
    for number, name in enumerate(("b/k=1/x.parquet", "b/k=2/x.parquet", "a/k=3/x.parquet", "a/y.parquet")):
        write(tmp_path / name, {"id": [number]})
    inputs = [str(tmp_path / part) for part in ("b/k=2", "b", "b/*", "a/y*", "a/*", "a/y.parquet")]
    plan = make_plan(inputs, Storage(), UnitCaps(), None)
    order = ["b/k=2/x.parquet", "b/k=1/x.parquet", "a/y.parquet", "a/k=3/x.parquet"]
    assert [f.uri for f in plan.files] == [str(tmp_path / name) for name in order]
    with pytest.raises(JobError, match=r"nowhere/\*: the pattern matches no file"):
        make_plan([*inputs, str(tmp_path / "nowhere/*")], Storage(), UnitCaps(), None)


@pytest.mark.parametrize("pattern", ["*", "colour=*", "*/*", "**/*.parquet"])
def test_hive_partitions_below_a_pattern_are_columns_mirrored_and_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    monkeypatch.setattr("pipeline.drive.drive", inline)
    for colour in ("red", "blue"):
        write(tmp_path / f"in/colour={colour}/a.parquet", {"title": [f"a {colour} shoe"]})
    (tmp_path / "in/colour=red/_SUCCESS").touch()
    spec = job(tmp_path, tmp_path / "in" / pattern, output_options=OutputOptions(layout="hive"))
    assert run(spec).complete and run(spec).model_calls == 0
    assert output_table(tmp_path / "out").column("title").to_pylist() == ["a blue shoe", "a red shoe"]
    assert sorted(p.name for p in (tmp_path / "out/data").iterdir()) == ["colour=blue", "colour=red"]
    assert verify(OutputFolder(str(tmp_path / "out"), Storage()), Storage()).findings == ()
    (tmp_path / "in").rename(tmp_path / "moved")
    moved = verify(
        OutputFolder(str(tmp_path / "out"), Storage()), Storage(), inputs=[str(tmp_path / "moved" / pattern)]
    )
    assert moved.extent.rows_compared == 2 and all(f.kind.value == "note" for f in moved.findings), moved.findings
