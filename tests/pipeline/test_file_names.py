"""Whatever a file or folder is called: its rows come through, are listed, verified and merged, or it is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.compact import compact
from pipeline.job import JobError, OutputOptions
from pipeline.manifest import OutputFolder
from pipeline.run import run
from pipeline.storage import Storage
from pipeline.units import InputFile, Unit
from pipeline.verify import verify
from tests.pipeline.helpers import inline, job, output_files, write

ODD = [
    "new\nline",
    "x" * 245,
    "ü" * 120,
    "カタログ",
    " edge ",
    "=1",
    "-x",
    "%41%2F?#&",
    "[x]{y}*?",
    "a..",
    "quote\"'`$(x)",
    "tab\tback\\slash",
    "u\u0308",
    "\u202ertl",
    "col:on@host",
]


@pytest.fixture(autouse=True)
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.drive.drive", inline)


def check(tmp_path: Path, inputs: Path, out: str = "out") -> None:
    """The job over `inputs` is complete, verified before and after a merge, and has nothing to do again."""
    spec = job(tmp_path, inputs, output=str(tmp_path / out))
    summary = run(spec)
    assert summary.complete and summary.rows_in == 25, summary.failures
    output = OutputFolder(str(tmp_path / out), Storage())
    lines = (tmp_path / out / "_symlink_format_manifest/manifest").read_text().splitlines()
    assert lines == [f"file://{path}" for path in output_files(tmp_path / out)] and len(lines) == 2
    for _ in range(2):
        assert verify(output, Storage()).findings == ()
        compact(output, most=2**30)
    assert run(spec).model_calls == 0


def rows(path: Path) -> Path:
    return write(path, {"title": [f"t{i}" for i in range(25)]}, row_group_size=20)


@pytest.mark.parametrize("name", ODD)
def test_an_input_of_any_name_comes_through(tmp_path: Path, name: str) -> None:
    rows(tmp_path / "in" / f"{name}.parquet")
    check(tmp_path, tmp_path / "in")


@pytest.mark.parametrize("name", ["_part.parquet", ".part.parquet", "_", "PART.PARQUET"])
def test_a_file_that_is_named_itself_counts_whatever_it_begins_with(tmp_path: Path, name: str) -> None:
    check(tmp_path, rows(tmp_path / "in" / name))


@pytest.mark.parametrize("name", ["カタログ", "_x", ".x", "__", "", "%41", "-", "ü.parquet", "a"])
def test_no_data_file_has_a_name_that_readers_pass_over(name: str) -> None:
    made = [Unit(InputFile(f"/in/{name}.parquet", 1, "v"), start, start + 1).object_name("f") for start in (0, 9, 10)]
    assert not any(each.startswith((".", "_")) for each in made) and made == sorted(made)
    if name == "a":  # as it always was: outputs that exist go on
        assert made[0].startswith("a-")


@pytest.mark.parametrize("name", ["カタログ", "o*t", "o[u]t", "out?x#y", "%20", "a b", "col:on@host", "-x"])
def test_an_output_of_any_name_is_written_listed_and_verified(tmp_path: Path, name: str) -> None:
    rows(tmp_path / "in/a.parquet")
    check(tmp_path, tmp_path / "in", name)


def test_names_that_cannot_be_written_down_are_refused(tmp_path: Path) -> None:
    rows(tmp_path / "in/size=1/a.parquet")
    rows(tmp_path / "in/size=a\nb/a.parquet")
    with pytest.raises(JobError, match=r"'.*/o\\nut': a name with line breaks"):
        run(job(tmp_path, tmp_path / "in", output=str(tmp_path / "o\nut")))
    with pytest.raises(JobError, match=r"layout hive: '.*size=a\\nb/a.parquet' lies in a folder with a line break"):
        run(job(tmp_path, tmp_path / "in", output_options=OutputOptions(layout="hive")))
    os.rename(os.fsencode(tmp_path / "in/size=1/a.parquet"), os.fsencode(tmp_path / "in/size=1") + b"/caf\xe9.parquet")
    for inputs in (tmp_path / "in", tmp_path / "in/size=1/*"):
        with pytest.raises(JobError, match=r"^input '.*/caf\\udce9.parquet': this name is no UTF-8") as caught:
            run(job(tmp_path, inputs))
        str(caught.value).encode()  # it can be said
    assert not (tmp_path / "out").exists()
