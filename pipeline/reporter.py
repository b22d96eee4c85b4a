"""What happens to units -> `Progress` for people and exports for whoever watches the cluster. Never sees Ray."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from pipeline.block import Failure, FailureKind
from pipeline.commit import Receipt
from pipeline.events import Event, Progress
from pipeline.metrics import Metrics
from pipeline.units import Unit

LOST = Failure(FailureKind.WORKER, "its worker died without a word")


class Watcher(Protocol):
    """What the reporter needs of `pipeline.exports.DriverExports`."""

    def plan(self, units: int, rows: int) -> None: ...
    def done(self, units: int, rows: int, seconds: float) -> None: ...
    def add(self, metrics: Metrics) -> None: ...
    def fail(self, failure: Failure) -> None: ...


class Reporter:
    """planned: units of the plan. left: what of them, whole or in parts, is not committed when the run begins.

    started: `time.monotonic()` of the run's start; the stream begins now. price_per_hour: in dollars.
    """

    def __init__(
        self,
        planned: Sequence[Unit],
        left: Sequence[Unit],
        watcher: Watcher,
        progress: Callable[[Progress], None] | None = None,
        *,
        started: float,
        price_per_hour: float = 0.0,
    ) -> None:
        self._units_done = units_done(planned, left)
        self._units_left = len(left)
        self._rows_total = sum(unit.rows for unit in planned)
        self._rows_done = self._rows_total - sum(unit.rows for unit in left)
        self._rows_new = self._rows_error = 0
        self._watcher, self._progress = watcher, progress
        self._started, self._streaming = started, time.monotonic()
        self._dollars_per_second = price_per_hour / 3600
        self._round = 1

    def running(self) -> None:
        self._tell(Event.RUNNING)

    def waiting(self, text: str) -> None:
        """Nothing happens, and why that may be."""
        self._tell(Event.WAITING, reason=text)

    def take(self, receipt: Receipt) -> None:
        """A unit ended."""
        if receipt.failure is not None:
            self.failed(receipt.unit, receipt.failure)
        if receipt.record is not None:
            metrics = receipt.record.metrics
            self._units_done += 1
            self._units_left -= 1
            self._rows_done += receipt.unit.rows
            if receipt.fresh:
                self._rows_new += metrics.rows_in
                self._rows_error += metrics.rows_error
                self._watcher.add(metrics)
            self._tell(Event.COMMITTED, receipt.unit)

    def failed(self, unit: Unit, failure: Failure = LOST) -> None:
        self._watcher.fail(failure)
        self._tell(Event.FAILED, unit, failure)

    def next_round(
        self, waiting: Iterable[Unit], failures: Mapping[Unit, Failure], given_up: Mapping[Unit, Failure]
    ) -> None:
        """A round is over. waiting: units of the next one. failures: why units of this one failed."""
        waiting = list(waiting)
        self._round += 1
        self._units_left = len(waiting) + len(given_up)
        for unit in waiting:
            self._tell(Event.RETRY, unit, failures.get(unit, LOST))
        if not waiting:
            for unit, failure in given_up.items():
                self._tell(Event.GIVEN_UP, unit, failure)
        self._watch()

    def _tell(self, event: Event, unit: Unit | None = None, failure: Failure | None = None, reason: str = "") -> None:
        total = self._units_done + self._units_left
        if event is Event.RUNNING:
            self._watcher.plan(total, self._rows_total)
        now = self._watch()
        if self._progress is None:
            return
        self._progress(
            Progress(
                event,
                units_done=self._units_done,
                units_total=total,
                rows_done=self._rows_done,
                rows_total=self._rows_total,
                rows_new=self._rows_new,
                rows_error=self._rows_error,
                seconds=now - self._started,
                stream_seconds=now - self._streaming,
                dollars=(now - self._started) * self._dollars_per_second,
                round=self._round,
                unit=str(unit) if unit else "",
                reason=f"{failure.kind.value}: {failure.reason}" if failure else reason,
            )
        )

    def _watch(self) -> float:
        """Tells the watcher how far the run is, and how long it has taken since its very start; the time it is now."""
        now = time.monotonic()
        self._watcher.done(self._units_done, self._rows_done, now - self._started)
        return now


def units_done(planned: Iterable[Unit], left: Iterable[Unit]) -> int:
    """Planned units of which nothing is `left`. How many units earlier runs committed says nothing of this plan: under
    a limit, for example, they were cut otherwise."""
    starts: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for unit in left:
        starts[unit.file.uri, unit.file.version].append(unit.start)
    for rows in starts.values():
        rows.sort()

    def touched(unit: Unit) -> bool:
        rows = starts.get((unit.file.uri, unit.file.version), [])
        place = bisect_left(rows, unit.start)
        return place < len(rows) and rows[place] < unit.stop

    return sum(not touched(unit) for unit in planned)
