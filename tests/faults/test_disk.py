"""An output whose disk is full or cannot be written, from the start or in the middle: a real, very small filesystem."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from jobs.cli import app
from pipeline.findings import FindingKind
from pipeline.job import JobSpec
from pipeline.lease import LEASE
from pipeline.manifest import OutputFolder
from pipeline.storage import Storage
from pipeline.verify import verify
from tests.conftest import unable
from tests.pipeline.fakes import HashDecoders
from tests.pipeline.helpers import assert_exact, inline, input_table, job, write

#: Of whole rows; titles that do not compress make each unit of 20 rows about 12 kB.
UNITS, ROWS = 12, 20


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder with room for some of the units."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        mount("-t", "tmpfs", "-o", "size=100k", "tmpfs", str(folder))
    except (OSError, subprocess.CalledProcessError):
        unable("needs the right to mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)


@pytest.fixture
def spec(tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch) -> JobSpec:
    monkeypatch.setattr("pipeline.drive.drive", inline)
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    chance = random.Random(1)
    titles = [chance.randbytes(300).hex() for _ in range(UNITS * ROWS)]
    write(tmp_path / "in/a.parquet", {"title": titles}, row_group_size=ROWS)
    return job(tmp_path, tmp_path / "in", output=str(disk / "out"))


@pytest.fixture
def extract(spec: JobSpec, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Result]:
    monkeypatch.setattr("jobs.extract.compose", lambda *_, **__: spec)
    return lambda: CliRunner().invoke(app, ["extract", "--config", str(repository / "conf/quickstart.yaml")])


def assert_nothing_is_half_committed(output: Path) -> int:
    """Units that are committed, all of them whole; no mark of success, no temporary file, no lease."""
    folder = OutputFolder(str(output), Storage())
    assert not folder.is_finished() and not (output / LEASE).exists()
    assert [path.name for path in output.rglob(".*")] == []
    assert {finding.kind for finding in verify(folder, Storage()).findings} == {FindingKind.INCOMPLETE}
    return len(folder.read_records())


def assert_completes(extract: Callable[[], Result], output: Path, source: Path, committed: int) -> None:
    done = sum(HashDecoders(source.parent / "calls.log").calls())
    ended = extract()
    assert ended.exit_code == 0, ended.output
    assert_exact(output, input_table(source))
    assert verify(OutputFolder(str(output), Storage()), Storage()).findings == ()
    assert sum(HashDecoders(source.parent / "calls.log").calls()) - done == ROWS * (UNITS - committed)


def test_a_full_disk_ends_the_command_by_name_and_room_completes_it(
    extract: Callable[[], Result], disk: Path, tmp_path: Path
) -> None:
    ended = extract()
    assert ended.exit_code == 4, ended.output
    said = [line for line in ended.output.splitlines() if line.startswith(("failed:", "error:"))]
    assert said and all(str(disk / "out") in line and "No space left on device" in line for line in said)
    committed = assert_nothing_is_half_committed(disk / "out")
    assert 0 < committed < UNITS
    mount("-o", "remount,size=8m", str(disk))
    assert_completes(extract, disk / "out", tmp_path / "in", committed)


def test_a_disk_without_any_room_is_named(extract: Callable[[], Result], disk: Path, tmp_path: Path) -> None:
    (disk / "filler").write_bytes(bytes(25 * os.sysconf("SC_PAGESIZE") - os.sysconf("SC_PAGESIZE")))
    ended = extract()
    assert ended.exit_code == 4 and f"error: {disk}/out/" in ended.output and "No space left" in ended.output
    (disk / "filler").unlink()
    mount("-o", "remount,size=8m", str(disk))
    assert_completes(extract, disk / "out", tmp_path / "in", 0)


def test_an_output_that_cannot_be_written_is_refused_before_anything_runs(
    extract: Callable[[], Result], disk: Path, tmp_path: Path
) -> None:
    mount("-o", "remount,ro", str(disk))
    ended = extract()
    assert ended.exit_code == 2 and f"{disk}/out cannot be written" in ended.output
    assert os.listdir(disk) == [] and not (tmp_path / "calls.log").exists()
    mount("-o", "remount,rw,size=8m", str(disk))
    assert_completes(extract, disk / "out", tmp_path / "in", 0)


def test_an_output_that_turns_read_only_in_the_middle_is_named(
    extract: Callable[[], Result], disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount("-o", "remount,size=8m", str(disk))
    create = Storage.create

    def until_read_only(self: Storage, uri: str, data: bytes) -> bool:
        if f"{3 * ROWS:012d}-{4 * ROWS:012d}" in uri:
            mount("-o", "remount,ro", str(disk))
        return create(self, uri, data)

    monkeypatch.setattr(Storage, "create", until_read_only)
    ended = extract()
    assert ended.exit_code != 0 and "Read-only file system" in ended.output and str(disk / "out") in ended.output
    mount("-o", "remount,rw", str(disk))
    monkeypatch.setattr(Storage, "create", create)
    (disk / "out" / LEASE).unlink()  # it could not be removed; the next driver would wait for it
    assert assert_nothing_is_half_committed(disk / "out") == 3
    assert_completes(extract, disk / "out", tmp_path / "in", 3)
