"""Calibration error, curves and what a threshold keeps, on numbers worked out by hand."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.scores.judged import JudgedArrays
from jobs.scores.reliability import (
    COVERAGES,
    at_coverage,
    average_precision,
    best,
    bins,
    brier,
    curve,
    ece,
    ece_by_chance,
    log_loss,
    trust,
)

pairs = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60)


def values(*judged: tuple[float, bool | int], gold: int = 4) -> JudgedArrays:
    confidence, right = np.array([c for c, _ in judged]), np.array([bool(r) for _, r in judged])
    return JudgedArrays(confidence, right, np.arange(len(judged)), ("A",) * len(judged), gold)


def test_ece_is_the_weighted_distance_of_confidence_from_accuracy() -> None:
    # Two bins: 0.2 and 0.4, none right; 0.8 and 1.0, one of two right.
    sample = values((0.8, 1), (0.2, 0), (1.0, 0), (0.4, 0))
    low, high = bins(sample.confidence, sample.right, 2)
    assert (low.count, low.confidence, low.accuracy) == (2, pytest.approx(0.3), 0)
    assert (high.count, high.confidence, high.accuracy) == (2, pytest.approx(0.9), 0.5)
    assert ece(sample.confidence, sample.right, 2) == pytest.approx((2 * 0.3 + 2 * 0.4) / 4)


def test_a_constant_confidence_is_one_bin() -> None:
    sample = values(*[(0.9, n < 6) for n in range(10)])
    assert [b.count for b in bins(sample.confidence, sample.right)] == [10]
    assert ece(sample.confidence, sample.right) == pytest.approx(0.3)


def test_exact_probabilities_have_the_ece_of_chance_and_doubled_odds_a_larger_one() -> None:
    random = np.random.default_rng(1)
    p = random.random(5000)
    right = random.random(5000) < p
    chance = ece_by_chance(p)
    assert 0.005 < chance < 0.02
    assert ece(p, right) < 1.5 * chance
    assert ece(p**0.3, right) > 5 * chance


@given(pairs, st.randoms(use_true_random=False))
def test_the_order_of_rows_decides_nothing(judged: list[tuple[float, bool]], random: object) -> None:
    other = list(judged)
    random.shuffle(other)  # type: ignore[attr-defined]
    one, two = values(*judged, gold=60), values(*other, gold=60)
    assert ece(one.confidence, one.right) == pytest.approx(ece(two.confidence, two.right))
    assert curve(one) == curve(two)
    assert 0 <= ece(one.confidence, one.right) <= 1
    assert sum(b.count for b in bins(one.confidence, one.right)) == len(judged)


def test_brier_and_log_loss() -> None:
    sample = values((0.9, 1), (0.6, 0))
    assert brier(sample.confidence, sample.right) == pytest.approx((0.01 + 0.36) / 2)
    assert log_loss(sample.confidence, sample.right) == pytest.approx(-(np.log(0.9) + np.log(0.4)) / 2)
    certain = values((1.0, 0), (0.0, 1))
    assert np.isfinite(log_loss(certain.confidence, certain.right))


def test_the_curve_has_one_point_per_confidence_and_recall_counts_what_was_never_found() -> None:
    points = curve(values((0.9, 1), (0.5, 1), (0.5, 0), (0.2, 0), gold=4))
    assert [(p.threshold, p.kept, p.precision, p.recall) for p in points] == [
        (0.9, 1, 1.0, 0.25), (0.5, 3, pytest.approx(2 / 3), 0.5), (0.2, 4, 0.5, 0.5),
    ]  # fmt: skip
    assert [p.f1 for p in points] == pytest.approx([2 / 5, 4 / 7, 4 / 8])
    assert average_precision(points) == pytest.approx(0.25 * 1 + 0.25 * 2 / 3 + 0)
    assert best(points).threshold == 0.5
    assert [at_coverage(points, share).kept for share in (1.0, 0.75, 0.5, 0.1)] == [4, 3, 3, 1]


def test_average_precision_is_that_of_the_definition_where_everything_is_found() -> None:
    # Ranks 1 and 3 of 4 are right: (1/1 + 2/3) / 2.
    assert average_precision(curve(values((0.9, 1), (0.8, 0), (0.7, 1), (0.1, 0), gold=2))) == pytest.approx(5 / 6)


@given(pairs)
def test_a_lower_threshold_never_keeps_less_nor_lowers_recall(judged: list[tuple[float, bool]]) -> None:
    points = curve(values(*judged, gold=60))
    for high, low in pairwise(points):
        assert low.threshold < high.threshold and low.kept > high.kept and low.recall >= high.recall
    assert points[-1].coverage == 1.0
    assert points[-1].threshold == min(c for c, _ in judged)


def test_what_scores_json_says_stays_small() -> None:
    random = np.random.default_rng(0)
    facts = trust(values(*zip(random.random(3000), random.random(3000) < 0.5, strict=True), gold=3000))
    assert facts is not None and len(facts["curve"]) <= 101
    assert [len(facts["bins"]), len(facts["coverage"])] == [10, len(COVERAGES)]
    assert facts["curve"][-1][0] == pytest.approx(facts["coverage"][0]["threshold"])
    assert trust(values()) is None
