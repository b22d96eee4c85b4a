"""Answers held against the gold, with how sure the decoder was of each: what calibration and curves are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpd_core.reading import ValueStatus
from jobs.scores.confidences import Told
from jobs.scores.dataset import ABSENT, BenchmarkRow
from jobs.scores.scoring import Outcome, is_value, outcomes

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Judged:
    """One answer, a value or an absence.

    row: number of its row, from 0. named: whether the row's gold names the attribute. right: whether it is a gold value
    or, of an absence, the gold has none. A value for an attribute that the gold does not name is wrong, an absence
    right: strict F1 counts so; F1 leaves out both.
    """

    row: int
    attribute: str
    told: Told
    named: bool
    right: bool

    @property
    def is_absence(self) -> bool:
        return self.told.status is ValueStatus.ABSENT


@dataclass(frozen=True, slots=True)
class JudgedArrays:
    """Judged answers as arrays, one entry each. gold: slots with a gold value, answered or not."""

    confidence: FloatArray
    right: BoolArray
    row: IntArray
    attribute: tuple[str, ...]
    gold: int

    def __len__(self) -> int:
        return len(self.right)

    def at(self, mask: BoolArray, gold: int) -> JudgedArrays:
        """The values of a mask; gold: slots with a gold value that belong to them."""
        names = tuple(name for name, here in zip(self.attribute, mask, strict=True) if here)
        return JudgedArrays(self.confidence[mask], self.right[mask], self.row[mask], names, gold)


def judged(
    rows: Sequence[BenchmarkRow],
    predictions: Sequence[Mapping[str, str | None]],
    confidences: Sequence[Mapping[str, Told]],
) -> list[Judged]:
    """Every value and every absence of a run whose decoder said how sure it was of it, row by row. Values that are
    truncated, invalid or too unsure are neither."""
    found = []
    for number, (row, said, sure) in enumerate(zip(rows, predictions, confidences, strict=True)):
        right = {attribute for attribute, outcome in outcomes(row.gold, said) if outcome is Outcome.VC}
        for attribute, told in sure.items():
            if told.logprob is None:
                continue
            named = attribute in row.gold
            if is_value(said.get(attribute)):
                found.append(Judged(number, attribute, told, named, attribute in right))
            elif told.status is ValueStatus.ABSENT:
                none = not named or row.gold[attribute][0] == ABSENT
                found.append(Judged(number, attribute, told, named, none))
    return found


def sample(
    answers: Sequence[Judged],
    rows: Sequence[BenchmarkRow],
    *,
    strict: bool,
    confidence: Callable[[Told], float] = lambda told: told.confidence or 0.0,
) -> JudgedArrays:
    """The values among the answers: all of them where `strict`, else those of attributes that the gold names."""
    kept = [answer for answer in answers if not answer.is_absence and (strict or answer.named)]
    return _sample(kept, sum(values[0] != ABSENT for row in rows for values in row.gold.values()), confidence)


def absences(answers: Sequence[Judged], confidence: Callable[[Told], float]) -> JudgedArrays:
    """The absences among the answers, judged strictly: gold that says absent is too rare to go by it alone."""
    return _sample([answer for answer in answers if answer.is_absence], 0, confidence)


def _sample(answers: Sequence[Judged], gold: int, confidence: Callable[[Told], float]) -> JudgedArrays:
    return JudgedArrays(
        np.array([confidence(answer.told) for answer in answers], dtype=np.float64),
        np.array([answer.right for answer in answers], dtype=np.bool_),
        np.array([answer.row for answer in answers], dtype=np.int64),
        tuple(answer.attribute for answer in answers),
        gold,
    )
