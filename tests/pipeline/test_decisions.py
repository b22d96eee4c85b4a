"""What `run` decides before and after the stream: the same stages, one unit after the other, without Ray."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from jobs.console import exit_of
from pipeline import drive
from pipeline.block import Failure, FailureKind
from pipeline.commit import Receipt
from pipeline.compact import compact
from pipeline.findings import OutputVerdict
from pipeline.fit import check_machine
from pipeline.job import JobError, JobSpec, OutputOptions, Pool
from pipeline.ledger import Attempt
from pipeline.manifest import OutputFolder
from pipeline.prepare import prepare
from pipeline.resume import marks, open_run
from pipeline.rounds import Work
from pipeline.run import run
from pipeline.storage import Storage, StorageError
from pipeline.stream import cluster
from pipeline.units import Unit
from pipeline.verify import verify
from tests.pipeline.fakes import SPEC, HashDecoders
from tests.pipeline.helpers import assert_exact, inline, input_table, job, output_files, output_table, shards, write
from tests.pipeline.test_stages import broken_encoder


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.drive.drive", inline)


def run_json(spec: JobSpec) -> dict:
    return json.loads((Path(spec.output) / "run.json").read_text())


@pytest.mark.usefixtures("no_ray")
def test_rows_of_earlier_inputs_are_never_dropped_in_silence(tmp_path: Path) -> None:
    a, b = shards(tmp_path / "a", 1), shards(tmp_path / "b", 2, rows=10)
    assert run(job(tmp_path, a)).complete
    before = output_files(tmp_path / "out")
    for _ in range(2):
        with pytest.raises(JobError, match="40 rows of other inputs"):
            run(job(tmp_path, b))
    assert output_files(tmp_path / "out") == before and (tmp_path / "out/_SUCCESS").exists()

    both = run(job(tmp_path, [a, b]))
    assert (both.complete, both.rows_in, both.rows_dropped) == (True, 60, 0)
    dropped = run(job(tmp_path, b, allow_mixed=True))
    assert (dropped.complete, dropped.rows_in, dropped.rows_dropped, dropped.model_calls) == (True, 20, 40, 0)
    assert_exact(tmp_path / "out", input_table(b))
    assert run_json(job(tmp_path, b))["inputs"] == [str(b)]
    (b / "part-0001.parquet").unlink()  # of the same input, files come and go
    assert run(job(tmp_path, b)).rows_dropped == 10


@pytest.mark.usefixtures("no_ray")
def test_what_a_worker_left_after_the_job_had_ended_is_removed_by_a_rerun(tmp_path: Path) -> None:
    """One that was cut off, while its unit was halved and done by others: rows that stand twice for who reads all."""
    spec = job(tmp_path, shards(tmp_path / "in", 2))
    assert run(spec).complete
    folder = OutputFolder(spec.output, Storage())
    first, *_ = folder.committed()
    late = replace(first.unit, stop=first.unit.stop - 1).object_name(first.fingerprint)
    before = output_table(spec.output)
    write(Path(folder.data(late)), before.slice(0, first.unit.rows - 1))
    result = verify(folder, Storage())
    assert result.verdict is OutputVerdict.INCOMPLETE
    [finding] = result.findings
    assert finding.file == folder.data(late) and "run the job again" in finding.message
    again = run(spec)
    assert again.complete and again.model_calls == 0 and (again.rows_in, again.units) == (80, 6)
    assert output_table(spec.output).equals(before) and verify(folder, Storage()).findings == ()
    # What is called otherwise than workers call their files is for people to judge.
    write(Path(folder.data("mine")), {"id": [1]})
    assert run(spec).complete and "mine" in folder.data_names()
    assert verify(folder, Storage()).verdict is OutputVerdict.DAMAGED


@pytest.mark.usefixtures("no_ray")
def test_data_files_that_are_all_gone_are_not_decoded_again_without_a_word(tmp_path: Path) -> None:
    spec = job(tmp_path, shards(tmp_path / "in", 2))
    assert run(spec).complete
    folder, calls = OutputFolder(spec.output, Storage()), spec.decoder_factory.calls  # type: ignore[union-attr]
    names, done = folder.record_names(), calls()
    (tmp_path / "out/data").rename(tmp_path / "away")  # as if it was not mounted
    (tmp_path / "out/data").mkdir()
    for _ in range(2):
        with pytest.raises(StorageError, match=f"{tmp_path}/out/data: none of the data files .* tells of is there"):
            run(spec)
        assert folder.record_names() == names and folder.is_finished() and calls() == done
    (tmp_path / "out/data").rmdir()
    (tmp_path / "away").rename(tmp_path / "out/data")
    assert run(spec).model_calls == 0
    for path in output_files(spec.output)[1:]:  # some may be lost
        path.unlink()
    assert run(spec).complete and len(calls()) == len(done) + 5
    assert_exact(spec.output, input_table(tmp_path / "in"))


@pytest.mark.usefixtures("no_ray")
def test_files_that_went_with_their_inputs_are_not_missed(tmp_path: Path) -> None:
    """A merged file of which all has changed is removed before the first new unit is committed."""
    spec = job(tmp_path, shards(tmp_path / "in", 2))
    assert run(spec).complete
    compact(OutputFolder(spec.output, Storage()), most=2**30)
    shards(tmp_path / "in", 2)  # written again
    (tmp_path / "out/_SUCCESS").unlink()
    for path in output_files(spec.output):
        path.unlink()
    assert run(spec).complete
    assert_exact(spec.output, input_table(tmp_path / "in"))


@pytest.mark.usefixtures("no_ray")
@pytest.mark.parametrize("keep", [("id",), ()])
def test_an_output_is_an_input_again_without_the_columns_that_are_made_anew(
    tmp_path: Path, keep: tuple[str, ...]
) -> None:
    assert run(job(tmp_path, shards(tmp_path / "in", 1))).complete
    again = job(tmp_path, tmp_path / "out", output=str(tmp_path / "again"))
    with pytest.raises(JobError, match=r"input column 'hpd_status' and .* looks like an output"):
        run(again)
    summary = run(replace(again, output_options=OutputOptions(columns=keep)))
    assert summary.complete and (summary.rows_ok, summary.failures) == (40, ())
    first, second = (output_table(tmp_path / name) for name in ("out", "again"))
    assert second.column_names == [*keep, *first.column_names[2:]]
    assert second.equals(first.select(second.column_names))


@pytest.mark.usefixtures("no_ray")
def test_a_pool_that_does_not_fit_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    spec = job(tmp_path, shards(tmp_path / "in", 1), pool=Pool(cpus=2.0))
    with pytest.raises(JobError, match="does not fit"):
        run(spec)
    assert not (tmp_path / "out").exists()
    assert run(replace(spec, pool=Pool(cpus=1.0))).complete
    assert run(spec).complete  # nothing is left to do, so that no pool is needed


def test_weights_that_only_pass_through_to_gpus_are_looked_at_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict] = []
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("pipeline.fit.check_loadable", lambda model, **facts: asked.append(facts))
    monkeypatch.setattr("pipeline.fit.free_memory", lambda: 7)
    for pool in (Pool(cpus=1.0, gpus=1, max_size=2), Pool(cpus=1.0, max_size=3)):
        spec = job(tmp_path, tmp_path, pool=pool, num_cpus=8, encoder_factory=None)
        check_machine(spec)
    assert asked == [{"copies": 2, "free": 7, "to_gpu": True}, {"copies": 3, "free": 7, "to_gpu": False}]


@pytest.mark.parametrize(
    ("address", "error", "message", "code"),
    [
        (None, PermissionError(13, "Permission denied", "/h/.ray"), "cannot be started here: .*/h/.ray.*HOME", 2),
        ("10.0.0.1:6379", ConnectionError("no answer"), "Ray at 10.0.0.1:6379 cannot be reached: no answer", 2),
        ("10.0.0.1:6379", RuntimeError("Version mismatch"), "Ray at 10.0.0.1:6379 cannot be used: Version mismatch", 2),
        (None, Exception("The current node timed out"), "did not come up here, too busy .*: The current node timed", 4),
        (None, RuntimeError("no process"), "did not come up here, too busy a machine perhaps: no process", 4),
    ],
)
def test_a_ray_that_does_not_come_up_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, address: str | None, error: Exception, message: str, code: int
) -> None:
    def refuse(**_: object) -> None:
        raise error

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", refuse)
    with pytest.raises(Exception, match=message) as caught, cluster(address, 1, Pool()):
        pass
    assert exit_of(caught.value) == code


def test_units_too_large_for_the_object_store_are_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 8.0, "object_store_memory": 1000.0})
    monkeypatch.setattr(drive, "receipts", lambda *_: pytest.fail("the job began"))
    spec = job(tmp_path, shards(tmp_path / "in", 1))
    largest = max(unit.bytes for unit in prepare(spec).plan.units)
    with pytest.raises(JobError, match=rf"1 actors x 4 units x {largest / 2**20:.1f} MiB .* units\.bytes"):
        run(spec)
    assert not (tmp_path / "out/data").exists()


@pytest.mark.parametrize(
    ("has", "gpus", "message"),
    [
        ({"CPU": 8.0, "object_store_memory": 1000.0}, 0.0, "Ray's object store is too small"),
        ({"CPU": 8.0, "object_store_memory": 1e12}, 1.0, "= 1 GPUs, and there are 0"),
    ],
)
def test_a_finished_output_is_not_reopened_for_a_ray_that_it_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has: dict[str, float], gpus: float, message: str
) -> None:
    spec = job(tmp_path, shards(tmp_path / "in", 1), pool=Pool(cpus=1.0, gpus=gpus))
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.drive.drive", inline)
        assert run(spec).complete
    shards(tmp_path / "in", 2)
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.cluster_resources", lambda: has)
    with pytest.raises(JobError, match=message):
        run(spec)
    assert (tmp_path / "out/_SUCCESS").exists()


@pytest.mark.parametrize("during", [False, True])
def test_ray_does_not_keep_the_programs_signal_handler(monkeypatch: pytest.MonkeyPatch, during: bool) -> None:
    """It installs its own, which ends the program with a code of Ray's."""
    caught: list[int] = []

    def start(**_: object) -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        if during:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", start)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 8.0})
    before = signal.signal(signal.SIGTERM, lambda number, _: caught.append(number))
    try:
        with pytest.raises(SystemExit), cluster(None, 1, Pool()):
            os.kill(os.getpid(), signal.SIGTERM)
            end = time.monotonic() + 60
            while not caught and time.monotonic() < end:
                time.sleep(0.01)
            sys.exit(0)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert caught == [signal.SIGTERM]


