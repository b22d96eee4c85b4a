"""Judged answers of a validation run -> all that a calibration needs, and how well it holds on products left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, isinf
from typing import Any

from hpd_core.confidence import Platt, Score
from jobs.scores.confidences import Told
from jobs.scores.dataset import BenchmarkRow
from jobs.scores.fitting import FOLDS, calibrated, fit_platt, held_out, rescored, score_of
from jobs.scores.judged import BoolArray, FloatArray, Judged, JudgedArrays, absences, sample
from jobs.scores.reliability import average_precision, brier, curve, ece, ece_by_chance, log_loss
from jobs.scores.thresholds import SHRINKAGES, Thresholds, fit_thresholds, held_out_f1
from pipeline.job import JobError


@dataclass(frozen=True, slots=True)
class Fit:
    """See hpd_core.confidence.Calibration. facts: JSON-able figures; those of calibrated confidences and of thresholds
    are cross-validated."""

    score: Score
    values: Platt
    absences: Platt | None
    thresholds: Thresholds
    facts: Mapping[str, Any]


def fit_calibration(
    answers: Sequence[Judged],
    rows: Sequence[BenchmarkRow],
    *,
    strict: bool,
    score: Score | None = None,
    shrinkage: float | None = None,
) -> Fit:
    """score: None takes the one that predicts better, by cross-validated log loss. shrinkage: None takes the one of
    SHRINKAGES with the best cross-validated F1.

    Raises JobError where no value, or every one, is right, or all are of one product.
    """
    scored = {kind: sample(answers, rows, strict=strict, confidence=score_of(kind)) for kind in Score}
    _check(scored[Score.SUM])
    fits = {}
    for kind, values in scored.items():
        raw = sample(answers, rows, strict=strict, confidence=_raw(kind)).confidence
        fits[f"{kind}, raw"] = _figures(raw, values.right)
        fits[f"{kind}, calibrated"] = _figures(held_out(values), values.right)
    chosen = score or min(Score, key=lambda kind: fits[f"{kind}, calibrated"]["log_loss"])
    values = scored[chosen]
    f1s = {size: held_out_f1(values, size) for size in (SHRINKAGES if shrinkage is None else (shrinkage,))}
    size = max(f1s, key=lambda size: f1s[size])  # the first of equal ones
    platt = fit_platt(values.confidence, values.right)
    thresholds = fit_thresholds(rescored(values, calibrated(platt, values.confidence)), size)
    none = absences(answers, score_of(chosen))
    facts = {
        "values": len(values),
        "right": int(values.right.sum()),
        "gold": values.gold,
        "folds": FOLDS,
        "fits": fits,
        "average_precision": {kind.value: average_precision(curve(of)) for kind, of in scored.items()},
        "shrinkage": None if isinf(size) else size,
        "f1": {"all": held_out_f1(values, None), "common": f1s.get(inf), "thresholds": f1s[size]},
        "absences": {"count": len(none)} | (_figures(held_out(none), none.right) if _splits(none) else {}),
    }
    told = fit_platt(none.confidence, none.right) if _splits(none) else None
    return Fit(chosen, platt, told, thresholds, facts)


def _raw(kind: Score) -> Callable[[Told], float]:
    def confidence(told: Told) -> float:
        return exp((told.logprob or 0.0) * (told.tokens if kind is Score.SUM else 1))

    return confidence


def _figures(confidence: FloatArray, right: BoolArray) -> dict[str, float]:
    return {
        "ece": ece(confidence, right),
        "ece_by_chance": ece_by_chance(confidence),
        "brier": brier(confidence, right),
        "log_loss": log_loss(confidence, right),
        "mean": float(confidence.mean()),
    }


def _splits(values: JudgedArrays) -> bool:
    """Whether there is something to tell apart, and products to leave out."""
    return len(set(values.row.tolist())) > 1 and 0 < int(values.right.sum()) < len(values)


def _check(values: JudgedArrays) -> None:
    if not _splits(values):
        right, rows = int(values.right.sum()), len(set(values.row.tolist()))
        raise JobError(
            f"{len(values)} values, {right} right, of {rows} products: nothing to tell apart; "
            "calibrating needs right and wrong values of several products"
        )
