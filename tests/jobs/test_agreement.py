"""Cohen's kappa and its one home, against figures worked out by hand."""

from __future__ import annotations

from collections import Counter

import pytest

from jobs.remote.judgement import OF_VALUE, Agreement, Verdict
from jobs.scores.agreement import cohen_kappa
from jobs.scores.scoring import is_value


@pytest.mark.parametrize(
    ("one", "other", "kappa"),
    [
        # They agree on 4 of 5; chance: (3 * 2 + 1 * 2 + 1 * 1) / 25.
        ("AAABt", "AABBt", round((0.8 - 9 / 25) / (1 - 9 / 25), 3)),
        ("AB", "BA", -1.0),
        ("AB", "AB", 1.0),
        ("AA", "AA", None),
        ("AA", "BB", 0.0),
        ("A" * 49, "A" * 49, None),
        ("", "", None),
    ],
)
def test_kappa_by_hand(one: str, other: str, kappa: float | None) -> None:
    assert cohen_kappa(Counter(zip(one, other, strict=True))) == kappa


def test_a_judges_kappa_is_of_the_slots_asked_for_alone() -> None:
    pairs = {(Verdict.CORRECT, Verdict.CORRECT): 3, (Verdict.WRONG, Verdict.CORRECT): 1, (Verdict.WRONG,) * 2: 4}
    whole = Agreement(Counter(pairs | {(Verdict.MISSING, Verdict.ABSENT): 9})).as_dict(OF_VALUE)
    assert whole["kappa"] == cohen_kappa(pairs) == 0.75 and whole["slots"] == 8


@pytest.mark.parametrize(
    ("text", "counts"), [(None, False), ("n/a", False), ("None", False), ("none", True), ("", True)]
)
def test_what_the_benchmark_takes_for_a_value(text: str | None, counts: bool) -> None:
    assert is_value(text) is counts
