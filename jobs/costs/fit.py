"""Seconds of a unit out of what it fed, by least squares: seconds = a + b x prefill tokens + c x value tokens.

Documents that are decoded together share their steps, so that nobody sees what one of them took; units are seen whole.
No term of work gives time back, so a, b and c are not negative. Resampling units with replacement, through the fit and
through what is predicted with it, shows how far a prediction moves when other units of the same kind are measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Below so many units no interval is given.
LEAST_UNITS = 30
RESAMPLES = 1000
LEVEL = 0.95
#: What holds a system of equal columns solvable, as a share of its diagonal: far below what measuring can tell.
_RIDGE = 1e-10


@dataclass(frozen=True, slots=True)
class Bounds:
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"bounds from {self.low} to {self.high}")


@dataclass(frozen=True, slots=True)
class UnitWork:
    """What units were and took; every field [units].

    rows: input rows. documents: decoded ones. copied: those that took an equal one's answer. slots: of the decoded.
    prompt_tokens, prefix_tokens: fed before values, of documents and of shared prefixes. cached_tokens: of shared
    prefixes that were there already. value_tokens: fed. seconds: of an actor. group: the same number for units that
    measured the same rows, in several runs: they are drawn together, since no new rows came with the second.
    """

    rows: FloatArray
    documents: FloatArray
    copied: FloatArray
    slots: FloatArray
    prompt_tokens: FloatArray
    prefix_tokens: FloatArray
    cached_tokens: FloatArray
    value_tokens: FloatArray
    seconds: FloatArray
    group: IntArray

    @property
    def features(self) -> FloatArray:
        """[units, 3]: 1, prefill tokens, value tokens."""
        return np.stack([np.ones(len(self.rows)), self.prompt_tokens + self.prefix_tokens, self.value_tokens], axis=1)

    @property
    def distinct(self) -> int:
        """Units, those counted once that several runs measured."""
        return len(np.unique(self.group))

    @property
    def prefixes_fed(self) -> float:
        """Share of shared-prefix tokens that were fed, since no earlier document of the actor had left them."""
        wanted = self.prefix_tokens.sum() + self.cached_tokens.sum()
        return float(self.prefix_tokens.sum() / wanted) if wanted else 0.0


@dataclass(frozen=True, slots=True)
class Places:
    """Random rows of a corpus, summed by the place that they were drawn from; every field [places].

    rows: looked at. documents: those with a text and a schema. prompt_tokens, slots, prefix_tokens: of the documents;
    the last of the shared prefix before each, fed or not.
    """

    rows: FloatArray
    documents: FloatArray
    prompt_tokens: FloatArray
    slots: FloatArray
    prefix_tokens: FloatArray


@dataclass(frozen=True, slots=True)
class Fitted:
    """coefficients: [draws, 3], a, b and c. calibration: [draws], observed over fitted seconds of all units, which is
    1 unless a coefficient would be negative."""

    coefficients: FloatArray
    calibration: FloatArray


def fit(work: UnitWork, weights: FloatArray) -> Fitted:
    """Least squares without negative coefficients, for each draw of units. weights: [draws, units], how often each unit
    is drawn."""
    features, seconds = work.features, work.seconds
    coefficients = non_negative(features, seconds, weights)
    fitted = np.einsum("du,uk,dk->d", weights, features, coefficients)
    observed = weights @ seconds
    return Fitted(coefficients, np.where(fitted > 0, observed / np.where(fitted > 0, fitted, 1.0), 1.0))


def non_negative(features: FloatArray, target: FloatArray, weights: FloatArray) -> FloatArray:
    """[draws, k] coefficients >= 0 with the least weighted sum of squares. features: [n, k], target: [n], weights:
    [draws, n].

    The best solution is ordinary least squares on the columns that it does not leave at 0, and no other choice of
    columns whose solution is not negative does better: with few columns all of them are tried.
    """
    columns = features.shape[1]
    scale = np.maximum(features.mean(axis=0), 1e-300)
    scaled = features / scale
    squares = (scaled[:, :, None] * scaled[:, None, :]).reshape(len(features), -1)
    gram = (weights @ squares).reshape(-1, columns, columns)
    moment = weights @ (scaled * target[:, None])
    best, least = np.zeros((len(weights), columns)), np.zeros(len(weights))  # all at 0
    for size in range(1, columns + 1):
        for chosen in map(list, combinations(range(columns), size)):
            part = gram[:, chosen][:, :, chosen]
            ridge = _RIDGE * np.trace(part, axis1=1, axis2=2)[:, None, None] * np.eye(size)
            solved = np.linalg.solve(part + ridge + 1e-300 * np.eye(size), moment[:, chosen, None])[..., 0]
            loss = np.einsum("di,dij,dj->d", solved, part, solved) - 2 * (solved * moment[:, chosen]).sum(axis=1)
            better = (solved >= 0).all(axis=1) & (loss < least)
            best[np.ix_(better, chosen)] = solved[better]
            best[np.ix_(better, [n for n in range(columns) if n not in chosen])] = 0.0
            least = np.where(better, loss, least)
    return best / scale


def seconds_per_row(work: UnitWork, weights: FloatArray, places: Places | None, drawn: FloatArray | None) -> FloatArray:
    """[draws] actor seconds per input row of a corpus whose rows are like those of `places` (None: like the units').

    weights: [draws, units]; drawn: [draws, places]. Lengths and numbers of slots come from the places; how many
    documents repeat, how much of the shared prefixes is fed, how many tokens a slot takes and how many rows a unit has,
    from the units: where they are alike in size, what a unit costs by itself cannot be told from what its rows cost,
    and must not be spread over other sizes.
    """
    fitted = fit(work, weights)
    rows, documents = weights @ work.rows, weights @ work.documents
    per_unit = weights.sum(axis=1) / rows
    prefixes = weights @ work.prefix_tokens
    if places is None or drawn is None:
        decoded = documents / rows
        tokens = _each(weights @ work.prompt_tokens + prefixes, documents)
        slots = _each(weights @ work.slots, documents)
    else:
        there = drawn @ places.documents
        decoded = there / (drawn @ places.rows) * _each(documents, documents + weights @ work.copied)
        fed = _each(prefixes, prefixes + weights @ work.cached_tokens)
        tokens = _each(drawn @ places.prompt_tokens + fed * (drawn @ places.prefix_tokens), there)
        slots = _each(drawn @ places.slots, there)
    values = slots * _each(weights @ work.value_tokens, weights @ work.slots)
    features = np.stack([per_unit, decoded * tokens, decoded * values], axis=1)
    return fitted.calibration * (features * fitted.coefficients).sum(axis=1)


def _each(amount: FloatArray, things: FloatArray) -> FloatArray:
    """`amount` per thing; 0 in draws that have none: a resample may hold only units without a document."""
    return np.divide(amount, things, out=np.zeros_like(amount), where=things > 0)


def draws(items: int, count: int, random: np.random.Generator) -> FloatArray:
    """[count, items]: how often each item is drawn in `count` resamples with replacement."""
    return random.multinomial(items, np.full(items, 1 / items), size=count).astype(np.float64)


def middle_of(figures: FloatArray, level: float = LEVEL) -> Bounds:
    """The middle `level` of resampled figures."""
    low, high = np.quantile(figures, [(1 - level) / 2, (1 + level) / 2]).tolist()
    return Bounds(low, high)


def estimate(
    work: UnitWork, places: Places | None, *, resamples: int = RESAMPLES, seed: int = 0, interval: bool = True
) -> tuple[float, Bounds | None]:
    """(actor seconds per row of the corpus, 95 % interval of units and places drawn at random; None where no `interval`
    is asked for, since it would not hold). Units of one group are drawn together."""
    random = np.random.default_rng(seed)
    units = len(work.rows)
    once = np.ones((1, units))
    whole = None if places is None else np.ones((1, len(places.rows)))
    point = seconds_per_row(work, once, places, whole)[0]
    if not interval:
        return float(point), None
    weights = draws(work.distinct, resamples, random)[:, np.unique(work.group, return_inverse=True)[1]]
    drawn = None if places is None else draws(len(places.rows), resamples, random)
    return float(point), middle_of(seconds_per_row(work, weights, places, drawn))