@pytest.mark.usefixtures("no_ray")
def test_a_worker_that_outlives_a_start_without_a_commit_adds_nothing(tmp_path: Path) -> None:
    source = shards(tmp_path / "in", 1)
    wrong = job(tmp_path, source, decoder=replace(SPEC, model=replace(SPEC.model, revision="wrong")))
    prepared = prepare(wrong)
    mark = open_run(prepared.output, prepared.facts, None)
    right = prepare(job(tmp_path, source))
    open_run(right.output, right.facts, right.stored)
    inline(prepared, mark, prepared.plan.units[:1], [], 0.0, None, Work())

    summary = run(job(tmp_path, source))

    assert (summary.complete, summary.rows_in, summary.units) == (True, 40, 3)
    assert_exact(tmp_path / "out", input_table(source))
    records = [json.loads(p.read_text()) for p in (tmp_path / "out/_manifest/units").iterdir()]
    assert {r["fingerprint"] for r in records} == marks(run_json(wrong)) == {right.facts["fingerprint"]}


def test_a_run_whose_output_another_job_begins_meanwhile_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = job(tmp_path, shards(tmp_path / "in", 1))

    def taken(*arguments: object) -> None:
        (tmp_path / "out/run.json").write_text(json.dumps(run_json(spec) | {"fingerprint": "theirs"}))

    monkeypatch.setattr("pipeline.drive.drive", taken)
    with pytest.raises(StorageError, match="another job has begun"):
        run(spec)
    assert not (tmp_path / "out/_SUCCESS").exists()


