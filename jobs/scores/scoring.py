"""The metric of the attribute-value benchmarks (ExtractGPT's), computed from gold and predicted rows.

Only attributes that a row's gold names are counted, each once: NN none/none, NV none/value, VN value/none, VC value
and one of the gold values (case-sensitive, gold without edge blanks), VW value and another. `strict_f1` adds a false
positive for every value predicted for an attribute that the row's gold does not name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

#: Predicted texts that mean "no value" in the benchmark, beside null. Its own list, not normal.NULL_MARKERS: published
#: figures were counted with it.
NO_VALUE = frozenset({"n/a", "None"})


class Outcome(StrEnum):
    """What became of one slot: an attribute that the row's gold names, or one that it does not and that has a value."""

    NN = "nn"
    NV = "nv"
    VN = "vn"
    VC = "vc"
    VW = "vw"
    EXTRA = "extra"


@dataclass(frozen=True, slots=True)
class Scores:
    """Counts of a run or a part of it and the figures in percent that follow, rounded as the benchmark does."""

    nn: int = 0
    nv: int = 0
    vn: int = 0
    vc: int = 0
    vw: int = 0
    extra: int = 0

    def __add__(self, other: Scores) -> Scores:
        return Scores(*(mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)))

    @property
    def counts(self) -> tuple[int, ...]:
        """In the order of the fields, which is that of `Outcome`."""
        return tuple(getattr(self, field.name) for field in fields(self))

    @property
    def gold(self) -> int:
        """Slots with a gold value."""
        return self.vn + self.vc + self.vw

    @property
    def predicted(self) -> int:
        """Values predicted for attributes that the gold names."""
        return self.nv + self.vc + self.vw

    @property
    def precision(self) -> float:
        return _percent(self.vc, self.predicted)

    @property
    def recall(self) -> float:
        return _percent(self.vc, self.gold)

    @property
    def f1(self) -> float:
        return _f1(self.precision, self.recall)

    @property
    def strict_f1(self) -> float:
        return _f1(_percent(self.vc, self.predicted + self.extra), self.recall)

    def as_dict(self) -> dict[str, Any]:
        """The content of scores.json."""
        return {
            "f1": self.f1,
            "strict_f1": self.strict_f1,
            "precision": self.precision,
            "recall": self.recall,
            "counts": {"NN": self.nn, "NV": self.nv, "VN": self.vn, "VC": self.vc, "VW": self.vw},
            "extra_values": self.extra,
        }


def score(gold: Sequence[Mapping[str, Iterable[str]]], predicted: Sequence[Mapping[str, str | None]]) -> Scores:
    """Scores predictions {attribute: value or None} against gold {attribute: its accepted values}, row by row.

    Raises ValueError where the two differ in length.
    """
    return sum(score_rows(gold, predicted), Scores())


def score_rows(
    gold: Sequence[Mapping[str, Iterable[str]]], predicted: Sequence[Mapping[str, str | None]]
) -> list[Scores]:
    """The scores of each row by itself; their sum is `score`. Raises ValueError where the two differ in length."""
    if len(gold) != len(predicted):
        raise ValueError(f"{len(predicted)} predictions for {len(gold)} gold rows")
    return [
        tally(outcome for _, outcome in outcomes(wanted, said)) for wanted, said in zip(gold, predicted, strict=True)
    ]


def tally(found: Iterable[Outcome]) -> Scores:
    return Scores(**{outcome.value: count for outcome, count in Counter(found).items()})


def outcomes(wanted: Mapping[str, Iterable[str]], said: Mapping[str, str | None]) -> Iterator[tuple[str, Outcome]]:
    """(attribute, outcome) of a row's slots: each attribute that its gold names, then each value beyond the gold."""
    for attribute, values in wanted.items():
        yield attribute, _outcome(list(values), said.get(attribute))
    for attribute, value in said.items():
        if attribute not in wanted and is_value(value):
            yield attribute, Outcome.EXTRA


def _outcome(accepted: Sequence[str], guess: str | None) -> Outcome:
    # The benchmark takes the first gold value's word for whether the attribute is there at all.
    if accepted[0] == "n/a":
        return Outcome.NV if is_value(guess) else Outcome.NN
    if not is_value(guess):
        return Outcome.VN
    return Outcome.VC if guess in [value.strip() for value in accepted] else Outcome.VW


def is_value(guess: str | None) -> bool:
    """Whether a predicted text counts as a value."""
    return guess is not None and guess not in NO_VALUE


def _percent(part: int, whole: int) -> float:
    return round(100 * part / max(1, whole), 2)


def _f1(precision: float, recall: float) -> float:
    return round(2 * precision * recall / (precision + recall), 2) if precision + recall else 0.0
