"""Rounds over what is not committed: try again what failed, cut what took its worker down, end when nothing is left.

Pure bookkeeping: `Rounds` is told what happened and says what to run next. It never sees Ray.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from pipeline.block import Failure, FailureKind
from pipeline.ledger import Rows
from pipeline.record import UnitRecord
from pipeline.units import Unit

#: A job whose workers die wherever they are put ends after so many rounds in which none was seen to live.
BARREN_ROUNDS = 4
#: Parts of a pack that hung: each of them may take a whole deadline again, and others decode beside it.
_PARTS = 8
POISON = "this row ended every worker that took it (killed, out of memory, or past the deadline)"


@dataclass
class Work:
    """What one run brought in. waste: see `RunWork`. seconds: wall time of the stream. stopped: the stream was ended
    with units left, since the budget was spent or, where it says so, for being `stalled`."""

    committed: list[UnitRecord] = field(default_factory=list)
    fresh: list[UnitRecord] = field(default_factory=list)
    given_up: dict[Unit, Failure] = field(default_factory=dict)
    rounds: int = 0
    seconds: float = 0.0
    waste: tuple[int, int] | None = (0, 0)
    stopped: bool = False
    stalled: str = ""


@dataclass
class Rounds:
    """waiting: units of the next round. given_up: why units are not tried again. number: rounds run so far."""

    waiting: list[Unit]
    max_tries: int
    given_up: dict[Unit, Failure] = field(default_factory=dict)
    number: int = 0
    _tries: dict[tuple[str, str, int, int], int] = field(default_factory=dict)
    _barren: int = 0

    def after(
        self,
        committed: Collection[Unit],
        failures: Mapping[Unit, Failure],
        begun: Collection[str] | None,
        suspects: Mapping[str, Rows] | None = None,
    ) -> None:
        """Takes in the outcome of the round over `waiting` and decides the next.

        begun: names of units whose decoding ever began, None where nobody knows. A unit that is gone without having
        been begun may not be what took its worker down: it is tried whole once more before it is cut.
        suspects: by unit name, the rows that its worker was last seen at; those of the whole unit where nobody knows.

        What is lost is cut down to the row that ends every worker, which is committed as an error once others have
        lived, or nothing larger is left: until then workers may die for another reason.
        """
        units, self.waiting = self.waiting, []
        self.number += 1
        unloadable = next((f for f in failures.values() if f.kind is FailureKind.LOAD), None)
        if unloadable is not None:  # the round ended there: the other units are no worse for it
            self.given_up |= {unit: unloadable for unit in units if unit not in committed}
            return
        lost: list[Unit] = []
        for unit in units:
            failure = failures.get(unit)
            if unit in committed:
                continue
            if failure is not None and failure.kind is not FailureKind.WORKER:
                self._again(unit, failure)
            elif failure is None and begun is not None and unit.name not in begun and not self._tries.get(unit.key):
                self._again(unit, Failure(FailureKind.WORKER, "its worker died before decoding began"))
            else:
                lost.append(unit)
        lived, alone = any(not unit.poison for unit in committed), all(unit.rows == 1 for unit in lost)
        if lived:
            self._barren = 0
        elif not alone or not (committed or lost):
            self._barren += 1
        for unit in lost:
            if unit.rows > 1:
                cut = (suspects or {}).get(unit.name) or Rows(unit.start, unit.stop)
                self.waiting += self._parts(unit, cut, _PARTS if unit in failures else 2)
            elif unit.poison:
                self.given_up[unit] = Failure(FailureKind.WORKER, "its worker died although the row was not decoded")
            elif lived or alone:
                self.waiting.append(replace(unit, poison=POISON))
            else:  # nothing shows that a worker can live
                self.waiting.append(unit)
        if self._barren >= BARREN_ROUNDS:
            fatal = Failure(FailureKind.WORKER, f"workers die everywhere: {BARREN_ROUNDS} rounds without a commit")
            self.given_up |= dict.fromkeys(self.waiting, fatal)
            self.waiting = []

    def _again(self, unit: Unit, failure: Failure) -> None:
        tries = self._tries[unit.key] = self._tries.get(unit.key, 0) + 1
        if tries >= self.max_tries:
            self.given_up[unit] = failure
        else:
            self.waiting.append(unit)

    def _parts(self, unit: Unit, rows: Rows, parts: int) -> list[Unit]:
        """A unit of which every try ended its worker, in halves, with its `rows` cut out and into `parts`.

        Where no worker lived through the round before either, a row drawn from the unit is tried alone as well: with
        many rows that end their worker each large unit has one, and yet most rows are fine.
        """
        edges = {rows.start + (rows.stop - rows.start) * part // parts for part in range(parts + 1)}
        edges.add((unit.start + unit.stop) // 2)
        if self._barren > 1:
            drawn = random.Random(unit.name).randrange(unit.start, unit.stop)
            edges |= {drawn, drawn + 1}
        return unit.cut_at(edges)


def by_file(given_up: Mapping[Unit, Failure]) -> list[str]:
    """One line per file and reason, for people."""
    groups: dict[tuple[str, str], list[Unit]] = {}
    for unit, failure in given_up.items():
        groups.setdefault((unit.file.uri, f"{failure.kind.value}: {failure.reason}"), []).append(unit)
    return [
        f"{uri}: {len(units)} unit(s), rows {min(u.start for u in units)} to {max(u.stop for u in units)}: {reason}"
        for (uri, reason), units in groups.items()
    ]
