"""Platt scaling, cross-validation by product and thresholds, on synthetic answers whose truth is known."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpd_core.confidence import Score
from hpd_core.reading import ValueStatus
from jobs.scores.calibrating import fit_calibration
from jobs.scores.confidences import Told
from jobs.scores.dataset import BenchmarkRow
from jobs.scores.fitting import calibrated, fit_platt, held_out, rescored, splits
from jobs.scores.judged import Judged, JudgedArrays, absences, judged, sample
from jobs.scores.reliability import ece, ece_by_chance
from jobs.scores.thresholds import fit_thresholds, held_out_f1, micro_f1
from pipeline.job import JobError


def drawn(count: int, slope: float, intercept: float, seed: int = 0) -> JudgedArrays:
    """Scores, three to a product, whose truth is sigmoid(slope * score + intercept)."""
    random = np.random.default_rng(seed)
    scores = random.normal(2, 2, count)
    right = random.random(count) < 1 / (1 + np.exp(-(slope * scores + intercept)))
    return JudgedArrays(scores, right, np.arange(count) // 3, ("A",) * count, count)


def test_platt_finds_the_map_that_the_answers_were_drawn_from() -> None:
    found = fit_platt(*(lambda s: (s.confidence, s.right))(drawn(20_000, 0.7, -0.6)))
    assert (found.slope, found.intercept) == (pytest.approx(0.7, abs=0.05), pytest.approx(-0.6, abs=0.1))


def test_platt_stays_finite_where_scores_separate_or_all_are_right() -> None:
    scores = np.array([-2.0, -1.0, 1.0, 2.0])
    split = fit_platt(scores, scores > 0)
    assert 0 < split.slope < 10 and split(-2.0) < 0.4 and split(2.0) > 0.6
    sure = fit_platt(scores, scores > -9)
    assert sure(0.0) == pytest.approx(5 / 6, abs=1e-6) and sure.slope == pytest.approx(0, abs=1e-6)


def test_scores_that_point_the_wrong_way_give_a_constant() -> None:
    values = drawn(500, -1.0, 0.0)
    found = fit_platt(values.confidence, values.right)
    assert found.slope == 0
    assert found(0.0) == found(9.0) == pytest.approx(values.right.mean(), abs=0.01)


@given(st.lists(st.tuples(st.floats(-14, 14), st.booleans()), max_size=30))
def test_every_fit_is_monotone(pairs: list[tuple[float, bool]]) -> None:
    scores, right = np.array([s for s, _ in pairs], dtype=float), np.array([r for _, r in pairs], dtype=bool)
    platt = fit_platt(scores, right)
    told = calibrated(platt, np.sort(scores))
    assert (np.diff(told) >= 0).all() and platt.slope >= 0


def test_held_out_probabilities_are_calibrated_and_never_saw_their_own_product() -> None:
    values = drawn(3000, 0.7, -0.6)
    p = held_out(values)
    assert ece(p, values.right) < 2 * ece_by_chance(p)
    changed = values.right.copy()
    changed[:3] = ~changed[:3]  # the first product
    assert (held_out(replace(values, right=changed))[:3] == p[:3]).all()


def test_each_product_is_held_out_once_and_whole() -> None:
    row = np.arange(100) // 3
    seen = np.zeros(100, dtype=int)
    for inside, outside in splits(row):
        assert not set(row[inside]) & set(row[outside]) and (inside ^ outside).all()
        seen += outside
    assert (seen == 1).all()


def test_the_common_threshold_is_half_the_f1_that_it_gives() -> None:
    scores = drawn(30_000, 1.0, -1.0)
    p = 1 / (1 + np.exp(-(scores.confidence - 1.0)))
    values = rescored(scores, p)
    common = fit_thresholds(values, inf).common
    tried = [micro_f1(values, p >= t) for t in np.linspace(0, 0.9, 181)]
    assert micro_f1(values, p >= common) > max(tried) - 0.001
    assert common == pytest.approx(max(tried) / 2, abs=0.001)


def of_two_attributes() -> JudgedArrays:
    """As probable as each other to the calibration: A's are right, four of five of B's least sure ones are not."""
    confidence = np.array([0.55] * 40 + [0.9] * 20 + [0.55] * 40 + [0.9] * 20)
    right = np.array([True] * 60 + [n % 5 == 0 for n in range(40)] + [True] * 20)
    return JudgedArrays(confidence, right, np.arange(120), ("A",) * 60 + ("B",) * 60, 110)


def test_an_attribute_whose_values_the_calibration_flatters_gets_a_higher_threshold_as_it_has_values() -> None:
    values = of_two_attributes()
    own = fit_thresholds(values, 0.0)
    assert own.by_attribute == {"A": 0.0, "B": pytest.approx((0.55 + 0.9) / 2)}
    assert micro_f1(values, own.keep(values)) > micro_f1(values, np.ones(120, dtype=bool))
    half = fit_thresholds(values, 60.0)  # as many as each has values
    assert half.by_attribute["B"] == pytest.approx((own.by_attribute["B"] + own.common) / 2, abs=1e-4)
    none = fit_thresholds(values, inf)
    assert none.by_attribute == {} and none.common == own.common
    assert fit_thresholds(values, 1e12).by_attribute["B"] == pytest.approx(none.common)


def test_an_unknown_attribute_is_held_against_the_common_threshold() -> None:
    values = of_two_attributes()
    found = replace(fit_thresholds(values, 0.0), common=0.6)
    other = replace(values, attribute=("C",) * 120)
    assert (found.keep(other) == (values.confidence >= 0.6)).all()


def test_f1_without_thresholds_is_that_of_all_values() -> None:
    values = drawn(300, 1.0, 0.0)
    assert held_out_f1(values, None) == pytest.approx(2 * values.right.sum() / 600)
    assert held_out_f1(values, inf) > held_out_f1(values, None)


GOLD = [
    BenchmarkRow("a", "Tea", {"Brand": (" Tazo ",), "Size": ("n/a",), "Roast": ("dark",)}),
    BenchmarkRow("b", "Tea", {"Brand": ("Bo",)}),
]


def told(status: ValueStatus = ValueStatus.EXTRACTED, logprob: float | None = -0.1, tokens: int = 2) -> Told:
    return Told(status, logprob, tokens, None if logprob is None else 0.9)


def test_answers_are_judged_as_the_metric_does_absences_too() -> None:
    absent = told(ValueStatus.ABSENT)
    said = [{"Brand": "Tazo", "Size": "5", "Roast": None}, {"Brand": None, "Size": None, "Roast": "x"}]
    sure = [{"Brand": told(), "Size": told(), "Roast": absent},
            {"Brand": told(ValueStatus.INVALID), "Size": absent, "Roast": told()}]  # fmt: skip
    answers = judged(GOLD, said, sure)
    assert [(a.row, a.attribute, a.named, a.right, a.is_absence) for a in answers] == [
        (0, "Brand", True, True, False),
        (0, "Size", True, False, False),
        (0, "Roast", True, False, True),
        (1, "Size", False, True, True),
        (1, "Roast", False, False, False),
    ]
    strict, named = (sample(answers, GOLD, strict=strict) for strict in (True, False))
    assert (len(strict), len(named), strict.gold) == (3, 2, 3)
    assert absences(answers, lambda _: 0.5).right.tolist() == [False, True]
    assert judged(GOLD, said, [{"Brand": told(logprob=None)}, {}]) == []


def answers(count: int, mean_tells: bool) -> list[Judged]:
    """Answers whose truth follows the mean of their tokens, or their sum; lengths are drawn."""
    random = np.random.default_rng(5)
    found = []
    for number in range(count):
        tokens, logprob = int(random.integers(1, 12)), -float(random.exponential(0.2))
        p = np.exp(logprob * (3 if mean_tells else tokens))
        found.append(
            Judged(number // 4, "AB"[number % 2], told(logprob=logprob, tokens=tokens), True, random.random() < p)
        )
    return found


@pytest.mark.parametrize(("mean_tells", "chosen"), [(True, Score.MEAN), (False, Score.SUM)])
def test_what_predicts_better_is_calibrated(mean_tells: bool, chosen: Score) -> None:
    fit = fit_calibration(answers(2000, mean_tells), GOLD, strict=True)
    assert fit.score is chosen
    assert fit.facts["fits"][f"{chosen}, calibrated"]["ece"] < fit.facts["fits"]["mean, raw"]["ece"]
    other = fit_calibration(answers(2000, mean_tells), GOLD, strict=True, score=Score.SUM, shrinkage=0.0)
    assert other.score is Score.SUM and set(other.thresholds.by_attribute) == {"A", "B"}


def test_nothing_to_tell_apart_is_refused() -> None:
    some = answers(40, False)
    for bad in ([], [replace(a, right=True) for a in some], [replace(a, row=0) for a in some]):
        with pytest.raises(JobError, match="nothing to tell apart"):
            fit_calibration(bad, GOLD, strict=True)
