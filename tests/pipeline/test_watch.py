"""When a stream is ended from within, without Ray: what its actors tell, and what is made of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.console import Exit
from jobs.extract import ending
from pipeline import drive
from pipeline.actor import DecodeActor
from pipeline.block import Failure, FailureKind, failure
from pipeline.commit import Receipt
from pipeline.config import LimitsConfig
from pipeline.events import Event, Progress
from pipeline.job import JobSpec, Pool
from pipeline.ledger import Ledger, Pulse, Rows
from pipeline.run import run
from pipeline.units import Unit
from pipeline.watch import LoadsDiedError, StreamEndedError, Watch
from tests.pipeline.fakes import HANG, RAISE, SHORT, HashDecoders
from tests.pipeline.helpers import job, shards, write
from tests.pipeline.test_stages import read, staged

QUIET, BUSY = Pulse(1e9, decoding=False, loads=0), Pulse(0.0, decoding=True, loads=0)
POOL = Pool(max_size=2, cpus=2.0, stall_seconds=600.0)
SHRUNK = ({"CPU": 4.0}, {"CPU": 0.25})


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class Watched:
    """A `Watch` over what a test says of the actors, and what people were told."""

    def __init__(self, pulse: Pulse | None, pool: Pool = POOL) -> None:
        self.pulse, self.clock, self.told, self.spent = pulse, Clock(), list[str](), False
        self.watch = Watch(
            pool,
            1800.0,
            spent=lambda: self.spent,
            ask=lambda: self.pulse,
            resources=lambda: SHRUNK,
            tell=self.told.append,
            clock=self.clock,
        )

    def lasts(self, most: float) -> float:
        """Seconds until the stream is ended, in steps of one; `most` where it is not."""
        begun = self.clock.now
        while self.clock.now - begun < most:
            self.clock.now += 1
            try:
                self.watch.look()
            except StreamEndedError:
                break
        return self.clock.now - begun


def test_a_stream_in_which_nothing_happens_says_so_with_the_numbers_and_is_ended() -> None:
    seen = Watched(QUIET)
    assert 600 <= seen.lasts(5000) <= 606
    numbers = "2 actors, reading and committing ask for 4.75 CPUs; the cluster has 4 CPUs, 0.25 of them free"
    assert all(numbers in text for text in (*seen.told, seen.watch.stalled))
    assert [text.partition(" s: ")[0].rpartition(" ")[2] for text in seen.told] == ["61", "126", "256", "516"]
    assert "After 600 s of that the run ends" in seen.told[0]


def test_gpus_are_told_where_a_pool_has_some() -> None:
    seen = Watched(QUIET, replace(POOL, gpus=1.0))
    seen.lasts(100)
    assert "4.75 CPUs and 2 GPUs; the cluster has 4 CPUs, 0.25 of them free and 0 GPUs, 0 of them free" in seen.told[0]


@pytest.mark.parametrize(
    "pulse",
    [
        BUSY,
        Pulse(1700.0, decoding=True, loads=0),  # one pack may take that long
        Pulse(5000.0, decoding=False, loads=1),  # so may a load
        Pulse(50.0, decoding=False, loads=0),
        None,  # a ledger that is lost proves nothing
    ],
)
def test_a_stream_in_which_somebody_is_at_work_goes_on_in_silence(pulse: Pulse | None) -> None:
    seen = Watched(pulse)
    assert seen.lasts(2000) == 2000 and seen.told == [] and not seen.watch.stalled


def test_a_load_that_takes_for_ever_is_no_work() -> None:
    assert Watched(Pulse(7300.0, decoding=False, loads=1)).lasts(2000) < 700


def test_each_unit_that_ends_is_a_sign_of_life() -> None:
    seen = Watched(QUIET)
    for _ in range(5):
        assert seen.lasts(500) == 500
        seen.watch.heard()
    assert seen.lasts(5000) < 700


def test_a_budget_that_is_spent_ends_the_stream_at_once_whatever_happens() -> None:
    seen = Watched(BUSY)
    assert seen.lasts(100) == 100
    seen.spent = True
    assert seen.lasts(100) == 1 and not seen.watch.stalled


@pytest.mark.parametrize(("pulse", "dies"), [(6, False), (7, True)])
def test_loads_that_never_end_are_a_model_that_cannot_be_loaded(pulse: int, dies: bool) -> None:
    """Two actors, three loads each: of the seventh on, five at least have died."""
    seen = Watched(Pulse(1.0, decoding=False, loads=pulse))
    seen.clock.now += 10
    if not dies:
        seen.watch.look()
        return
    with pytest.raises(LoadsDiedError, match=r"the decoder cannot be loaded: 7 times .* for want of memory"):
        seen.watch.look()


def test_loads_that_die_beside_an_actor_that_decodes_say_nothing_of_the_model() -> None:
    assert Watched(Pulse(1.0, decoding=True, loads=99)).lasts(100) == 100


def test_the_ledger_tells_who_is_at_work() -> None:
    clock = Clock()
    ledger = Ledger(clock=clock)
    clock.now = 5.0
    assert ledger.pulse(10.0) == Pulse(5.0, decoding=False, loads=0)
    for loads in (1, 2):  # the first died
        ledger.load()
        assert ledger.pulse(10.0) == Pulse(0.0, decoding=False, loads=loads)
    ledger.loaded()
    ledger.spend("u", "1", 0)
    clock.now += 9
    assert ledger.pulse(10.0) == Pulse(9.0, decoding=True, loads=0)
    ledger.spend("u", "1", 50, Rows(0, 5))
    clock.now += 9
    assert ledger.pulse(10.0).decoding, "each pack has its own deadline"
    ledger.finish("u", "1")
    assert ledger.pulse(10.0) == Pulse(0.0, decoding=False, loads=0)
    ledger.spend("v", "2", 0)
    ledger.fail("v", "2")
    assert not ledger.pulse(10.0).decoding
    ledger.spend("w", "3", 0)
    clock.now += 10
    assert not ledger.pulse(10.0).decoding, "it died, or it has ended by its deadline"
    assert Ledger(restarted=True, clock=clock).pulse(10.0).decoding, "who was at work before the ledger was lost"


def test_a_unit_has_hung_where_a_try_stayed_at_one_pack_for_its_deadline_and_did_not_end() -> None:
    clock = Clock()
    ledger = Ledger(clock=clock)
    assert not ledger.hung("u", 10.0)
    ledger.spend("u", "1", 0)
    clock.now = 30.0
    ledger.spend("u", "1", 50, Rows(0, 5))
    clock.now = 39.0
    assert not ledger.hung("u", 10.0)
    clock.now = 40.0
    assert ledger.hung("u", 10.0) and not ledger.hung("v", 10.0) and not ledger.hung("u", 11.0)
    ledger.fail("u", "1")
    assert not ledger.hung("u", 10.0)


class Handle:
    """Of a ledger in this process, as Ray's of an actor."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.calls = ledger, list[str]()

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any) -> Any:
            self.calls.append(name)
            return getattr(self.ledger, name)(*arguments)

        return SimpleNamespace(remote=remote)


