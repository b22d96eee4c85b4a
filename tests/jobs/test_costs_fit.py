"""The fit against brute force, and its intervals against a corpus whose truth is known."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest

from jobs.costs.fit import (
    LEAST_UNITS,
    Bounds,
    FloatArray,
    Places,
    UnitWork,
    draws,
    estimate,
    fit,
    non_negative,
    seconds_per_row,
)

A, B, C = 3.0, 0.004, 0.0009
ROWS, SLOTS, STEPS = 100, 5, 12  # per unit, per document, value tokens per document
FED = 0.7  # share of shared prefixes that nobody has left for the next document


def corpus(
    random: np.random.Generator, units: int, noise: float = 0.05, mixed: float = 0.3, prefix: float = 0.0, runs: int = 1
) -> UnitWork:
    """Units of a corpus in which neighbours are alike: each unit has lengths about a mean of its own (`mixed`). prefix:
    mean tokens of the shared prefix before a document. runs: how often each unit is measured, with another noise."""
    means = 120 * np.exp(random.normal(0, mixed, units) - mixed**2 / 2)
    lengths = means[:, None] * np.exp(random.normal(0, 0.6, (units, ROWS)) - 0.18)
    prompt = lengths.sum(axis=1)
    steps = random.poisson(STEPS, (units, ROWS)).sum(axis=1).astype(float)
    before = prefix * random.uniform(0.5, 1.5, (units, ROWS))
    fed = before * (random.uniform(0, 1, (units, ROWS)) < FED)
    fed, reused = fed.sum(axis=1), (before - fed).sum(axis=1)
    ones, zeros = np.ones(units), np.zeros(units)
    once = (ROWS * ones, ROWS * ones, zeros, ROWS * SLOTS * ones, prompt, fed, reused, steps)
    spread = np.exp(random.normal(0, noise, runs * units) - noise**2 / 2)
    seconds = np.tile(A + B * (prompt + fed) + C * steps, runs) * spread
    return UnitWork(*(np.tile(column, runs) for column in once), seconds, np.tile(np.arange(units), runs))


def random_rows(random: np.random.Generator, places: int, rows: int, mean: float, prefix: float = 0.0) -> Places:
    """Rows of another corpus, drawn a few from each of many places."""
    centres = mean * np.exp(random.normal(0, 0.3, places) - 0.045)
    lengths = centres[:, None] * np.exp(random.normal(0, 0.6, (places, rows)) - 0.18)
    ones = np.ones(places)
    before = prefix * random.uniform(0.5, 1.5, (places, rows))
    return Places(rows * ones, rows * ones, lengths.sum(axis=1), rows * SLOTS * ones, before.sum(axis=1))


def truth(mean: float, prefix: float = 0.0) -> float:
    return A / ROWS + B * (mean + FED * prefix) + C * STEPS


@pytest.mark.parametrize("seed", range(20))
def test_no_other_non_negative_coefficients_fit_better(seed: int) -> None:
    random = np.random.default_rng(seed)
    features, target = random.uniform(0, 2, (15, 3)), random.normal(1, 2, 15)
    weights = random.integers(0, 3, (2, 15)).astype(float)
    found = non_negative(features, target, weights)
    assert (found >= 0).all()

    def loss(weight: FloatArray, coefficients: FloatArray) -> float:
        return float((weight * (features @ coefficients - target) ** 2).sum())

    for weight, coefficients in zip(weights, found, strict=True):
        least = loss(weight, coefficients)
        near = (coefficients + np.array(step) for step in itertools.product((-1e-3, 0, 1e-3), repeat=3))
        grid = (np.array(point) for point in itertools.product(np.linspace(0, 3, 7), repeat=3))
        assert all(loss(weight, other) >= least - 1e-9 for other in itertools.chain(near, grid) if (other >= 0).all())


def test_coefficients_of_a_corpus_without_noise_are_found_and_columns_that_are_equal_do_no_harm() -> None:
    work = corpus(np.random.default_rng(0), 40, noise=0.0)
    found = fit(work, np.ones((1, 40)))
    np.testing.assert_allclose(found.coefficients[0], [A, B, C], rtol=1e-4)
    assert found.calibration[0] == pytest.approx(1, abs=1e-6)
    same = np.ones((5, 3))
    assert (same @ non_negative(same, np.full(5, 6.0), np.ones((1, 5)))[0]) == pytest.approx(6, rel=1e-6)
    assert not non_negative(same, np.full(5, -1.0), np.ones((1, 5))).any()


def test_a_corpus_like_the_sample_takes_what_the_sample_took() -> None:
    work = corpus(np.random.default_rng(1), 12, noise=0.3)
    falling = UnitWork(**{name: getattr(work, name) for name in work.__slots__} | {"seconds": 9 - work.seconds / 90})
    prefixed = corpus(np.random.default_rng(1), 12, noise=0.3, prefix=100.0)
    for measured in (work, falling, prefixed):  # of the second the best coefficients would be negative
        predicted = seconds_per_row(measured, np.ones((1, 12)), None, None)[0]
        assert predicted == pytest.approx(measured.seconds.sum() / measured.rows.sum(), rel=1e-6)


def test_lengths_repeats_and_empty_rows_of_the_corpus_count() -> None:
    work = corpus(np.random.default_rng(2), 40, noise=0.0)
    ones, none = np.ones(8), np.zeros(8)
    once, whole = np.ones((1, 40)), np.ones((1, 8))

    def per_row(places: Places, measured: UnitWork = work) -> float:
        return float(seconds_per_row(measured, once, places, whole)[0])

    assert per_row(Places(10 * ones, 10 * ones, 10 * 240.0 * ones, 10 * SLOTS * ones, none)) == pytest.approx(
        truth(240) + C * (work.value_tokens.sum() / work.rows.sum() - STEPS), rel=1e-3
    )
    places = Places(10 * ones, 10 * ones, 1200 * ones, 50 * ones, none)
    usual = per_row(places)
    assert per_row(replace(places, rows=20 * ones)) < 0.65 * usual, "half of the rows have no text"
    fields = {name: getattr(work, name) for name in work.__slots__}
    half = work.documents / 2
    repeats = UnitWork(**fields | {"documents": half, "copied": half, "slots": work.slots / 2})
    assert per_row(places, repeats) < usual


def test_shared_prefixes_are_paid_for_as_far_as_they_were_fed() -> None:
    once, whole = np.ones((1, 40)), np.ones((1, 8))
    ones = np.ones(8)
    places = Places(10 * ones, 10 * ones, 1200 * ones, 50 * ones, 10 * 150.0 * ones)

    def per_row(measured: UnitWork) -> float:
        return float(seconds_per_row(measured, once, places, whole)[0])

    reused = corpus(np.random.default_rng(5), 40, noise=0.0)
    fed = corpus(np.random.default_rng(5), 40, noise=0.0, prefix=100.0)
    assert reused.prefixes_fed == 0 and fed.prefixes_fed == pytest.approx(FED, abs=0.03)
    assert per_row(fed) - per_row(reused) == pytest.approx(B * fed.prefixes_fed * 150, rel=0.02)


@dataclass(frozen=True)
class Drawn:
    """A sample and what it is asked: `mean` None for a corpus like the units, else random rows of another."""

    units: int
    mean: float | None = None
    runs: int = 1
    prefix: float = 0.0


@pytest.mark.parametrize(
    "drawn",
    [
        pytest.param(Drawn(60), id="a corpus like the units"),
        pytest.param(Drawn(60, 200.0), id="longer documents, from random rows"),
        pytest.param(Drawn(LEAST_UNITS), id="as few units as an interval takes"),
        pytest.param(Drawn(LEAST_UNITS, runs=3), id="three runs of the same few units"),
        pytest.param(Drawn(LEAST_UNITS, prefix=100.0), id="prefixes that are fed again"),
        pytest.param(Drawn(LEAST_UNITS, 200.0, 3, 100.0), id="all of it at once"),
    ],
)
def test_intervals_cover_the_truth(drawn: Drawn) -> None:
    """500 samples each from a corpus whose cost is known: 90 to 98 % of the intervals hold it."""
    random, covered, width = np.random.default_rng(7), 0, []
    for seed in range(500):
        work = corpus(random, drawn.units, prefix=drawn.prefix, runs=drawn.runs)
        assert work.distinct == drawn.units
        places = None if drawn.mean is None else random_rows(random, 64, 16, drawn.mean, drawn.prefix)
        point, bounds = estimate(work, places, resamples=300, seed=seed)
        assert bounds is not None
        covered += bounds.low <= truth(drawn.mean or 120, drawn.prefix) <= bounds.high
        width.append((bounds.high - bounds.low) / point)
    assert 450 <= covered <= 490, f"{covered / 5:.1f} % of the intervals hold the truth"
    assert 0.02 < np.mean(width) < 0.3


def test_units_without_a_document_do_no_harm() -> None:
    work = corpus(np.random.default_rng(4), 40)
    one = np.arange(40) < 1
    kept = ("rows", "copied", "prefix_tokens", "seconds", "group")
    few = UnitWork(**{n: getattr(work, n) if n in kept else getattr(work, n) * one for n in work.__slots__})
    for places in (None, random_rows(np.random.default_rng(0), 8, 4, 120.0)):
        point, bounds = estimate(few, places, resamples=200)
        assert bounds is not None and 0 < bounds.low <= point <= bounds.high < 1
        assert estimate(few, places, interval=False) == (point, None)


def test_halving_the_interval_takes_four_times_the_units() -> None:
    random = np.random.default_rng(3)

    def width(units: int) -> float:
        found = [estimate(corpus(random, units), None, resamples=200, seed=n)[1] for n in range(20)]
        return float(np.mean([b.high - b.low for b in found if b is not None]))

    assert width(160) / width(40) == pytest.approx(0.5, abs=0.1)


def test_draws_draw_as_many_as_there_are() -> None:
    found = draws(7, 50, np.random.default_rng(0))
    assert found.shape == (50, 7) and (found.sum(axis=1) == 7).all() and len(np.unique(found, axis=0)) > 40
    with pytest.raises(ValueError, match="bounds from 2 to 1"):
        Bounds(2, 1)
