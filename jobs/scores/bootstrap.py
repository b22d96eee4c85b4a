"""How sure a figure is: a percentile bootstrap over rows, and the paired one for the difference of two runs.

The rows of a benchmark are taken for a sample of all products. Drawing as many of them again, with replacement, and
scoring the draw shows how far a figure moves when other rows of the same kind are tested. Whole rows are drawn, never
single slots: the values of one product are right or wrong together. An interval speaks of products like the rows that
were run: the first rows of a file sorted by category say nothing about the categories that come later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jobs.scores.scoring import Scores

IntArray = NDArray[np.int64]

RESAMPLES = 1000
LEVEL = 0.95
SEED = 0
#: The figures that get an interval.
METRICS: dict[str, Callable[[Scores], float]] = {"f1": lambda s: s.f1, "strict_f1": lambda s: s.strict_f1}


@dataclass(frozen=True, slots=True)
class Interval:
    """Bounds in percent (of a difference: in percentage points), both included."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"interval from {self.low} to {self.high}")

    def __contains__(self, figure: float) -> bool:
        return self.low <= figure <= self.high


@dataclass(frozen=True, slots=True)
class Difference:
    """A figure of one run minus that of another, in percentage points, and its interval."""

    value: float
    interval: Interval

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return 0.0 not in self.interval


def resample(rows: Sequence[Scores], count: int = RESAMPLES, seed: int = SEED) -> list[Scores]:
    """`count` draws of len(rows) rows with replacement, each summed.

    What is drawn depends on len(rows), count and seed alone, so the draws of two runs over the same rows pair up.
    Raises ValueError where there is no row to draw.
    """
    if not rows:
        raise ValueError("no row to draw from")
    counts = np.array([row.counts for row in rows], dtype=np.int64)
    return [Scores(*sums) for sums in row_draws(counts, count, seed)]


def row_draws(counts: IntArray, count: int = RESAMPLES, seed: int = SEED) -> Iterator[list[int]]:
    """Sums over `count` draws of the rows of `counts`, [rows, outcomes], with replacement: [outcomes] each."""
    rows = len(counts)
    random = np.random.default_rng(seed)
    # One draw at a time: all of them at once would be [draws, rows] numbers.
    for _ in range(count):
        times = np.bincount(random.integers(rows, size=rows), minlength=rows)
        yield (times @ counts).tolist()


def interval(draws: Sequence[Scores], metric: str, level: float = LEVEL) -> Interval:
    """The middle `level` of a figure over the draws."""
    return middle([METRICS[metric](draw) for draw in draws], level)


def difference(
    run: Scores, run_draws: Sequence[Scores], other: Scores, other_draws: Sequence[Scores], metric: str
) -> Difference:
    """`run` minus `other`, each given whole and by draws of `resample` over the same rows.

    Both are scored on the same draw, so what makes a draw hard for both cancels out: the interval is narrower than the
    two intervals apart suggest. Raises ValueError where the draws cannot be pairs.
    """
    figure = METRICS[metric]
    moved = [figure(mine) - figure(theirs) for mine, theirs in zip(run_draws, other_draws, strict=True)]
    return Difference(round(figure(run) - figure(other), 2), middle(moved, LEVEL))


def middle(figures: Sequence[float], level: float = LEVEL) -> Interval:
    """The middle `level` of figures in percent."""
    low, high = np.quantile(np.array(figures), [(1 - level) / 2, (1 + level) / 2]).tolist()
    # + 0.0: no bound is printed as -0.00.
    return Interval(round(low, 2) + 0.0, round(high, 2) + 0.0)
