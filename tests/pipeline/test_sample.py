"""A random sample of units: exactly once as any job, extended by a larger sample or the whole, told by the manifest."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import pipeline.drive
import pipeline.plan
from hpd_core.rows import Counts
from pipeline.findings import FindingKind, OutputVerdict
from pipeline.job import JobError
from pipeline.manifest import OutputFolder, UnitRecord
from pipeline.metrics import Metrics
from pipeline.plan import Plan, planned_files, read_footer, sampled
from pipeline.prepare import prepare
from pipeline.promise import PromiseError, rows_committed
from pipeline.resume import remaining
from pipeline.run import run
from pipeline.storage import Storage, StoreUnavailableError
from pipeline.units import InputFile, Unit
from pipeline.verify import verify
from tests.pipeline.helpers import assert_exact, inline, input_table, job, output_table, shards

FILES = tuple(InputFile(f"/in/{n:02d}", 1, "v") for n in range(12))
UNITS = tuple(Unit(file, start, start + 10) for file in FILES for start in range(0, 50, 10))
PLAN = Plan(FILES, UNITS, None, ())


def test_a_sample_is_random_over_all_files_in_order_and_grows_with_its_seed() -> None:
    few, more = sampled(PLAN, 12, 7), sampled(PLAN, 30, 7)
    assert len(few.units) == 12 and few.drawn_from == more.drawn_from == 60
    assert list(few.units) == [unit for unit in UNITS if unit in set(few.units)], "in the order of the plan"
    assert set(few.units) < set(more.units)
    assert sampled(PLAN, 12, 7) == few != sampled(PLAN, 12, 8)
    assert len({unit.file for unit in few.units}) > 4, "the first 12 are of three files"
    assert sampled(PLAN, 1000, 0).units == UNITS
    drawn = Counter(unit.start for seed in range(300) for unit in sampled(PLAN, 6, seed).units)
    assert all(300 < count < 420 for count in drawn.values()), "each of the five places alike, 360 times"


@pytest.mark.parametrize("seed", range(5))
def test_a_file_that_is_not_there_changes_the_draw_by_its_own_units_alone(seed: int) -> None:
    drawn = sampled(PLAN, 20, seed).units
    gone = drawn[3].file
    without = sampled(replace(PLAN, units=tuple(u for u in UNITS if u.file != gone)), 20, seed).units
    assert {unit for unit in drawn if unit.file != gone} < set(without) and len(without) == 20


def test_a_sample_is_not_drawn_from_a_part_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards(tmp_path / "in")

    def unreached(file: InputFile, storage: Storage) -> object:
        if file.uri.endswith("part-0001.parquet"):
            raise StoreUnavailableError(f"{file.uri}: no answer")
        return read_footer(file, storage)

    monkeypatch.setattr(pipeline.plan, "read_footer", unreached)
    spec = job(tmp_path, tmp_path / "in")
    assert len(prepare(spec).plan.unreached) == 1
    with pytest.raises(StoreUnavailableError, match=r"part-0001\.parquet: no answer.*of a random sample"):
        prepare(replace(spec, sample_units=2))


def test_a_new_file_beside_a_finished_sample_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline.drive, "drive", inline)
    shards(tmp_path / "in", count=1)
    assert run(replace(job(tmp_path, tmp_path / "in"), sample_units=1)).complete
    shards(tmp_path / "in", count=2)
    result = verify(OutputFolder(str(tmp_path / "out"), Storage()), Storage())
    [note] = [finding for finding in result.findings if finding.file.endswith("part-0001.parquet")]
    assert note.kind is FindingKind.NOTE and "lies beyond the job's sample" in note.message
    assert result.verdict is OutputVerdict.VERIFIED


def test_every_row_that_was_drawn_is_committed_or_left() -> None:
    def record(unit: Unit) -> UnitRecord:
        return UnitRecord(unit, "o", "f", 1, "", Metrics(rows=Counter(ok=unit.rows), decode=Counts()))

    planned = [UNITS[0], UNITS[2], UNITS[3]]  # of one file, with a gap
    kept = [record(UNITS[0]), record(UNITS[1])]  # the second stands in the gap: an earlier run's
    assert rows_committed(planned, kept, remaining(planned, kept)) == 20
    with pytest.raises(PromiseError, match="30 rows are planned, 10 of them committed and 10 left"):
        rows_committed(planned, kept, [UNITS[2]])
    [file, *others] = planned_files(replace(PLAN, units=tuple(planned)), [])
    assert (file.rows, file.undrawn) == (40, ((10, 20),)) and all(other.rows is None for other in others)
    assert type(file).from_dict(json.loads(json.dumps(file.as_dict()))) == file


def test_a_sample_is_extended_to_the_whole_and_verified_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline.drive, "drive", inline)
    shards(tmp_path / "in", count=3, rows=60)
    whole = job(tmp_path, tmp_path / "in")
    calls = whole.decoder_factory.calls  # type: ignore[union-attr]

    def manifest() -> dict[str, object]:
        return dict(json.loads((tmp_path / "out/_manifest/job.json").read_text()))

    def check() -> None:
        assert verify(OutputFolder(str(tmp_path / "out"), Storage()), Storage()).findings == ()

    first = run(replace(whole, sample_units=4, sample_seed=3))
    assert first.complete and first.units == 4 and first.rows_in == 60 and sum(calls()) == 60
    assert manifest()["sample"] == {"units": 4, "of": 12, "seed": 3, "rows": 60}
    assert {row["id"] for row in output_table(tmp_path / "out").to_pylist()} != set(range(60)), "not the first rows"
    check()

    assert run(replace(whole, sample_units=4, sample_seed=3)).model_calls == 0
    assert run(replace(whole, sample_units=7, sample_seed=3)).units == 7 and sum(calls()) == 105
    check()
    last = run(whole)
    assert last.complete and last.units == 12 and sum(calls()) == 180, "no row is decoded twice"
    assert "sample" not in manifest()
    assert_exact(tmp_path / "out", input_table(tmp_path / "in"))


@pytest.mark.parametrize("changes", [{"sample_units": 0}, {"sample_units": 2, "limit": 5}])
def test_a_sample_of_nothing_or_of_the_first_rows_is_refused(tmp_path: Path, changes: dict[str, int]) -> None:
    with pytest.raises(JobError, match="sample_units"):
        job(tmp_path, tmp_path / "in", **changes)
