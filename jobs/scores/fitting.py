"""Scores of judged answers -> the probability of being right: Platt scaling, cross-validated by product."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import log

import numpy as np

from hpd_core.confidence import Platt, Score
from jobs.scores.confidences import Told
from jobs.scores.judged import BoolArray, FloatArray, IntArray, JudgedArrays

FOLDS = 10
SEED = 0
_ROUNDS = 100


def score_of(score: Score) -> Callable[[Told], float]:
    """What of `told` is calibrated."""
    return lambda told: score.of(told.logprob or 0.0, told.tokens)


def fit_platt(scores: FloatArray, right: BoolArray) -> Platt:
    """The monotone sigmoid of largest likelihood, by Newton's method with backtracking (Lin, Lin & Weng 2007).

    Targets are Platt's, (n+1)/(n+2) and 1/(n+2), which keep it finite where scores separate right from wrong. Scores
    that are lower where answers are right give a constant: no calibration may turn the order round.
    """
    wins = int(right.sum())
    losses = len(right) - wins
    targets = np.where(right, (wins + 1) / (wins + 2), 1 / (losses + 2))
    base = float(targets.mean()) if len(targets) else 0.5
    x = np.stack([scores, np.ones_like(scores)], axis=1)
    weights = np.array([0.0, log(base / (1 - base))])

    def loss(w: FloatArray) -> float:
        odds = x @ w
        return float(np.sum(np.logaddexp(0, odds) - targets * odds))

    now = loss(weights)
    for _ in range(_ROUNDS):
        p = 1 / (1 + np.exp(-(x @ weights)))
        gradient = x.T @ (p - targets)
        hessian = (x * (p * (1 - p))[:, None]).T @ x + 1e-9 * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        size = 1.0
        while size > 1e-10 and (there := loss(weights - size * step)) > now - 1e-4 * size * float(gradient @ step):
            size /= 2
        if size <= 1e-10 or now - there < 1e-10:
            break
        weights, now = weights - size * step, there
    if weights[0] < 0:
        return Platt(0.0, log(base / (1 - base)))
    return Platt(float(weights[0]), float(weights[1]))


def calibrated(platt: Platt, scores: FloatArray) -> FloatArray:
    return np.array([platt(score) for score in scores.tolist()], dtype=np.float64)


def held_out(values: JudgedArrays, folds: int = FOLDS, seed: int = SEED) -> FloatArray:
    """Probability of each value by a map that was fitted without the values of its product and of its fold's others.

    values: with scores as their confidence.
    """
    found = np.zeros(len(values))
    for inside, outside in splits(values.row, folds, seed):
        platt = fit_platt(values.confidence[inside], values.right[inside])
        found[outside] = calibrated(platt, values.confidence[outside])
    return found


def splits(row: IntArray, folds: int = FOLDS, seed: int = SEED) -> Iterator[tuple[BoolArray, BoolArray]]:
    """(to fit, to test) as masks over values: the values of a product are right or wrong together, and stay so."""
    products = np.random.default_rng(seed).permutation(np.unique(row))
    for fold in np.array_split(products, min(folds, len(products))):
        outside = np.isin(row, fold)
        yield ~outside, outside


def rescored(values: JudgedArrays, confidence: FloatArray) -> JudgedArrays:
    """The same values with another confidence."""
    return replace(values, confidence=confidence)