@pytest.fixture
def handle(monkeypatch: pytest.MonkeyPatch) -> Handle:
    monkeypatch.setattr("pipeline.actor.ray.get", lambda answer, timeout: answer)
    return Handle(Ledger(clock=Clock()))


def encoded(tmp_path: Path, titles: list[str], **changes: Any) -> tuple[Unit, Any, drive.Stages]:
    write(tmp_path / "in/a.parquet", {"title": titles})
    [unit], made = staged(job(tmp_path, tmp_path / "in", **changes))
    return unit, made.tokenize(read(unit)), made


def test_an_actor_tells_its_load_its_packs_and_its_end(tmp_path: Path, handle: Handle) -> None:
    titles = ["a", "b", "a", "c", "d", "e"]  # the third is not decoded
    unit, block, made = encoded(tmp_path, titles, pack_documents=2)
    assert failure(DecodeActor(made.decode, handle)(block)) is None
    assert handle.calls == ["hung", "load", "loaded", *["spend"] * 4, "finish"]
    [attempt] = handle.ledger.attempts[unit.name].values()
    assert attempt.rows == (4, 6) and attempt.tokens == 5 and not handle.ledger.pulse(1.0).decoding


def test_a_load_that_fails_and_a_pack_that_fails_are_ends_as_well(tmp_path: Path, handle: Handle) -> None:
    _, block, made = encoded(tmp_path, ["a"], decoder_factory=HashDecoders(tmp_path / "calls.log", broken=True))
    DecodeActor(made.decode, handle)(block)
    assert handle.calls == ["hung", "load", "loaded"]
    _, block, made = encoded(tmp_path, [f"a {SHORT}"])
    assert failure(DecodeActor(made.decode, handle)(block)) is not None
    assert handle.calls[-1] == "fail" and not handle.ledger.pulse(1e9).decoding


