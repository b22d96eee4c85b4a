"""When who is killed, drawn from a seed before anything runs."""

from __future__ import annotations

import random
from dataclasses import dataclass

#: Units after which nobody is killed any more, as a share: what follows is undisturbed, and measures the pace.
UNTIL = 0.7
#: Share of killed drivers whose successor is killed as well, before or while it starts its work.
AGAIN = 0.25
#: Longest wait behind the unit that a kill waits for, and of a second kill of a driver behind its start, in seconds.
JITTER, STARTING = 1.0, 12.0


@dataclass(frozen=True)
class Kill:
    """units: committed ones that it waits for. target: `driver` | `actor`. wait: seconds from then on. again: seconds
    after which the next driver is killed too, whatever it has done; None for no such."""

    units: int
    target: str
    wait: float
    again: float | None = None


def drawn(units: int, count: int, driver_share: float, seed: int) -> list[Kill]:
    """`count` kills over a job of so many units, in order; drivers and actors where there are two and both have a
    share."""
    draw = random.Random(f"kills {seed}")
    drivers = round(count * driver_share)
    if count > 1 and 0 < driver_share < 1:
        drivers = min(max(1, drivers), count - 1)
    targets = ["driver"] * drivers + ["actor"] * (count - drivers)
    draw.shuffle(targets)
    points = sorted(draw.randint(1, max(1, int(units * UNTIL))) for _ in targets)
    kills = []
    for point, target in zip(points, targets, strict=True):
        again = draw.uniform(0, STARTING) if target == "driver" and draw.random() < AGAIN else None
        kills.append(Kill(point, target, draw.uniform(0, JITTER), again))
    return kills
