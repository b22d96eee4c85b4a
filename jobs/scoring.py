"""The metric of the attribute-value benchmarks (ExtractGPT's), computed from gold and predicted rows.

Only attributes that a row's gold names are counted, each once: NN none/none, NV none/value, VN value/none, VC value
and one of the gold values (case-sensitive, gold without edge blanks), VW value and another. `strict_f1` adds a false
positive for every value predicted for an attribute that the row's gold does not name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Predicted texts that mean "no value" in the benchmark, beside null. Its own list, not normal.NULL_MARKERS: published
#: figures were counted with it.
NO_VALUE = frozenset({"n/a", "None"})


@dataclass(frozen=True, slots=True)
class Scores:
    """Counts of one benchmark run and the figures in percent that follow from them, rounded as the benchmark rounds."""

    nn: int = 0
    nv: int = 0
    vn: int = 0
    vc: int = 0
    vw: int = 0
    extra: int = 0

    @property
    def precision(self) -> float:
        return _percent(self.vc, self.nv + self.vc + self.vw)

    @property
    def recall(self) -> float:
        return _percent(self.vc, self.vn + self.vc + self.vw)

    @property
    def f1(self) -> float:
        return _f1(self.precision, self.recall)

    @property
    def strict_f1(self) -> float:
        return _f1(_percent(self.vc, self.nv + self.vc + self.vw + self.extra), self.recall)

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
    if len(gold) != len(predicted):
        raise ValueError(f"{len(predicted)} predictions for {len(gold)} gold rows")
    tally = dict.fromkeys(("nn", "nv", "vn", "vc", "vw", "extra"), 0)
    for wanted, said in zip(gold, predicted, strict=True):
        for attribute, values in wanted.items():
            tally[_outcome(list(values), said.get(attribute))] += 1
        tally["extra"] += sum(_is_value(value) for attribute, value in said.items() if attribute not in wanted)
    return Scores(**tally)


def _outcome(accepted: Sequence[str], guess: str | None) -> str:
    # The benchmark takes the first gold value's word for whether the attribute is there at all.
    if accepted[0] == "n/a":
        return "nv" if _is_value(guess) else "nn"
    if not _is_value(guess):
        return "vn"
    return "vc" if guess in [value.strip() for value in accepted] else "vw"


def _is_value(guess: str | None) -> bool:
    return guess is not None and guess not in NO_VALUE


def _percent(part: int, whole: int) -> float:
    return round(100 * part / max(1, whole), 2)


def _f1(precision: float, recall: float) -> float:
    return round(2 * precision * recall / (precision + recall), 2) if precision + recall else 0.0
