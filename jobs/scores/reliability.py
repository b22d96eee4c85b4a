"""Whether confidence can be trusted: reliability diagram, calibration error, and what a threshold would cost.

Expected calibration error (ECE; Guo et al. 2017, arXiv 1706.04599) is the mean distance between confidence and accuracy
over bins of confidence, weighted by their size. Bins have equal mass here, not equal width: confidences crowd near 1,
and a bin with three values in it measures nothing. Binned ECE is never 0 even where every confidence is exact, because
the share of right values in a bin is drawn; `ece_by_chance` says how much that is (Bröcker & Smith 2007).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from jobs.scores.confidences import Told
from jobs.scores.dataset import BenchmarkRow
from jobs.scores.judged import BoolArray, FloatArray, IntArray, JudgedArrays, judged, sample

BINS = 10
_DRAWS = 200
#: Points of a curve that are kept: enough to draw it.
_POINTS = 101
#: Shares of values kept that the table of risk at coverage shows.
COVERAGES = (1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5)


@dataclass(frozen=True, slots=True)
class Bin:
    """Values of like confidence. confidence: their mean. accuracy: share of right ones. Both from 0 to 1."""

    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class Point:
    """What is left where only values of at least `threshold` are kept. All but `kept` from 0 to 1.

    coverage: kept values of all. precision: right ones of those kept; 1 minus it is the risk. recall: right ones of the
    slots with a gold value, so that what was never found lowers it at any threshold.
    """

    threshold: float
    kept: int
    coverage: float
    precision: float
    recall: float
    f1: float


def bins(confidence: FloatArray, right: BoolArray, count: int = BINS) -> list[Bin]:
    """Bins of equal mass, least sure first; equal confidences share a bin, so that fewer than `count` may be filled."""
    place = _places(confidence, count)
    filled = [place == number for number in range(count) if (place == number).any()]
    return [Bin(int(at.sum()), float(confidence[at].mean()), float(right[at].mean())) for at in filled]


def ece(confidence: FloatArray, right: BoolArray, count: int = BINS) -> float:
    """Expected calibration error, from 0 to 1."""
    found = bins(confidence, right, count)
    return sum(b.count * abs(b.confidence - b.accuracy) for b in found) / len(right)


def ece_by_chance(confidence: FloatArray, count: int = BINS, seed: int = 0) -> float:
    """The ECE to expect of values that are right with exactly their confidence."""
    random = np.random.default_rng(seed)
    draws = [ece(confidence, random.random(len(confidence)) < confidence, count) for _ in range(_DRAWS)]
    return float(np.mean(draws))


def brier(confidence: FloatArray, right: BoolArray) -> float:
    """Brier score: mean squared distance of confidence from 1 where right and 0 where wrong; lower is better."""
    return float(np.mean((confidence - right) ** 2))


def log_loss(confidence: FloatArray, right: BoolArray) -> float:
    """Mean negative log-likelihood in nats, confidences held off 0 and 1 by 1e-12."""
    p = np.clip(confidence, 1e-12, 1 - 1e-12)
    return float(-np.mean(np.where(right, np.log(p), np.log1p(-p))))


def curve(values: JudgedArrays) -> list[Point]:
    """One point per distinct confidence, the surest first: the threshold that just keeps it."""
    if not len(values):
        return []
    order = np.argsort(-values.confidence, kind="stable")
    sorted_ = values.confidence[order]
    ends = np.append(np.flatnonzero(np.diff(sorted_)), len(sorted_) - 1)
    hits = np.cumsum(values.right[order])[ends]
    return [
        point(float(sorted_[end]), int(end) + 1, int(hit), len(values), values.gold)
        for end, hit in zip(ends, hits, strict=True)
    ]


def point(threshold: float, kept: int, right: int, values: int, gold: int) -> Point:
    return Point(
        threshold,
        kept,
        kept / max(1, values),
        right / max(1, kept),
        right / max(1, gold),
        2 * right / max(1, kept + gold),
    )


def average_precision(points: Sequence[Point]) -> float:
    """Precision averaged over recall, without interpolation: sum of (R_i - R_i-1) P_i. At most the recall of all
    values together: what was never found counts as missed."""
    before = [0.0, *(p.recall for p in points)]
    return sum((p.recall - last) * p.precision for p, last in zip(points, before, strict=False))


def best(points: Sequence[Point]) -> Point:
    """The point with the largest F1, the one that keeps most of equal ones."""
    return max(points, key=lambda p: (p.f1, p.kept))


def at_coverage(points: Sequence[Point], coverage: float) -> Point:
    """The largest threshold that still keeps this share of the values."""
    return next(p for p in points if p.coverage >= coverage - 1e-12)


def trust_facts(
    rows: Sequence[BenchmarkRow],
    predictions: Sequence[Mapping[str, str | None]],
    confidences: Sequence[Mapping[str, Told]],
    *,
    calibrated: bool,
) -> dict[str, Any] | None:
    """What scores.json says of a run's confidences, judged strictly and, `named`, only where the gold names the
    attribute, as F1 does; None where the run has no value that anybody was sure of."""
    answers = judged(rows, predictions, confidences)
    strict, named = (trust(sample(answers, rows, strict=strict)) for strict in (True, False))
    return None if strict is None else {"calibrated": calibrated, "strict": strict, "named": named}


def trust(values: JudgedArrays) -> dict[str, Any] | None:
    """The figures of judged values, all but counts from 0 to 1; None where there is no value."""
    if not len(values):
        return None
    points = curve(values)
    thin = np.unique(np.linspace(0, len(points) - 1, _POINTS).round().astype(int))
    return {
        "values": len(values),
        "right": int(values.right.sum()),
        "gold": values.gold,
        "mean_confidence": float(values.confidence.mean()),
        "ece": ece(values.confidence, values.right),
        "ece_by_chance": ece_by_chance(values.confidence),
        "brier": brier(values.confidence, values.right),
        "average_precision": average_precision(points),
        "best": asdict(best(points)),
        "bins": [asdict(b) for b in bins(values.confidence, values.right)],
        "coverage": [asdict(at_coverage(points, share)) for share in COVERAGES],
        "curve": [[points[n].threshold, points[n].precision, points[n].recall] for n in thin],
    }


def _places(confidence: FloatArray, count: int) -> IntArray:
    inner = np.quantile(confidence, np.linspace(0, 1, count + 1)[1:-1])
    return np.searchsorted(inner, confidence, side="right").astype(np.int64)
