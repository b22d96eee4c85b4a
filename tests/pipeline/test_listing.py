"""Which files an input stands for, and which version of each: units that are committed are known by it."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from pipeline.job import JobError, UnitCaps
from pipeline.listing import input_file
from pipeline.plan import make_plan
from pipeline.storage import Storage
from tests.pipeline.helpers import write


class Store(AbstractFileSystem):
    cachable, protocol = False, "store"


TIME = datetime(2026, 11, 30, 9, 0, 0, 250_000)


@pytest.mark.parametrize(
    ("facts", "version"),
    [
        ({"ETag": '"abc"', "mtime": 1}, "abc"),
        ({"mtime": TIME.replace(tzinfo=UTC)}, "mtime:2026-11-30T09:00:00.250000+00:00"),
        ({"mtime": TIME.replace(tzinfo=timezone(timedelta(hours=2)))}, "mtime:2026-11-30T09:00:00.250000+02:00"),
        ({"last_modified": TIME}, "mtime:2026-11-30T09:00:00.250000"),  # without a zone: not that of this machine
        ({"LastModified": "Mon, 30 Nov 2026"}, "mtime:Mon, 30 Nov 2026"),
        ({"mtime": 1_700_000_000.5}, "mtime:1700000000.5"),
        ({"mtime": 0}, "mtime:0"),
        ({"mtime": 0.0, "updated": 5}, "mtime:0.0"),
        ({"LastModified": None, "modified": 7, "created": 5}, "mtime:7"),
    ],
)
def test_a_version_is_the_tag_or_the_time_of_the_last_write_in_the_words_that_outputs_know(
    facts: dict[str, Any], version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = {"name": "/x.parquet", "size": 4, "type": "file"} | facts
    assert input_file(Store(), "store://x.parquet", info).version == version


@pytest.mark.parametrize("facts", [{}, {"mtime": None}, {"LastModified": ""}, {"created": 5}, {"created": TIME}])
def test_a_store_that_does_not_tell_when_a_file_was_written_last_is_refused(facts: dict[str, Any]) -> None:
    info = {"name": "/x.parquet", "size": 4, "type": "file"} | facts
    with pytest.raises(JobError, match="tells neither a tag nor a time"):
        input_file(Store(), "store://x.parquet", info)
    if facts.get("created"):
        assert input_file(MemoryFileSystem(), "memory://x.parquet", info).version.startswith("mtime:")


class TestLinks:
    """What a hub's cache keeps of a dataset: links to files that lie elsewhere, without a suffix."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "blob").write_bytes(b"1234")
        (tmp_path / "in" / "data").mkdir(parents=True)
        (tmp_path / "in" / "data" / "a.parquet").symlink_to(tmp_path / "blob")
        return tmp_path / "in"

    def test_a_link_to_a_file_is_that_file_and_changes_with_it(self, folder: Path) -> None:
        (first,) = Storage().find(str(folder))
        assert first.uri == str(folder / "data" / "a.parquet") and first.size == 4
        assert Storage().find(str(folder / "*" / "*.parquet")) == [first]
        (folder.parent / "blob").write_bytes(b"12345")
        assert Storage().find(str(folder))[0].size == 5

    @pytest.mark.parametrize("name", ["again", "b.parquet"])
    def test_a_link_to_a_folder_or_to_nothing_is_refused(self, folder: Path, name: str) -> None:
        link = folder / name
        link.symlink_to(folder / "data")
        with pytest.raises(JobError, match=f"{name} is a link to the folder .*/data: give what is meant"):
            Storage().find(str(folder))
        link.unlink()
        link.symlink_to(folder / "gone")
        with pytest.raises(JobError, match=f"{name} is a link to nothing"):
            Storage().find(str(folder))

    @pytest.mark.parametrize("pattern", ["*", "*/*.parquet", "**", "**/*.parquet", "*/b/*.parquet", "more*"])
    def test_a_link_that_a_pattern_meets_is_refused_as_well(self, folder: Path, pattern: str) -> None:
        (folder / "more" / "b").mkdir(parents=True)
        (folder / "more" / "c.parquet").write_bytes(b"1")
        (folder / "more" / "b" / "d.parquet").write_bytes(b"1")
        uri = str(folder / pattern)
        assert Storage().find(uri)
        (folder / "more" / "b" / "e").symlink_to(folder / "data")
        (folder / "f").symlink_to(folder / "data")
        (folder / "data" / "b").symlink_to(folder / "more")
        with pytest.raises(JobError, match=f"input {re.escape(uri)}: .* is a link to the folder"):
            Storage().find(uri)

    def test_a_link_that_a_pattern_does_not_meet_is_none_of_it(self, folder: Path) -> None:
        (folder / "f").symlink_to(folder / "data")
        (folder / "_latest").symlink_to(folder / "data")
        (folder / "gone").symlink_to(folder / "nothing")
        (folder / "data" / "notes").symlink_to(folder)
        (found,) = Storage().find(str(folder / "data" / "*.parquet"))
        assert Storage().find(str(folder / "d*" / "*.parquet")) == [found]
        (folder / "data" / "b.parquet").symlink_to(folder / "nothing")
        with pytest.raises(JobError, match=r"b\.parquet is a link to nothing"):
            Storage().find(str(folder / "data" / "*.parquet"))

    def test_bookkeeping_may_be_any_link(self, folder: Path) -> None:
        (folder / "_latest").symlink_to(folder / "data")
        (folder / ".x").symlink_to(folder / "gone")
        assert len(Storage().find(str(folder))) == 1

    @pytest.mark.parametrize(
        ("link", "aim", "inputs"),
        [
            ("in/latest.parquet", "in/other/b.parquet", ["in"]),
            ("in/data/again.parquet", "blob", ["in/data/*.parquet"]),  # two links to one file elsewhere
            ("current", "in", ["current", "in"]),
            ("current", "in/data", ["in", "current/a.parquet"]),
        ],
    )
    def test_two_names_of_one_file_are_refused(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, link: str, aim: str, inputs: list[str]
    ) -> None:
        monkeypatch.chdir(folder.parent)
        write(Path("blob"), {"title": ["x"]})
        write(Path("in/other/b.parquet"), {"title": ["y"]})
        assert make_plan(["in", "in/data", "in/data/a.parquet"], Storage(), UnitCaps(), None).rows == 2
        Path(link).symlink_to(Path(aim).absolute())
        with pytest.raises(JobError, match=r"is the file .*, and so is .*: its rows would count twice") as caught:
            make_plan(inputs, Storage(), UnitCaps(), None)
        assert link in str(caught.value)

    def test_a_hard_link_is_a_file_of_its_own(self, folder: Path) -> None:
        write(folder / "first/a.parquet", {"title": ["x"]})
        (folder / "second").mkdir()
        os.link(folder / "first/a.parquet", folder / "second/a.parquet")
        assert make_plan([str(folder / "first"), str(folder / "second")], Storage(), UnitCaps(), None).rows == 2

    def test_an_input_may_be_a_link_itself(self, folder: Path) -> None:
        (folder.parent / "current").symlink_to(folder)
        assert [file.uri for file in Storage().find(str(folder.parent / "current"))] == [
            str(folder.parent / "current" / "data" / "a.parquet")
        ]
