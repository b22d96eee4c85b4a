"""Votes and what is made of them, against figures worked out by hand."""

from __future__ import annotations

import pytest

from jobs.blind.verdicts import Reviewer, Vote, VoteCount, agreements, ballots, majority, share_interval, sign_test


def reviewer(name: str, votes: dict[int, Vote]) -> Reviewer:
    return Reviewer(name, votes, 0, 0, (1.0,))


@pytest.mark.parametrize(
    ("votes", "verdict"),
    [
        (["A"], "A"),
        (["A", "B"], "tie"),
        (["A", "tie"], "tie"),
        (["A", "A", "B"], "A"),
        (["B", "tie", "B", "A"], "B"),
        (["tie", "tie", "B"], "tie"),
        (["A", "A", "B", "B", "tie"], "tie"),
        (["A", "B", "tie"], "tie"),
    ],
)
def test_a_majority_is_the_vote_that_most_gave(votes: list[Vote], verdict: Vote) -> None:
    assert majority(votes) == verdict


@pytest.mark.parametrize(
    ("wins", "losses", "p"),
    [
        (0, 0, 1.0),
        (1, 0, 1.0),
        (5, 5, 1.0),
        (5, 0, 2 / 32),
        (0, 5, 2 / 32),
        (8, 2, 2 * (1 + 10 + 45) / 1024),
        (7, 3, 2 * (1 + 10 + 45 + 120) / 1024),
    ],
)
def test_the_sign_test_counts_the_splits(wins: int, losses: int, p: float) -> None:
    assert sign_test(wins, losses) == pytest.approx(p, rel=1e-12)


def test_the_sign_test_holds_for_thousands_of_rows() -> None:
    assert 0 < sign_test(3000, 2000) < 1e-40


def test_pairs_are_held_together_on_what_both_voted_on() -> None:
    three = [reviewer("x", {1: "A", 2: "B"}), reviewer("y", {2: "B", 3: "tie"}), reviewer("z", {3: "A", 4: "A"})]
    assert [(a.one, a.other, a.questions, a.percent) for a in agreements(three)] == [
        ("x", "y", 1, 100.0),
        ("y", "z", 1, 0.0),
    ]
    pair = [reviewer("x", dict(enumerate("AAAB"))), reviewer("y", dict(enumerate("AABB")))]  # type: ignore[arg-type]
    assert agreements(pair)[0].kappa == 0.5
    assert ballots(three) == {1: ["A"], 2: ["B", "B"], 3: ["tie", "A"], 4: ["A"]}


def test_a_tie_is_half_a_preference() -> None:
    assert VoteCount(win=1, tie=2, loss=1).share == 50.0
    assert VoteCount(win=1, tie=1).share == 75.0
    assert VoteCount().share is None


def test_the_interval_is_over_rows_however_many_voted() -> None:
    one_vote = share_interval([VoteCount(win=1)] * 20 + [VoteCount(loss=1)] * 20)
    five_votes = share_interval([VoteCount(win=5)] * 20 + [VoteCount(loss=5)] * 20)
    assert one_vote == five_votes
    # Binomial: 50 +- 1.96 * 100 * sqrt(0.25 / 40) = 34.5 to 65.5.
    assert one_vote.low == pytest.approx(34.5, abs=3) and one_vote.high == pytest.approx(65.5, abs=3)
    certain = share_interval([VoteCount(win=1)] * 5)
    assert (certain.low, certain.high) == (100.0, 100.0)
