"""Inputs that are replaced, removed and added between runs: what is done again, and what job.json says of it, wherever
a driver is killed meanwhile."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.changes import changes
from pipeline.compact import compact
from pipeline.job import JobSpec
from pipeline.manifest import OutputFolder
from pipeline.run import run
from pipeline.storage import Storage, StorageError
from pipeline.units import InputFile, Unit
from pipeline.verify import verify
from tests.pipeline.helpers import assert_exact, inline, input_table, job, shards, write
from tests.pipeline.holding import without_lease
from tests.pipeline.test_resume import record
from tests.pipeline.test_segments import Killed, killed_after


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobSpec:
    monkeypatch.setattr("pipeline.drive.drive", inline)
    return job(tmp_path, shards(tmp_path / "in", 3, rows=6, row_group_size=3))


def folder(spec: JobSpec) -> OutputFolder:
    return OutputFolder(spec.output, Storage())


def told(spec: JobSpec) -> list[dict[str, list[str]]]:
    """The changes in job.json, with names in place of paths."""
    listing = json.loads((Path(spec.output) / "_manifest/job.json").read_text())
    return [{kind: [uri.rpartition("/")[2] for uri in uris] for kind, uris in c.items()} for c in listing["changes"]]


def change(source: Path) -> None:
    """The first file is replaced, the second removed, which was committed, and one added."""
    write(source / "part-0000.parquet", {"id": list(range(5)), "title": [f"new {i}" for i in range(5)]})
    (source / "part-0001.parquet").unlink()
    write(source / "part-0003.parquet", {"id": [7], "title": ["added"]})


CHANGE = {
    "replaced": ["part-0000.parquet"],
    "removed": ["part-0001.parquet"],
    "added": ["part-0003.parquet"],
    "redone": ["part-0000.parquet"],
}


def exact(spec: JobSpec) -> bool:
    assert_exact(spec.output, input_table(Path(spec.inputs[0])))
    return verify(folder(spec), Storage()).findings == ()


@pytest.mark.parametrize("compacted", [False, True])
def test_only_what_changed_is_done_again_and_the_manifest_says_what_did(
    spec: JobSpec, tmp_path: Path, compacted: bool
) -> None:
    assert run(spec).complete and told(spec) == []
    if compacted:
        compact(folder(spec), most=2**30)
    gone = [r.data for r in folder(spec).committed() if "part-0001" in r.unit.file.uri]
    change(tmp_path / "in")
    done = sum(spec.decoder_factory.calls())  # type: ignore[union-attr]
    summary = run(spec)
    assert summary.complete and (summary.rows_in, summary.rows_dropped) == (12, 12)
    assert sum(spec.decoder_factory.calls()) - done == 6  # type: ignore[union-attr]
    assert told(spec) == [CHANGE] and exact(spec)
    assert gone and not folder(spec).data_names() & set(gone)
    assert run(spec).model_calls == 0 and told(spec) == [CHANGE]
    (tmp_path / "in/part-0002.parquet").unlink()
    assert run(spec).complete and exact(spec)
    assert told(spec) == [CHANGE, {"replaced": [], "removed": ["part-0002.parquet"], "added": [], "redone": []}]


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 4, 5, 8, 9, 10, 13, 14])
def test_a_kill_at_any_write_loses_no_word_of_what_changed(
    spec: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, compacted: bool
) -> None:
    assert run(spec).complete
    if compacted:
        compact(folder(spec), most=2**30)
    change(tmp_path / "in")
    with monkeypatch.context() as patch, without_lease():
        killed_after(patch, steps)
        try:
            run(spec)
            assert steps == 14
        except Killed:
            assert steps < 14 and folder(spec).is_finished() == (steps == 0)
    assert run(spec).complete and told(spec) == [CHANGE] and exact(spec)


def test_of_a_first_run_that_was_cut_off_its_committed_units_tell(
    spec: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(OutputFolder, "finish", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            run(spec)
    change(tmp_path / "in")
    assert run(spec).complete and exact(spec)
    assert told(spec) == [CHANGE | {"added": []}]  # whether that one was there before nobody knows


def test_what_a_limit_adds_is_no_change_of_inputs(spec: JobSpec) -> None:
    assert run(replace(spec, limit=8)).complete
    assert run(spec).complete and told(spec) == [] and exact(spec)


def test_units_of_replaced_files_are_named_with_their_rows() -> None:
    old, new = InputFile("/in/a", 1, "v1"), InputFile("/in/a", 1, "v2")
    listing = {"plan": [{"uri": "/in/a", "size": 1, "version": "v1", "rows": 9}]}
    kept = [replace(record(old, 0, 5), unit=Unit(new, start, stop)) for start, stop in ((0, 5), (5, 9))]
    [made] = changes(listing, [new], kept, [])
    assert made == {"replaced": ["/in/a"], "removed": [], "added": [], "redone": [str(r.unit) for r in kept]}
    assert changes(listing | {"changes": [made]}, [old], [], []) == [made]
    for wrong in ({"plan": [{"uri": "/in/a"}]}, {"plan": 7}):
        with pytest.raises(StorageError, match=r"job\.json: not the list of a finished job"):
            changes(wrong, [new], [], [])
