"""What people are told of a run, and what is exported, without Ray."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace

import pytest

from hpd_core.rows import Counts
from pipeline import exports, metric_names
from pipeline.block import Failure, FailureKind
from pipeline.commit import Receipt
from pipeline.events import Event, Progress
from pipeline.exports import ActorExports, DriverExports
from pipeline.manifest import UnitRecord
from pipeline.metric_names import ACTOR, ALL, COUNTS, DRIVER, Exported, MetricKind
from pipeline.metrics import Metrics
from pipeline.reporter import Reporter, units_done
from pipeline.units import InputFile, Unit

FILE = InputFile("x.parquet", 100, "1")
PLANNED = [Unit(FILE, start, start + 10) for start in range(0, 40, 10)]


def receipt(unit: Unit, errors: int = 0, fresh: bool = True) -> Receipt:
    metrics = Metrics()
    metrics.rows.update({"ok": unit.rows - errors, "error": errors})
    return Receipt(unit, UnitRecord(unit, unit.name, "f", 1, "", metrics), fresh=fresh)


def reporter(left: list[Unit], seen: list[Progress]) -> Reporter:
    return Reporter(PLANNED, left, DriverExports(), seen.append, started=0.0, price_per_hour=3.6)


def test_a_unit_of_which_a_part_is_left_is_not_done() -> None:
    assert units_done(PLANNED, [PLANNED[1].within(14, 20), PLANNED[3]]) == 2
    assert units_done(PLANNED, []) == 4 and units_done(PLANNED, PLANNED) == 0
    assert units_done([Unit(FILE, 0, 0), *PLANNED], PLANNED) == 1  # a file without rows
    other = InputFile("x.parquet", 100, "2")
    assert units_done(PLANNED, [Unit(other, 0, 10)]) == 4


def test_progress_counts_the_plan_whatever_earlier_runs_committed_beyond_it() -> None:
    seen: list[Progress] = []
    report = reporter([PLANNED[1].within(14, 20), PLANNED[3]], seen)
    report.running()
    report.take(receipt(PLANNED[1].within(14, 20), errors=3))
    report.take(receipt(PLANNED[3], fresh=False))
    assert [(p.event, p.units_done, p.units_total, p.rows_done, p.rows_total) for p in seen] == [
        (Event.RUNNING, 2, 4, 24, 40),
        (Event.COMMITTED, 3, 4, 30, 40),
        (Event.COMMITTED, 4, 4, 40, 40),
    ]
    # What another driver committed meanwhile is not this run's work.
    assert (seen[-1].rows_new, seen[-1].rows_error, seen[-1].error_share) == (6, 3, 0.5)
    assert seen[-1].seconds_left == 0.0 and seen[0].seconds_left is None
    assert seen[-1].dollars == pytest.approx(seen[-1].seconds / 1000)


def test_failures_retries_and_what_is_given_up_are_told_with_their_reasons() -> None:
    seen: list[Progress] = []
    report = reporter(PLANNED[2:], seen)
    failure = Failure(FailureKind.READ, "it is gone")
    report.take(Receipt(PLANNED[2], failure=failure))
    report.failed(PLANNED[3])
    halves = PLANNED[3].cut_at([35])
    report.next_round([PLANNED[2], *halves], {PLANNED[2]: failure}, {})
    report.take(receipt(halves[0]))
    report.take(receipt(halves[1]))
    report.next_round([], {PLANNED[2]: failure}, {PLANNED[2]: failure})
    told = [(p.event, p.unit, p.reason.partition(":")[0]) for p in seen]
    x = "of x.parquet"
    assert told == [
        (Event.FAILED, f"rows 20..30 {x}", "read"),
        (Event.FAILED, f"rows 30..40 {x}", "worker"),
        (Event.RETRY, f"rows 20..30 {x}", "read"),
        (Event.RETRY, f"rows 30..35 {x}", "worker"),
        (Event.RETRY, f"rows 35..40 {x}", "worker"),
        (Event.COMMITTED, f"rows 30..35 {x}", ""),
        (Event.COMMITTED, f"rows 35..40 {x}", ""),
        (Event.GIVEN_UP, f"rows 20..30 {x}", "read"),
    ]
    assert [(p.units_done, p.units_total) for p in seen[-2:]] == [(4, 5), (4, 5)]
    assert [p.round for p in seen] == [1, 1, 2, 2, 2, 2, 2, 3]


class Telling:
    """In place of instruments: the dollars that they are told."""

    def __init__(self) -> None:
        self.dollars: list[float] = []

    def tell(self, metric: Exported, number: float, **tags: str) -> None:
        if metric is metric_names.DOLLARS:
            self.dollars.append(number)


def test_dollars_count_from_the_very_start_of_the_run_to_the_end_of_its_last_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planning, Ray's start and measuring `auto` come before the reporter and are paid for as well."""
    told, clock = Telling(), iter([130.0, 150.0, 151.0])
    monkeypatch.setattr(exports, "instruments", lambda _: told)
    monkeypatch.setattr("pipeline.reporter.time", SimpleNamespace(monotonic=lambda: next(clock)))
    report = Reporter(PLANNED, [], DriverExports(3600.0), started=100.0)
    report.running()
    report.next_round([], {}, {})
    assert told.dollars == pytest.approx([50.0, 1.0])


def test_every_count_has_a_name_of_its_own() -> None:
    assert set(COUNTS) == {field.name for field in fields(Counts)}, "a new count needs a line in metric_names.COUNTS"
    names = [metric.name for metric in ALL]
    assert len(set(names)) == len(names) == len(DRIVER) + len(ACTOR)
    constants = {value.name for value in vars(metric_names).values() if isinstance(value, Exported)}
    assert constants | {metric.name for metric in COUNTS.values()} == set(names)
    assert all(metric.name.startswith("hpd_") and metric.help for metric in ALL)
    with pytest.raises(ValueError, match="ends with _total"):
        Exported("hpd_rows", MetricKind.COUNTER, "rows")


def test_what_ray_refuses_to_record_is_forgotten_and_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refuses:
        calls = 0

        def inc(self, number: float, tags: dict[str, str]) -> None:
            Refuses.calls += 1
            raise RuntimeError("no agent")

    monkeypatch.setattr(exports, "_make", lambda metric: Refuses())
    made = exports.Instruments([metric_names.UNITS], "1")
    made.tell(metric_names.UNITS, 0)
    assert Refuses.calls == 0  # Ray refuses to add nothing
    made.tell(metric_names.UNITS, 1)
    made.tell(metric_names.UNITS, 1)
    assert Refuses.calls == 1


def test_outside_ray_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "_make", None)
    driver = DriverExports(1.0)
    driver.done(1, 1, 1.0)
    driver.fail(Failure(FailureKind.READ, "gone"))
    with pytest.raises(MemoryError):
        ActorExports().watched(_raises)([])


def _raises(documents: object) -> None:
    raise MemoryError
