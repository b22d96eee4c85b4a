"""What went wrong in a slot: each error of a run is of exactly one kind, and an example says which product it was.

The kinds refine the metric's own outcomes, so their counts add up to its: `missed` is VN, `invented_absent` is NV,
`invented_unnamed` is the values beyond the gold, and `wrong_attribute`, `boundary` and `wrong_value` together are VW.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from jobs.scores.dataset import ABSENT, BenchmarkRow
from jobs.scores.scoring import Outcome, outcomes

_WORD = re.compile(r"\w+")


class ErrorKind(StrEnum):
    """In the order in which a wrong value is tried: the first kind that fits is its kind."""

    #: A gold value, and no value was predicted.
    MISSED = "missed"
    #: A value for an attribute of which the gold says that the product has none.
    INVENTED_ABSENT = "invented_absent"
    #: A value for an attribute that the row's gold does not name. It may be right all the same: annotators leave out.
    INVENTED_UNNAMED = "invented_unnamed"
    #: Another value than the gold, and exactly a gold value of another attribute of the same row.
    WRONG_ATTRIBUTE = "wrong_attribute"
    #: Another value than the gold, but with a word of it, or one inside the other; case and blanks aside. Also the
    #: whole gold in other spelling ("FILA" for "Fila").
    BOUNDARY = "boundary"
    #: Any other value than the gold.
    WRONG_VALUE = "wrong_value"


@dataclass(frozen=True, slots=True)
class SlotError:
    """One error.

    row: number of the row, from 1. gold: accepted values without edge blanks, none where the gold says absent or does
    not name the attribute. predicted: None where missed. belongs_to: another attribute of the row with this very gold
    value, whatever the kind.
    """

    kind: ErrorKind
    row: int
    category: str
    text: str
    attribute: str
    gold: tuple[str, ...]
    predicted: str | None
    belongs_to: str | None = None


def slot_errors(rows: Sequence[BenchmarkRow], predictions: Sequence[Mapping[str, str | None]]) -> list[SlotError]:
    """Every error of a run, row by row."""
    return [
        error
        for number, (row, said) in enumerate(zip(rows, predictions, strict=True), 1)
        for error in _row_errors(number, row, said)
    ]


def error_counts(errors: Sequence[SlotError]) -> dict[ErrorKind, int]:
    """{kind: how many}, every kind."""
    kinds = [error.kind for error in errors]
    return {kind: kinds.count(kind) for kind in ErrorKind}


def examples(errors: Sequence[SlotError], kind: ErrorKind, count: int) -> list[SlotError]:
    """Up to `count` errors of a kind, spread evenly over the run: files are sorted by category."""
    of_kind = [error for error in errors if error.kind is kind]
    shown = min(count, len(of_kind))
    return [of_kind[place * len(of_kind) // shown] for place in range(shown)]


def overlap(one: str, other: str) -> bool:
    """Whether two texts share a word or one is inside the other, case and the width of blanks aside."""
    one, other = (" ".join(text.casefold().split()) for text in (one, other))
    if not one or not other:
        return False
    return one in other or other in one or not set(_WORD.findall(one)).isdisjoint(_WORD.findall(other))


def _row_errors(number: int, row: BenchmarkRow, said: Mapping[str, str | None]) -> list[SlotError]:
    gold = {name: _present(values) for name, values in row.gold.items()}
    errors = []
    for attribute, outcome in outcomes(row.gold, said):
        if outcome in (Outcome.NN, Outcome.VC):
            continue
        accepted = gold.get(attribute, ())
        predicted = None if outcome is Outcome.VN else said[attribute]
        # Never `attribute` itself: a value that its own gold accepts is no error.
        belongs_to = next((name for name, values in gold.items() if predicted in values), None)
        kind = _kind(outcome, accepted, predicted, belongs_to)
        errors.append(SlotError(kind, number, row.category, row.text, attribute, accepted, predicted, belongs_to))
    return errors


def _kind(outcome: Outcome, accepted: Sequence[str], predicted: str | None, belongs_to: str | None) -> ErrorKind:
    match outcome:
        case Outcome.VN:
            return ErrorKind.MISSED
        case Outcome.NV:
            return ErrorKind.INVENTED_ABSENT
        case Outcome.EXTRA:
            return ErrorKind.INVENTED_UNNAMED
    if belongs_to is not None:
        return ErrorKind.WRONG_ATTRIBUTE
    if any(overlap(predicted or "", value) for value in accepted):
        return ErrorKind.BOUNDARY
    return ErrorKind.WRONG_VALUE


def _present(values: Sequence[str]) -> tuple[str, ...]:
    return () if values[0] == ABSENT else tuple(value.strip() for value in values)