@pytest.mark.usefixtures("no_ray")
@pytest.mark.parametrize(("part", "why"), [("encoder", "no tokenizer.json"), ("decoder", "no such model")])
def test_what_cannot_be_loaded_is_all_that_the_summary_has_against_the_run(tmp_path: Path, part: str, why: str) -> None:
    broken = {"encoder": broken_encoder, "decoder": HashDecoders(tmp_path / "calls.log", broken=True)}[part]
    source = shards(tmp_path / "in", 1)
    summary = run(job(tmp_path, source, **{f"{part}_factory": broken}))
    assert not summary.complete and why in summary.unloadable
    again = run(job(tmp_path, source))
    assert again.complete and again.unloadable == ""


def test_a_model_that_cannot_be_loaded_is_not_tried_by_every_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare(job(tmp_path, shards(tmp_path / "in", 3)))
    units, tried = prepared.plan.units, []

    def receipts(todo: list[Unit], *_: object) -> Iterator[Receipt]:
        for unit in todo:
            tried.append(unit)
            yield Receipt(unit, failure=Failure(FailureKind.LOAD, "no such model"))

    monkeypatch.setattr(drive, "receipts", receipts)
    monkeypatch.setattr(drive, "start_ledger", lambda: None)
    monkeypatch.setattr(drive, "read_ledger", lambda _: {})
    work = Work()
    drive.drive(prepared, "f" * 16, units, [], time.monotonic(), None, work)
    assert len(tried) == 1 < len(units) and set(work.given_up) == set(units)


