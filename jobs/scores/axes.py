"""Round numbers along the axis of a drawing."""

from __future__ import annotations

import math


def ticks(low: float, high: float, most: int) -> list[float]:
    """At most `most` + 2 round numbers (1, 2 or 5 times a power of ten apart) of which the first is at most `low` and
    the last at least `high`."""
    span = (high - low) or abs(high) or 1.0
    step = 10.0 ** math.floor(math.log10(span / most))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= most)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]
