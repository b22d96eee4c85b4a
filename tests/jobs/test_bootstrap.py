"""Intervals by resampling rows, against every possible draw of a few rows and against drawing by hand."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from jobs.scores.bootstrap import LEVEL, RESAMPLES, SEED, Difference, Interval, difference, interval, resample
from jobs.scores.scoring import Scores

TINY = [Scores(vc=2, vw=1), Scores(vn=3, nv=1, extra=2), Scores(vc=1, nn=4, extra=1)]


def total(rows: list[Scores]) -> Scores:
    return sum(rows, Scores())


def some_rows(seed: int, count: int = 97) -> list[Scores]:
    random = np.random.default_rng(seed)
    return [Scores(*random.integers(4, size=6).tolist()) for _ in range(count)]


def test_draws_of_few_rows_are_distributed_as_all_possible_draws() -> None:
    # 3 rows: 27 draws, equally likely. A draw without replacement, of slots or of another size shows here.
    possible = Counter(total(list(draw)) for draw in itertools.product(TINY, repeat=3))
    count = 20_000

    found = Counter(resample(TINY, count))

    assert found.keys() == possible.keys()
    for sums, ways in possible.items():
        share = ways / 27
        assert found[sums] / count == pytest.approx(share, abs=5 * (share * (1 - share) / count) ** 0.5)


def test_the_interval_is_that_of_all_possible_draws() -> None:
    # 2.5 % on each side are less than one of 27 equally likely figures, so both ends are the extremes.
    figures = [total(list(draw)).f1 for draw in itertools.product(TINY, repeat=3)]
    assert interval(resample(TINY, 20_000), "f1") == Interval(min(figures), max(figures))
    # By hand: three times the second row finds nothing; three times the third finds all, and invents nothing it counts.
    assert (min(figures), max(figures)) == (0.0, 100.0)


def test_draws_summed_as_one_product_are_those_summed_row_by_row() -> None:
    rows = some_rows(1, 7)
    random = np.random.default_rng(SEED)
    by_hand = [total([rows[place] for place in random.integers(7, size=7)]) for _ in range(5)]
    assert resample(rows, 5) == by_hand


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("metric", ["f1", "strict_f1"])
def test_an_interval_is_around_its_figure_and_the_same_every_time(seed: int, metric: str) -> None:
    rows = some_rows(seed)
    found = interval(resample(rows), metric)
    assert getattr(total(rows), metric) in found
    assert 0 < found.low < found.high < 100
    assert found == interval(resample(rows), metric)
    assert len(resample(rows)) == RESAMPLES == 1000 and LEVEL == 0.95


def test_each_metric_has_its_own_interval() -> None:
    draws = resample([Scores(vc=3, vw=1, vn=1, extra=4), Scores(vc=1, vw=2, extra=9)] * 20)
    assert interval(draws, "strict_f1").high < interval(draws, "f1").low


def test_more_rows_of_the_same_kind_narrow_the_interval() -> None:
    few, many = (interval(resample(some_rows(2) * times), "f1") for times in (1, 9))
    assert (few.high - few.low) / (many.high - many.low) == pytest.approx(3, rel=0.2)  # the root of 9


def test_rows_that_are_all_alike_leave_no_doubt() -> None:
    draws = resample([Scores(vc=1, vw=1)] * 10)
    assert interval(draws, "f1") == Interval(50.0, 50.0)


def test_a_run_does_not_differ_from_itself() -> None:
    rows = some_rows(3)
    found = difference(total(rows), resample(rows), total(rows), resample(rows), "f1")
    assert found == Difference(0.0, Interval(0.0, 0.0))
    assert not found.is_clear


def test_a_difference_is_paired_and_has_a_sign() -> None:
    # Rows differ much from one another, and the better run finds one value more in every tenth row.
    rows = [Scores(vc=n % 7, vn=7 - n % 7) for n in range(100)]
    better = [row + Scores(vc=1) if n % 10 == 0 else row + Scores(vn=1) for n, row in enumerate(rows)]
    worse = [row + Scores(vn=1) for row in rows]
    args = (total(better), resample(better), total(worse), resample(worse), "f1")

    found = difference(*args)

    assert found.value == round(total(better).f1 - total(worse).f1, 2) > 0
    assert found.value in found.interval and found.is_clear
    # Unpaired, the two intervals would overlap widely and say nothing.
    assert interval(args[1], "f1").low < interval(args[3], "f1").high
    back = difference(*args[2:4], *args[:2], "f1")
    assert back.value == -found.value
    assert back.interval == Interval(-found.interval.high, -found.interval.low)


def test_nothing_to_draw_from_and_draws_that_do_not_pair_up_are_refused() -> None:
    with pytest.raises(ValueError, match="no row"):
        resample([])
    with pytest.raises(ValueError):
        difference(Scores(), resample(TINY, 3), Scores(), resample(TINY, 4), "f1")
    with pytest.raises(ValueError, match="interval from 2 to 1"):
        Interval(2, 1)