def test_a_unit_that_hung_before_is_not_decoded_again_in_full(tmp_path: Path, handle: Handle) -> None:
    decoders = HashDecoders(tmp_path / "calls.log")
    unit, block, made = encoded(tmp_path, ["a", HANG], pack_deadline_seconds=30.0, decoder_factory=decoders)
    handle.ledger.spend(unit.name, "before", 10, Rows(0, 2))
    handle.ledger.clock.now = 30.5  # type: ignore[attr-defined]
    told = failure(DecodeActor(made.decode, handle)(block))
    assert told == Failure(FailureKind.WORKER, "a pack took longer than run.pack_deadline_seconds (30)")
    assert decoders.calls() == [] and "load" not in handle.calls
    unit, block, made = encoded(tmp_path, [HANG], pack_deadline_seconds=30.0, decoder_factory=decoders)
    handle.ledger.spend(unit.name, "before", 10, Rows(0, 1))
    handle.ledger.clock.now += 30.5  # type: ignore[attr-defined]
    error = made.tokenize(read(replace(unit, poison="it hung")))
    assert failure(DecodeActor(made.decode, handle)(error)) is None, "its row is not decoded"


def test_a_ledger_that_does_not_answer_once_is_told_again(
    tmp_path: Path, handle: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([TimeoutError("too busy")])

    def get(answer: Any, timeout: float) -> Any:
        for error in answers:
            raise error
        return answer

    monkeypatch.setattr("pipeline.actor.ray.get", get)
    _, block, made = encoded(tmp_path, ["a", f"b {RAISE}"])
    assert failure(DecodeActor(made.decode, handle)(block)) is None
    assert handle.calls[-1] == "finish"


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A stream that commits nothing and goes on for ever, ten seconds a step."""
    clock = Clock()

    def receipts(units: list[Unit], made: object, ledger: object, look: Any) -> Iterator[Receipt]:
        while True:
            clock.now += 10
            look()
            assert clock.now < 1e5, "nobody ended it"
        yield

    monkeypatch.setattr(drive, "receipts", receipts)
    monkeypatch.setattr(drive, "start_ledger", lambda: None)
    monkeypatch.setattr(drive, "read_ledger", lambda _: {})
    monkeypatch.setattr(drive, "read_pulse", lambda *_: Pulse(clock.now, decoding=False, loads=0))
    monkeypatch.setattr(drive, "resources", lambda: SHRUNK)
    monkeypatch.setattr(drive, "Watch", partial(Watch, clock=clock))
    monkeypatch.setattr("pipeline.stream.cluster", lambda *_: nullcontext())
    return clock


def ran(spec: JobSpec) -> tuple[list[Progress], list[str], Exit]:
    told: list[Progress] = []
    summary = run(spec, progress=told.append)
    return told, list(summary.failures), ending(summary, LimitsConfig())[0]


def test_a_cluster_that_has_shrunk_ends_the_run_which_can_be_resumed(tmp_path: Path, stuck: Clock) -> None:
    spec = job(tmp_path, shards(tmp_path / "in", 1), pool=Pool(cpus=2.0, stall_seconds=900.0), num_cpus=4)
    told, failures, code = ran(spec)
    assert code is Exit.INCOMPLETE and stuck.now == 900
    assert failures == [
        "40 rows in 3 units are left: no unit has ended and no actor has begun anything for 900 s: 1 actors, "
        "reading and committing ask for 2.75 CPUs; the cluster has 4 CPUs, 0.25 of them free"
    ]
    assert [state.event for state in told] == [Event.RUNNING, *[Event.WAITING] * 4]
    assert told[1].reason.startswith("no unit has ended") and told[1].reason.endswith("the run ends, to be continued")


def test_the_budget_is_looked_at_while_nothing_ends(
    tmp_path: Path, stuck: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drive, "_spent", lambda job, started: stuck.now >= job.budget_seconds)
    _, failures, code = ran(job(tmp_path, shards(tmp_path / "in", 1), budget_seconds=100.0))
    assert code is Exit.INCOMPLETE and stuck.now == 100
    assert failures == ["40 rows in 3 units are left: the budget was spent"]


def test_a_lease_that_was_lost_is_noticed_while_nothing_ends(tmp_path: Path, stuck: Clock) -> None:
    def gone(state: Progress) -> None:
        if state.event is Event.WAITING:
            raise ConnectionError("as the lease does")

    with pytest.raises(ConnectionError):
        run(job(tmp_path, shards(tmp_path / "in", 1)), progress=gone)


def test_a_model_that_kills_whoever_loads_it_ends_the_run_by_name(
    tmp_path: Path, stuck: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drive, "read_pulse", lambda *_: Pulse(1.0, decoding=False, loads=4))
    told, failures, code = ran(job(tmp_path, shards(tmp_path / "in", 1)))
    assert code is Exit.INPUT and stuck.now == 10
    [failed] = failures
    assert "3 unit(s), rows 0 to 40: load: the decoder cannot be loaded: 4 times a worker began to" in failed
    assert [state.event for state in told] == [Event.RUNNING, *[Event.FAILED] * 3, *[Event.GIVEN_UP] * 3]
