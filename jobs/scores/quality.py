"""Everything that is said about the predictions of one run: scores, how sure they are, parts, errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.scores.bootstrap import LEVEL, METRICS, RESAMPLES, SEED, Interval, interval, resample
from jobs.scores.breakdown import Part, by_attribute, by_category
from jobs.scores.dataset import BenchmarkRow
from jobs.scores.errors import SlotError, error_counts, slot_errors
from jobs.scores.scoring import Scores, score_rows


@dataclass(frozen=True, slots=True)
class Quality:
    """Predictions of one run against the gold of its rows. draws: sums of rows drawn again, see bootstrap.resample."""

    scores: Scores
    draws: tuple[Scores, ...]
    categories: tuple[Part, ...]
    attributes: tuple[Part, ...]
    errors: tuple[SlotError, ...]

    def interval(self, metric: str) -> Interval:
        """Of a key of bootstrap.METRICS, in percent."""
        return interval(self.draws, metric)

    def as_dict(self) -> dict[str, Any]:
        """What scores.json says of it: all but the single errors."""
        intervals = {metric: self.interval(metric) for metric in METRICS}
        return self.scores.as_dict() | {
            "intervals": {
                "level": LEVEL,
                "resamples": RESAMPLES,
                "seed": SEED,
                **{metric: [found.low, found.high] for metric, found in intervals.items()},
            },
            "errors": {kind.value: count for kind, count in error_counts(self.errors).items()},
            "by_category": [part.as_dict() for part in self.categories],
            "by_attribute": [part.as_dict() for part in self.attributes],
        }


def assess(rows: Sequence[BenchmarkRow], predictions: Sequence[Mapping[str, str | None]]) -> Quality:
    """The quality of predictions, one per row in order. Raises ValueError where they differ in number or are none."""
    by_row = score_rows([row.gold for row in rows], predictions)
    return Quality(
        sum(by_row, Scores()),
        tuple(resample(by_row)),
        tuple(by_category(rows, predictions)),
        tuple(by_attribute(rows, predictions)),
        tuple(slot_errors(rows, predictions)),
    )
