"""What a run tells while it goes on: which event, and where it stands then."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Event(StrEnum):
    """What a run has to tell."""

    #: Before the stream: another driver may be at work on the output; the reason says who and for how long. During it:
    #: nobody is at work; the reason has what the pool asks and what the cluster has.
    WAITING = "waiting"
    #: The stream begins. Not told by a run that finds nothing to do.
    RUNNING = "running"
    COMMITTED = "unit_committed"
    #: A try of a unit came to nothing.
    FAILED = "unit_failed"
    #: A unit, or a part of one, waits for the next round.
    RETRY = "retry"
    #: A unit is not tried again by this run.
    GIVEN_UP = "unit_given_up"


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands when `event` happens.

    unit, reason: whose event it is, and why, where there is a unit and a reason.
    units_done, units_total, rows_done, rows_total: of the plan, what earlier runs committed of it included. A unit that
        a run cuts counts as its parts.
    rows_new, rows_error: committed by this run, and of them in error.
    seconds: wall time of the run. stream_seconds: of it, since the stream began. dollars: price of `seconds`.
    """

    event: Event
    units_done: int
    units_total: int
    rows_done: int
    rows_total: int
    rows_new: int
    rows_error: int
    seconds: float
    stream_seconds: float
    dollars: float
    round: int
    unit: str = ""
    reason: str = ""

    @property
    def rows_per_second(self) -> float:
        """Of this run since its stream began; starting the cluster is left out, loading the model is not."""
        return self.rows_new / self.stream_seconds if self.stream_seconds > 0 else 0.0

    @property
    def error_share(self) -> float:
        """Rows in error of the rows of this run."""
        return self.rows_error / self.rows_new if self.rows_new else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Until the plan is done, at the rate so far; None while there is none."""
        left = self.rows_total - self.rows_done
        if left <= 0:
            return 0.0
        return left / self.rows_per_second if self.rows_per_second else None
