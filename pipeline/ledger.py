"""An actor that remembers which units were begun, what was spent on them, and whether anybody is at work. Losing it
loses a count, never a row."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Rows(NamedTuple):
    """Rows [start, stop) of a file: from the first row of a pack to its last. Others may stand between them."""

    start: int
    stop: int


@dataclass
class Attempt:
    """One try of one unit by one actor. tokens: prompt tokens handed to the decoder so far. rows: of the pack that was
    handed to it last."""

    tokens: int = 0
    finished: bool = False
    rows: Rows | None = None


@dataclass(frozen=True, slots=True)
class Pulse:
    """What the actors of a run do. silent: seconds since one told anything. decoding: whether one may be decoding.
    loads: of the model that were begun since one ended, or anything else was told."""

    silent: float
    decoding: bool
    loads: int


@dataclass
class Ledger:
    """{unit name: {attempt id: Attempt}}; run as a Ray actor with `num_cpus=0`.

    restarted: one before this was lost, so that there may be attempts that this one knows nothing of.
    clock: seconds; its own, since clocks of hosts differ. _open: attempts without an end, when they were last heard.
    """

    restarted: bool = False
    clock: Callable[[], float] = time.monotonic
    attempts: dict[str, dict[str, Attempt]] = field(default_factory=dict)
    _open: dict[tuple[str, str], float] = field(default_factory=dict)
    _loads: int = 0
    _heard: float = 0.0

    def __post_init__(self) -> None:
        self._heard = self.clock()
        if self.restarted:
            self._open["", ""] = self._heard

    def load(self) -> None:
        """An actor begins to load the model. One that dies over it never says so."""
        self._loads, self._heard = self._loads + 1, self.clock()

    def loaded(self) -> None:
        """A load ended, well or not, as whatever else is told shows of an earlier one."""
        self._loads, self._heard = 0, self.clock()

    def spend(self, unit: str, attempt: str, tokens: int, rows: Rows | None = None) -> None:
        """The attempt begins (0 tokens), or hands a pack of `tokens` more to the decoder."""
        mine = self.attempts.setdefault(unit, {}).setdefault(attempt, Attempt())
        mine.tokens += tokens
        mine.rows = rows or mine.rows
        self.loaded()
        self._open[unit, attempt] = self._heard

    def finish(self, unit: str, attempt: str) -> tuple[int, int]:
        """(other tries of the unit so far, prompt tokens that were spent on them)."""
        tries = self.attempts.setdefault(unit, {})
        mine = tries.setdefault(attempt, Attempt())
        mine.finished = True
        self.fail(unit, attempt)
        return len(tries) - 1, sum(other.tokens for other in tries.values()) - mine.tokens

    def fail(self, unit: str, attempt: str) -> None:
        """The attempt ended, and its actor did not."""
        self._open.pop((unit, attempt), None)
        self.loaded()

    def hung(self, unit: str, seconds: float) -> bool:
        """Whether an attempt of the unit went on with one pack for so many seconds without an end."""
        now = self.clock()
        return any(now - self._open.get((unit, tried), now) >= seconds for tried in self.attempts.get(unit, {}))

    def pulse(self, deadline: float) -> Pulse:
        """deadline: seconds after which an actor that is still at one pack is ended."""
        now = self.clock()
        decoding = any(now - at < deadline for at in self._open.values())
        return Pulse(now - self._heard, decoding, self._loads)

    def report(self) -> dict[str, dict[str, Attempt]]:
        return self.attempts


def wasted(attempts: Mapping[str, Mapping[str, Attempt]]) -> tuple[int, int]:
    """(tries beyond the first of each unit, prompt tokens of tries that did not finish or were not the first to)."""
    retries = sum(len(tries) - 1 for tries in attempts.values())
    tokens = 0
    for tries in attempts.values():
        useful = next((a for a in tries.values() if a.finished), None)
        tokens += sum(a.tokens for a in tries.values() if a is not useful)
    return retries, tokens


def suspects(attempts: Mapping[str, Mapping[str, Attempt]]) -> dict[str, Rows]:
    """{unit name: rows of the pack that was last handed to the decoder}, of units that nobody finished."""
    last = {unit: [a.rows for a in tries.values() if a.rows is not None] for unit, tries in attempts.items()}
    return {
        unit: rows[-1] for unit, rows in last.items() if rows and not any(a.finished for a in attempts[unit].values())
    }