@pytest.mark.usefixtures("no_ray")
def test_success_does_not_survive_a_run_that_is_incomplete(tmp_path: Path) -> None:
    source = shards(tmp_path / "in", 1)
    assert run(job(tmp_path, source)).complete
    bad = write(source / "z.parquet", {"title": ["x"]})
    bad.write_bytes(b"this is no Parquet file")
    summary = run(job(tmp_path, source))
    assert not summary.complete and summary.model_calls == 0 and "z.parquet" in summary.failures[0]
    assert not (tmp_path / "out/_SUCCESS").exists()
    bad.unlink()
    assert run(job(tmp_path, source)).complete and (tmp_path / "out/_SUCCESS").exists()


@pytest.mark.parametrize(("stopped", "why"), [(True, "the budget was spent"), (False, "although nothing failed")])
def test_what_is_left_is_told_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: bool, why: str
) -> None:
    def nothing(*arguments: object) -> None:
        work = arguments[-1]
        assert isinstance(work, Work)
        work.stopped = stopped

    monkeypatch.setattr("pipeline.drive.drive", nothing)
    summary = run(job(tmp_path, shards(tmp_path / "in", 1)))
    assert summary.failures == (f"40 rows in 3 units are left: {summary.failures[0].rpartition(': ')[2]}",)
    assert why in summary.failures[0]


@pytest.fixture
def lossy(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A stream that commits everything and loses the receipts but for the first `told` of a round."""
    state = SimpleNamespace(told=0, prepared=None, fingerprint="", attempts={}, reads=0)

    def receipts(units: list[Unit], *_: object) -> Iterator[Receipt]:
        work = Work()
        inline(state.prepared, state.fingerprint, units, [], 0.0, None, work)
        yield from [Receipt(r.unit, r, fresh=True) for r in work.committed[: state.told]]

    def attempts(ledger: object) -> Mapping[str, Mapping[str, Attempt]]:
        return state.attempts

    monkeypatch.setattr(drive, "receipts", receipts)
    monkeypatch.setattr(drive, "start_ledger", lambda: None)
    monkeypatch.setattr(drive, "read_ledger", attempts)
    return state


def driven(spec: JobSpec, state: SimpleNamespace) -> Work:
    state.prepared = prepare(spec)
    p = state.prepared
    state.fingerprint = open_run(p.output, p.facts, p.stored)
    work = Work()
    drive.drive(p, state.fingerprint, p.plan.units, [], 0.0, None, work)
    return work


def test_only_what_this_run_decoded_is_its_own_work(tmp_path: Path, lossy: SimpleNamespace) -> None:
    spec = job(tmp_path, shards(tmp_path / "in", 1))
    first, second, _ = prepare(spec).plan.units
    lossy.attempts = {first.name: {"x": Attempt(5, finished=True)}, second.name: {"y": Attempt(5)}}
    work = driven(spec, lossy)
    assert len(work.committed) == 3 and [r.unit.key for r in work.fresh] == [first.key] and not work.stopped


def test_a_record_of_another_unit_under_its_name_is_none_of_a_lost_unit(
    tmp_path: Path, lossy: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names tell URIs apart by 32 bits of a hash: what `commit` refuses is not taken here either."""
    spec = job(tmp_path, shards(tmp_path / "in", 1))
    driven(spec, lossy)
    first, second, _ = lossy.prepared.plan.units
    found = lossy.prepared.output.read_record(first.object_name(lossy.fingerprint))
    monkeypatch.setattr(OutputFolder, "read_record", lambda *_: found)
    of_first, of_second = (drive._lost_receipt(lossy.prepared, u, lossy.fingerprint, None) for u in (first, second))
    assert of_first is not None and of_first.record == found and of_second is None


def test_a_spent_budget_does_not_ask_the_store_for_what_was_not_tried(
    tmp_path: Path, lossy: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    lossy.told = 1
    clock = iter([0.0, 0.0, 0.0])  # then the budget is spent
    monkeypatch.setattr(drive, "time", SimpleNamespace(monotonic=lambda: next(clock, 100.0)))
    asked: list[Unit] = []
    monkeypatch.setattr(drive, "_lost_receipt", lambda prepared, unit, *_: asked.append(unit))
    work = driven(job(tmp_path, shards(tmp_path / "in", 1), budget_seconds=50.0), lossy)
    assert work.stopped and len(work.committed) == len(work.fresh) == 1 and asked == []
