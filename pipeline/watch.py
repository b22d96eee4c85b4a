"""Whether a stream still gets anywhere: its budget, its actors and its cluster are looked at while it runs.

Pure bookkeeping: clock, ledger and cluster are handed in. It never sees Ray.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pipeline.fit import room
from pipeline.job import Pool
from pipeline.ledger import Pulse

#: Most seconds from one look at the ledger to the next.
_EVERY = 5.0
#: Longer than a model takes to load: until then an actor that has begun to is at work.
_LOAD_SECONDS = 7200.0
#: Loads of each actor of the pool, begun and never ended, after which all of them end like that.
_LOADS = 3


class StreamEndedError(Exception):
    """Raised in a stream that is not to go on: what has ended so far counts."""


class LoadsDiedError(StreamEndedError):
    """No actor survives loading the model. The message says how many did not."""


@dataclass
class Watch:
    """Of one run. heard: whenever a unit ends. look: as often as one likes, between.

    deadline_seconds: of one pack. spent: whether the budget is. ask: what the ledger says, None where it is lost.
    resources: what the cluster has, and what of it is free. tell: people. stalled: why the stream was ended, where it
    got nowhere.
    """

    pool: Pool
    deadline_seconds: float
    spent: Callable[[], bool]
    ask: Callable[[], Pulse | None]
    resources: Callable[[], tuple[Mapping[str, float], Mapping[str, float]]]
    tell: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    stalled: str = ""
    _heard: float = field(init=False)
    _next: float = field(init=False)
    _told: float = field(init=False)  # seconds without a sign of life at which people are told again

    def __post_init__(self) -> None:
        self.heard()
        self._next = self._heard

    def heard(self) -> None:
        """A unit has ended, or the stream begins."""
        self._heard, self._told = self.clock(), self.pool.stall_seconds / 10

    def look(self) -> None:
        """Raises `StreamEndedError` where the stream is to end: the budget is spent, or for `Pool.stall_seconds` no
        unit has ended and no actor has begun anything. `LoadsDiedError` where loading the model ends every actor."""
        if self.spent():
            raise StreamEndedError("the budget was spent")
        now = self.clock()
        if now < self._next:
            return
        self._next = now + min(_EVERY, self.pool.stall_seconds / 10)
        pulse = self.ask()
        if pulse is not None:
            self._judge(pulse, min(pulse.silent, now - self._heard))

    def _judge(self, pulse: Pulse, silent: float) -> None:
        """silent: seconds without a sign of life."""
        if pulse.decoding:
            return
        if pulse.loads > _LOADS * self.pool.max_size:
            # As many as there are actors may be under way.
            raise LoadsDiedError(
                f"the decoder cannot be loaded: {pulse.loads} times a worker began to, and none got to the end: killed "
                "for want of memory, most likely"
            )
        if pulse.loads and pulse.silent < _LOAD_SECONDS:
            return
        bound = self.pool.stall_seconds
        if silent < min(self._told, bound):
            return
        there = room(self.pool, *self.resources())
        what = f"no unit has ended and no actor has begun anything for {silent:.0f} s: {there}"
        if silent >= bound:
            self.stalled = what
            raise StreamEndedError(what)
        self._told = 2 * silent
        self.tell(f"{what}. After {bound:.0f} s of that the run ends, to be continued")
