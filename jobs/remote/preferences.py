"""Which of two extractions a judge prefers, asked in both orders: what changes with the order was no preference."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from jobs.remote.asking import AnswerError, Question, check_keys, json_object
from jobs.remote.prompts import rendered
from jobs.scores.dataset import BenchmarkRow
from jobs.scores.scoring import is_value


class Choice(StrEnum):
    FIRST = "first"
    SECOND = "second"
    SAME = "same"


class Preference(StrEnum):
    """Of both orders together."""

    A = "a"
    B = "b"
    TIE = "tie"
    #: The two orders were answered differently.
    UNSTEADY = "unsteady"


_SHAPE = {
    "type": "object",
    "properties": {"better": {"type": "string", "enum": [choice.value for choice in Choice]}},
    "required": ["better"],
    "additionalProperties": False,
}
_BY_CHOICES = {
    (Choice.FIRST, Choice.SECOND): Preference.A,
    (Choice.SECOND, Choice.FIRST): Preference.B,
    (Choice.SAME, Choice.SAME): Preference.TIE,
}


def preference_questions(
    row: BenchmarkRow, a: Mapping[str, str | None], b: Mapping[str, str | None]
) -> tuple[Question, Question] | None:
    """The question with `a` first and the one with `b` first, about what differs; None where nothing does."""
    mine, theirs = _plain(a), _plain(b)
    odd = [name for name in mine | theirs if mine.get(name) != theirs.get(name)]
    if not odd:
        return None
    shown = [
        json.dumps({name: said.get(name) for name in odd}, ensure_ascii=False, indent=1) for said in (mine, theirs)
    ]
    return _question(row, shown[0], shown[1]), _question(row, shown[1], shown[0])


def choice_of(text: str) -> Choice:
    """Raises AnswerError for what is none."""
    found = json_object(text)
    check_keys(found, ["better"])
    if found["better"] not in list(Choice):
        raise AnswerError(f"'better' is {found['better']!r}, which must be one of {', '.join(Choice)}")
    return Choice(found["better"])


def preferred(a_first: Choice, b_first: Choice) -> Preference:
    """Out of the answer with `a` first and that with `b` first."""
    return _BY_CHOICES.get((a_first, b_first), Preference.UNSTEADY)


def preference_facts(choices: Sequence[tuple[Choice, Choice]], names: tuple[str, str], equal: int) -> dict[str, Any]:
    """choices: of the rows in which the runs differ. names: of a and b. equal: rows in which they do not.

    first_share: percent of the answers "first" among those that choose. 50 is what a judge without position bias has,
    as each pair is asked in both orders.
    """
    found = Counter(preferred(*pair) for pair in choices)
    single = Counter(choice for pair in choices for choice in pair)
    decided = single[Choice.FIRST] + single[Choice.SECOND]
    return {
        "a": names[0],
        "b": names[1],
        "rows_equal": equal,
        "rows_judged": len(choices),
        "preferred": {kind.value: found[kind] for kind in Preference},
        "first_share": round(100 * single[Choice.FIRST] / decided, 2) if decided else None,
    }


def _question(row: BenchmarkRow, first: str, second: str) -> Question:
    user = rendered("prefer-question.txt.j2", category=row.category, text=row.text, first=first, second=second)
    return Question(rendered("prefer.txt.j2"), user, _SHAPE, choice_of)


def _plain(said: Mapping[str, str | None]) -> dict[str, str | None]:
    return {name: value if is_value(value) else None for name, value in said.items()}
