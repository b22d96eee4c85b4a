"""One driver per output: who is refused, who takes over and when, and what a driver does that has lost its lease."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline import lease as leases
from pipeline.events import Event, Progress
from pipeline.holder import Holder
from pipeline.job import JobError, JobSpec, UnitCaps
from pipeline.lease import LEASE, LeaseLostError, OutputHeldError, Pace, held
from pipeline.manifest import OutputFolder
from pipeline.run import run
from pipeline.storage import Storage, StorageError, StoreUnavailableError
from pipeline.verify import verify
from pipeline.versioned import Version, read_version, swap
from tests.pipeline.fakes import HashDecoders
from tests.pipeline.helpers import assert_exact, inline, input_table, job, shards, titles, write
from tests.pipeline.holding import FORK, QUICK, holding, race, without_lease

#: Somebody on another machine: nothing can be known of that process but what its lease says.
ELSEWHERE = replace(Holder.here(), run="elsewhere", host="node-7", pid=4321, place="another boot")
SILENT = Pace(seconds=0.5, renew=60.0, poll=0.02)


@pytest.fixture
def output(tmp_path: Path) -> OutputFolder:
    return OutputFolder(str(tmp_path / "out"), Storage())


@pytest.fixture
def pace(monkeypatch: pytest.MonkeyPatch) -> Callable[[Pace], None]:
    return lambda pace: monkeypatch.setattr(leases, "PACE", pace)


def leave(output: OutputFolder, holder: Holder = ELSEWHERE, renewal: int = 1) -> None:
    """The lease as a driver leaves it that was killed."""
    output.storage.replace(output.path(LEASE), holder.to_json(renewal))


def holder_of(output: OutputFolder) -> Holder | None:
    text = output.storage.read(output.path(LEASE))
    return None if text is None else Holder.from_json(text)


def ignore(_: str) -> None:
    pass


def test_a_lease_names_its_holder_changes_and_is_gone_afterwards(output: OutputFolder, pace: Callable) -> None:
    pace(QUICK)
    told: list[str] = []
    with held(output, told.append) as lease:
        first = output.storage.read(output.path(LEASE))
        facts = json.loads(first or b"")
        assert facts["pid"] == os.getpid() and facts["host"] and facts["user"] and facts["run"]
        end = time.monotonic() + 30
        while output.storage.read(output.path(LEASE)) == first and time.monotonic() < end:
            time.sleep(0.02)
        assert output.storage.read(output.path(LEASE)) != first
        assert not lease.waited
    assert holder_of(output) is None and told == []
    with pytest.raises(ZeroDivisionError), held(output, ignore):
        raise ZeroDivisionError
    assert holder_of(output) is None
    time.sleep(2 * QUICK.renew)
    assert holder_of(output) is None  # the thread has ended too


def test_a_driver_is_refused_while_the_holder_renews(output: OutputFolder, pace: Callable) -> None:
    pace(QUICK)
    told: list[str] = []
    with holding(output) as (other, _):
        who = rf"{output.uri} is being written by process {other.pid} of .* on .*run"
        with pytest.raises(OutputHeldError, match=who), held(output, told.append):
            pytest.fail("two hold the lease")
        assert len(told) == 1 and f"held by process {other.pid}" in told[0] and "up to 3 s" in told[0]
        there = holder_of(output)
        assert there is not None and there.pid == other.pid


@pytest.mark.parametrize("since", ["1970-01-01T00:00:00+00:00", "2999-01-01T00:00:00+00:00"])
def test_one_that_is_silent_for_a_lease_time_is_taken_over_whatever_its_clock_says(
    output: OutputFolder, pace: Callable, since: str
) -> None:
    pace(SILENT)
    leave(output, replace(ELSEWHERE, since=since))
    year = int(since[:4])
    os.utime(output.path(LEASE), (max(0, year - 1970) * 31_557_600,) * 2)
    told: list[str] = []
    started = time.monotonic()
    with held(output, told.append) as lease:
        assert time.monotonic() - started >= SILENT.seconds
        assert lease.waited and holder_of(output) == lease._me
    assert ["waiting up to 0.5 s" in told[0], "on node-7" in told[1], "taking over" in told[1]] == [True] * 3


def test_one_renewal_that_was_under_way_when_its_holder_was_killed_is_no_sign_of_life(
    output: OutputFolder, pace: Callable
) -> None:
    pace(SILENT)
    leave(output)
    late = threading.Timer(0.2, lambda: leave(output, renewal=2))
    late.start()
    started = time.monotonic()
    with held(output, ignore) as lease:
        late.join()
        assert lease.waited and time.monotonic() - started >= 0.2 + SILENT.seconds


def test_what_is_no_lease_blocks_nobody_for_long(output: OutputFolder, pace: Callable) -> None:
    pace(SILENT)
    output.storage.replace(output.path(LEASE), b"\xff what is this")
    with held(output, ignore) as lease:
        assert lease.waited


def test_a_killed_driver_of_this_machine_is_taken_over_at_once(output: OutputFolder) -> None:
    """With the real times: 30 s would be waited for."""
    told: list[str] = []
    with holding(output) as (other, _):
        other.kill()
        deadline = time.monotonic() + 30
        while not Holder.is_gone(holder_of(output) or ELSEWHERE) and time.monotonic() < deadline:
            time.sleep(0.01)  # not waited for by its parent yet: a zombie is gone as well
        started = time.monotonic()
        with held(output, told.append) as lease:
            assert lease.waited and time.monotonic() - started < 10
    assert len(told) == 1 and f"process {other.pid}" in told[0] and "has ended: taking over" in told[0]


def test_only_what_is_known_to_be_gone_is_gone(output: OutputFolder) -> None:
    if not Holder.here().place:
        pytest.skip("needs /proc of Linux")
    with holding(output) as (other, _):
        there = holder_of(output)
        assert there is not None and not there.is_gone()
        assert replace(there, born="1").is_gone()  # another process has its number by now
        os.kill(other.pid or 0, signal.SIGSTOP)
        assert not there.is_gone()
    assert (
        there.is_gone()
        and not replace(there, place="another boot").is_gone()
        and not replace(there, place="").is_gone()
    )
    assert not replace(there, pid=1, born="").is_gone()


def test_a_suspended_driver_loses_its_lease_and_notices(output: OutputFolder, pace: Callable) -> None:
    pace(replace(QUICK, seconds=0.5))
    with holding(output) as (other, pipe):
        os.kill(other.pid or 0, signal.SIGSTOP)
        with held(output, ignore) as lease:
            os.kill(other.pid or 0, signal.SIGCONT)
            pipe.send("go on")
            assert f"lost: {output.uri}: another driver has taken over, process {os.getpid()} of" in pipe.recv()
            lease.confirm()
            assert holder_of(output) == lease._me  # given back by nobody but its holder


def test_a_lease_that_a_successor_gave_back_is_not_taken_again(output: OutputFolder, pace: Callable) -> None:
    pace(SILENT)
    with held(output, ignore) as lease:
        with held(output, ignore) as successor:
            assert successor.waited
        assert holder_of(output) is None
        with pytest.raises(LeaseLostError, match="its lease is gone, and another driver may have taken over"):
            lease.confirm()
        with pytest.raises(LeaseLostError):
            lease.check()
        assert holder_of(output) is None


def test_of_many_who_see_it_silent_one_takes_over(output: OutputFolder, pace: Callable) -> None:
    pace(Pace(seconds=0.5, renew=0.1, poll=0.02))
    leave(output)
    ended: list[str] = []
    got, refused = threading.Event(), threading.Semaphore(0)

    def contend() -> None:
        try:
            with held(output, ignore):
                ended.append("held")
                got.set()
                for _ in range(5):
                    assert refused.acquire(timeout=60)
        except OutputHeldError:
            ended.append("refused")
            refused.release()

    threads = [threading.Thread(target=contend) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(ended) == ["held"] + ["refused"] * 5


def test_a_lease_that_somebody_removed_is_put_back_and_one_that_cannot_be_renewed_goes_on(
    output: OutputFolder, pace: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace(replace(SILENT, seconds=30.0))
    with held(output, ignore) as lease:
        output.storage.delete(output.path(LEASE))
        lease.confirm()
        assert holder_of(output) == lease._me

        def fail(*_: object) -> Version:
            raise StoreUnavailableError("s3://x: SlowDown")

        with monkeypatch.context() as broken:
            broken.setattr(leases, "read_version", fail)
            with pytest.raises(StoreUnavailableError):
                lease.confirm()
            lease.check()
        lease.confirm()
    assert holder_of(output) is None


def test_a_renewal_whose_answer_was_lost_is_a_renewal(
    output: OutputFolder, pace: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace(SILENT)

    def deaf(*arguments: Any) -> bool:
        swap(*arguments)
        return False

    monkeypatch.setattr(leases, "swap", deaf)
    with held(output, ignore) as lease:
        lease.confirm()
        assert holder_of(output) == lease._me


def test_a_version_is_swapped_once(tmp_path: Path) -> None:
    uri, storage = str(tmp_path / "x"), Storage()
    assert read_version(storage, uri) is None and not swap(storage, uri, b"2", "none")
    storage.create(uri, b"1")
    first = read_version(storage, uri)
    assert first is not None and first.data == b"1"
    assert [swap(storage, uri, bytes([n]), first.tag) for n in range(5)] == [True] + [False] * 4
    assert storage.read(uri) == bytes([0]) and os.listdir(tmp_path) == ["x"]


# --- jobs -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobSpec:
    monkeypatch.setattr("pipeline.drive.drive", inline)
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    return job(tmp_path, shards(tmp_path / "in", 2, rows=20))


def committed(output: OutputFolder) -> int:
    return len(output.record_names())


def test_a_job_is_refused_while_another_driver_writes_its_output(
    spec: JobSpec, output: OutputFolder, pace: Callable
) -> None:
    pace(QUICK)
    seen: list[Progress] = []
    with holding(output) as (other, _):
        with pytest.raises(OutputHeldError, match=str(other.pid)):
            run(spec, progress=seen.append)
        assert os.listdir(output.uri) == ["_manifest"] and os.listdir(output.path("_manifest")) == ["lease.json"]
    assert [(s.event, s.rows_done, s.rows_total) for s in seen] == [
        (Event.WAITING, 0, 40)
    ] and "waiting up to 3 s" in seen[0].reason
    assert run(spec).complete and holder_of(output) is None


def test_a_job_that_waited_goes_on_from_what_was_done_meanwhile(
    spec: JobSpec, output: OutputFolder, pace: Callable
) -> None:
    """The other driver finishes the whole output while this one waits."""
    pace(Pace(seconds=30.0, renew=60.0, poll=0.02))
    first = HashDecoders(Path(spec.inputs[0]).parent / "first.log")
    waiting = threading.Event()

    def other() -> None:
        with held(output, ignore):
            assert waiting.wait(30)
            with without_lease():
                assert run(replace(spec, decoder_factory=first)).complete

    thread = threading.Thread(target=other)
    thread.start()
    while holder_of(output) is None:
        time.sleep(0.01)
    summary = run(spec, progress=lambda _: waiting.set())
    thread.join()
    assert summary.complete and summary.model_calls == 0 and sum(first.calls()) == 40
    assert not (Path(spec.inputs[0]).parent / "calls.log").exists()


def test_a_job_that_waited_takes_no_record_for_known(
    spec: JobSpec, output: OutputFolder, pace: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace(SILENT)
    assert run(spec).complete
    shards(tmp_path / "in", 3, rows=20)
    read, given = OutputFolder.read_records, list[int]()

    def spy(self: OutputFolder, known: Any = (), held: Any = None) -> Any:
        given.append(len(list(known)))
        return read(self, known, held)

    monkeypatch.setattr(OutputFolder, "read_records", spy)
    leave(output)
    assert run(spec).complete and given[:2] == [0, 0]
    given.clear()
    shards(tmp_path / "in", 4, rows=20)
    assert run(spec).complete and given[:2] == [0, 3]


def test_a_job_that_another_one_overtook_before_it_had_the_lease_is_refused(
    spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(spec, decoder=replace(spec.decoder, model=replace(spec.decoder.model, revision="other")))
    take = leases.Lease.take

    def overtaken(self: leases.Lease, tell: Callable[[str], None]) -> None:
        monkeypatch.setattr(leases.Lease, "take", take)
        assert run(other).complete
        take(self, tell)

    monkeypatch.setattr(leases.Lease, "take", overtaken)
    with pytest.raises(JobError, match="begun by another job"):
        run(spec)
    assert run(other).model_calls == 0


def test_a_driver_that_lost_its_lease_marks_no_success_and_the_next_one_finishes(
    spec: JobSpec, output: OutputFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pace: Callable
) -> None:
    pace(SILENT)

    def suspended(*arguments: Any) -> None:
        inline(*arguments)
        leave(output)  # as if it had been stopped for long, and another driver had begun

    monkeypatch.setattr("pipeline.drive.drive", suspended)
    with pytest.raises(
        LeaseLostError, match=rf"{output.uri}: another driver has taken over, process 4321 .* on node-7"
    ):
        run(spec)
    assert not output.is_finished() and output.read_json("_manifest/job.json") is None
    assert output.read_json("metrics.json") is None and holder_of(output) == ELSEWHERE and committed(output) == 2
    monkeypatch.setattr("pipeline.drive.drive", inline)
    calls = HashDecoders(tmp_path / "calls.log").calls()
    summary = run(spec)  # once the other one is silent
    assert summary.complete and HashDecoders(tmp_path / "calls.log").calls() == calls
    assert_exact(output.uri, input_table(tmp_path / "in"))


@pytest.mark.parametrize("rows", [20, 7])
@pytest.mark.parametrize("leased", [True, False])
def test_a_driver_that_was_suspended_before_it_tidied_up_removes_nothing_of_its_successor(
    spec: JobSpec,
    output: OutputFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pace: Callable,
    rows: int,
    leased: bool,
) -> None:
    """Behind its last look at the lease: meanwhile another driver with other `units` takes over and ends, with rows of
    a file that is new. Without any lease as well."""
    pace(SILENT)
    remove, ended = OutputFolder.remove, list[bool]()

    def suspended(self: OutputFolder, uris: Any) -> None:
        if output.read_json("_manifest/job.json") is not None and not ended:
            ended.append(False)
            table = {"id": list(range(40, 60)), "title": titles(40, 60)}
            write(tmp_path / "in/part-0002.parquet", table)
            ended[:] = [run(replace(spec, units=UnitCaps(rows=rows))).complete]
        remove(self, uris)

    monkeypatch.setattr(OutputFolder, "remove", suspended)
    if leased:
        with pytest.raises(LeaseLostError):
            run(spec)
    else:
        with without_lease():
            assert run(spec).complete
    assert ended == [True] and output.is_finished()
    assert_exact(output.uri, input_table(tmp_path / "in"))
    assert verify(output, Storage()).findings == () and committed(output) == 2 + -(-20 // rows)


@pytest.mark.parametrize("step", range(1, 7))
def test_a_lease_lost_at_any_step_leaves_no_mark_of_success(
    spec: JobSpec, output: OutputFolder, step: int, monkeypatch: pytest.MonkeyPatch, pace: Callable
) -> None:
    pace(replace(SILENT, seconds=0.1))
    confirm, steps = leases.Lease.confirm, iter(range(1, 9))

    def losing(self: leases.Lease) -> None:
        if next(steps) == step:
            leave(output)
        confirm(self)

    with monkeypatch.context() as broken:
        broken.setattr(leases.Lease, "confirm", losing)
        with pytest.raises(LeaseLostError):
            run(spec)
    # Before Ray's work: at the very beginning, and before merged files are taken apart.
    assert not output.is_finished() and committed(output) == (2 if step > 2 else 0)
    assert (output.read_json("run.json") is None) == (step == 1)
    assert run(spec).complete and verify(output, Storage()).findings == ()


def test_a_driver_that_lost_its_lease_stops_after_the_next_unit(
    spec: JobSpec, output: OutputFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(prepared: Any, mark: str, units: Any, kept: Any, started: float, progress: Any, work: Any) -> None:
        leave(output)
        with pytest.raises(LeaseLostError):
            leases_held[0].confirm()  # as the thread does every ten seconds
        progress(Progress(Event.RUNNING, 0, 2, 0, 40, 0, 0, 0.0, 0.0, 0.0, 1))
        pytest.fail("the driver goes on")

    leases_held: list[leases.Lease] = []
    take = leases.Lease.take
    monkeypatch.setattr(leases.Lease, "take", lambda self, tell: (take(self, tell), leases_held.append(self)))
    monkeypatch.setattr("pipeline.drive.drive", told)
    with pytest.raises(LeaseLostError):
        run(spec)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(4), StorageError("disk"), RuntimeError("bug")])
def test_a_job_that_ends_early_gives_its_lease_back(
    spec: JobSpec, output: OutputFolder, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_: object) -> None:
        assert holder_of(output) is not None
        raise error

    monkeypatch.setattr("pipeline.drive.drive", fail)
    with pytest.raises(type(error)):
        run(spec)
    assert holder_of(output) is None


def test_who_only_reads_neither_takes_nor_heeds_a_lease(
    spec: JobSpec, output: OutputFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(spec)
    leave(output)
    before = {path: path.stat().st_mtime_ns for path in Path(output.uri).rglob("*") if path.is_file()}
    monkeypatch.setattr(leases, "read_version", None)  # whoever asks for the lease fails
    again = run(spec)
    assert again.complete and again.model_calls == 0
    assert verify(output, Storage()).findings == ()
    assert {path: path.stat().st_mtime_ns for path in Path(output.uri).rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("attempt", range(2))
def test_two_writers_at_once_make_one_exact_output(tmp_path: Path, output: OutputFolder, attempt: int) -> None:
    """Without any lease: what protects the rows is that data and manifests are created once."""
    shards(tmp_path / "in", 4, rows=40, row_group_size=10)
    logs = [f"{n}.log" for n in range(2 + attempt)]
    specs = [job(tmp_path, tmp_path / "in", decoder_factory=HashDecoders(tmp_path / log)) for log in logs]
    drivers = [FORK.Process(target=race, args=(spec, 10 * attempt + n)) for n, spec in enumerate(specs)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join(100)
    assert [driver.exitcode for driver in drivers] == [0] * len(drivers)
    assert_exact(output.uri, input_table(tmp_path / "in"))
    result = verify(output, Storage())
    assert result.findings == () and result.extent.rows_compared == 160
    decoded = [sum(HashDecoders(tmp_path / log).calls()) for log in logs]
    assert sum(decoded) > 160, "they did not run at the same time"
