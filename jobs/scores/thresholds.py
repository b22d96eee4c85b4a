"""Probabilities of judged values -> the least that a value needs to be kept, for the best F1."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, isinf

import numpy as np

from jobs.scores.fitting import calibrated, fit_platt, rescored, splits
from jobs.scores.judged import BoolArray, FloatArray, JudgedArrays

#: Shrinkages that `held_out_f1` may choose from: values of an attribute at which its own threshold and the common one
#: weigh the same. The ones that trust attributes least come first and win where nothing speaks against them.
SHRINKAGES = (inf, 1000.0, 400.0, 200.0, 100.0, 50.0)
_ROUNDS = 100
#: Of a threshold: nobody knows one better.
_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Least probability to keep a value: `common`, and that of the attributes that have one of their own."""

    common: float
    by_attribute: Mapping[str, float]

    def keep(self, values: JudgedArrays) -> BoolArray:
        least = np.array([self.by_attribute.get(name, self.common) for name in values.attribute])
        return values.confidence >= least if len(values) else np.zeros(0, dtype=np.bool_)


def fit_thresholds(values: JudgedArrays, shrinkage: float) -> Thresholds:
    """Thresholds for the largest micro F1. values: with calibrated probabilities as their confidence.

    A value raises F = 2 right / (kept + gold) exactly where its chance to be right exceeds F / 2 (Lipton et al. 2014,
    arXiv 1402.1892). Where probabilities are calibrated F / 2 is thus the threshold itself: no search, little noise.
    But one calibration serves all attributes and fits some better than others. So each attribute's best threshold is
    found by itself, at F / 2 as the price of a value, and with these a larger F, until it no longer grows (Dinkelbach
    1967). An attribute with n values then gets n parts of its own threshold and `shrinkage` parts of the common one;
    without end, `inf`, it has none of its own.
    """
    f1 = _rising(values, lambda price: values.confidence >= price)
    common = f1 / 2
    if isinf(shrinkage):
        return Thresholds(round(common, _DIGITS), {})
    names = sorted(set(values.attribute))
    which = [np.array(values.attribute) == name for name in names]

    def own(price: float) -> list[float]:
        return [_cheapest(values.confidence[at], values.right[at], price) for at in which]

    def kept(price: float) -> BoolArray:
        return Thresholds(common, dict(zip(names, own(price), strict=True))).keep(values)

    counts = [int(at.sum()) for at in which]
    found = zip(names, own(_rising(values, kept) / 2), counts, strict=True)
    shrunk = {name: (n * least + shrinkage * common) / (n + shrinkage) for name, least, n in found}
    return Thresholds(round(common, _DIGITS), {name: round(least, _DIGITS) for name, least in shrunk.items()})


def micro_f1(values: JudgedArrays, keep: BoolArray) -> float:
    """From 0 to 1."""
    return 2 * int(values.right[keep].sum()) / max(1, int(keep.sum()) + values.gold)


def held_out_f1(scores: JudgedArrays, shrinkage: float | None) -> float:
    """Micro F1, from 0 to 1, of values that are kept by calibrations and thresholds fitted without their own products;
    None: all are kept. scores: values with scores as their confidence."""
    keep = np.ones(len(scores), dtype=np.bool_)
    if shrinkage is None:
        return micro_f1(scores, keep)
    for inside, outside in splits(scores.row):
        platt = fit_platt(scores.confidence[inside], scores.right[inside])
        everyone = rescored(scores, calibrated(platt, scores.confidence))
        # The gold of the products that are held out is left out too, in proportion.
        part = everyone.at(inside, round(scores.gold * float(inside.mean())))
        keep[outside] = fit_thresholds(part, shrinkage).keep(everyone)[outside]
    return micro_f1(scores, keep)


def _rising(values: JudgedArrays, kept: Callable[[float], BoolArray]) -> float:
    """The largest F1, where `kept` says what is worth the price F1 / 2."""
    f1 = micro_f1(values, np.ones(len(values), dtype=np.bool_))
    for _ in range(_ROUNDS):
        there = micro_f1(values, kept(f1 / 2))
        if there <= f1:
            break
        f1 = there
    return f1


def _cheapest(confidence: FloatArray, right: BoolArray, price: float) -> float:
    """The threshold with the largest sum of (right - price) over what it keeps, in the middle between the last value
    that is kept and the first that is not; 0 where all are kept, 1 where none is."""
    order = np.argsort(-confidence, kind="stable")
    sorted_ = np.append(confidence[order], 0.0)
    gains = np.append(0.0, np.cumsum(right[order] - price))
    # Never between equal ones; of equal gains the one that keeps most.
    cuts = [n for n in range(len(gains)) if n == 0 or n == len(confidence) or sorted_[n - 1] > sorted_[n]]
    most = max(cuts, key=lambda n: (round(float(gains[n]), 9), n))
    if most == len(confidence):
        return 0.0
    return float((sorted_[most - 1] + sorted_[most]) / 2) if most else 1.0
