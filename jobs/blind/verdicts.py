"""What reviewers decided on a page of `hpd review build`: their exports, read, checked and counted against the key."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from jobs.blind.questions import Key
from jobs.scores.agreement import cohen_kappa
from jobs.scores.bootstrap import Interval, middle, row_draws
from pipeline.checked import checked
from pipeline.job import JobError

M = TypeVar("M", bound=BaseModel)
#: A vote: for a run, or for neither.
Vote = Literal["A", "tie", "B"]
VOTES: tuple[Vote, ...] = ("A", "tie", "B")


class Decision(BaseModel):
    """One decision. seconds: how long the question was in sight, over all visits."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    question: int
    choice: Literal["1", "2", "tie", "skip"]
    seconds: float = Field(ge=0, allow_inf_nan=False)
    at: str


class Export(BaseModel):
    """The file that the page exports."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    format: Literal["hpd-review-1"]
    page: str
    reviewer: str = Field(min_length=1)
    exported: str
    decisions: list[Decision]


@dataclass(frozen=True, slots=True)
class Reviewer:
    """One person. votes: {number of the question: vote}, skipped questions left out. left: votes for answer 1."""

    name: str
    votes: dict[int, Vote]
    skipped: int
    left: int
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class VoteCount:
    """Wins of A, ties and wins of B."""

    win: int = 0
    tie: int = 0
    loss: int = 0

    @classmethod
    def of(cls, votes: Sequence[Vote]) -> VoteCount:
        counts = Counter(votes)
        return cls(counts["A"], counts["tie"], counts["B"])

    @property
    def total(self) -> int:
        return self.win + self.tie + self.loss

    @property
    def share(self) -> float | None:
        """Preference for A in percent, a tie being half of one; None where nothing was decided."""
        return round(100 * (self.win + self.tie / 2) / self.total, 2) if self.total else None


@dataclass(frozen=True, slots=True)
class ReviewerAgreement:
    """Two reviewers on the questions that both voted on. kappa: None where it is not defined."""

    one: str
    other: str
    questions: int
    percent: float
    kappa: float | None


def read_key(path: Path) -> Key:
    """Raises JobError naming the file, and the entry where one is wrong."""
    return _read(path, Key)


def read_exports(paths: Sequence[Path], key: Key) -> list[Reviewer]:
    """One reviewer per export.

    Raises JobError naming the file of an export that is none, that is of another page or empty, that decides a
    question twice or one that the page does not have, and both files of a reviewer who is there twice.
    """
    files: dict[str, Path] = {}
    reviewers = []
    for path in paths:
        export = _read(path, Export)
        name = " ".join(export.reviewer.split())
        if not name:
            raise JobError(f"{path}: reviewer: has no name")
        if export.page != key.page:
            raise JobError(f"{path}: is of page {export.page}, the key of page {key.page}")
        if name.casefold() in files:
            raise JobError(f"{path}: reviewer {name!r} is in {files[name.casefold()]} already")
        files[name.casefold()] = path
        if not export.decisions:
            raise JobError(f"{path}: holds no decision")
        seen: set[int] = set()
        for decision in export.decisions:
            number = decision.question
            if not 1 <= number <= len(key.questions):
                raise JobError(f"{path}: decides question {number}; the page has 1 to {len(key.questions)}")
            if number in seen:
                raise JobError(f"{path}: decides question {number} twice")
            seen.add(number)
        reviewers.append(_reviewer(name, export, key))
    return reviewers


def ballots(reviewers: Sequence[Reviewer]) -> dict[int, list[Vote]]:
    """{question: votes of all}, questions that somebody voted on, in the page's order."""
    numbers = sorted({number for reviewer in reviewers for number in reviewer.votes})
    return {n: [reviewer.votes[n] for reviewer in reviewers if n in reviewer.votes] for n in numbers}


def majority(votes: Sequence[Vote]) -> Vote:
    """The vote that more reviewers gave than any other; a tie where there is none such."""
    (first, most), *others = Counter(votes).most_common()
    return "tie" if others and others[0][1] == most else first


def share_interval(tallies: Sequence[VoteCount]) -> Interval:
    """Of the preference share, in percent. tallies: one per row; whole rows are drawn, with the votes of everyone."""
    counts = np.array([[t.win, t.tie, t.loss] for t in tallies], dtype=np.int64)
    draws = [VoteCount(*sums).share for sums in row_draws(counts)]
    return middle([share for share in draws if share is not None])


def sign_test(wins: int, losses: int) -> float:
    """Exact two-sided p value of as uneven a split or more, were either side as likely; ties do not enter."""
    rounds = wins + losses
    tail = sum(math.comb(rounds, k) for k in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / 2**rounds)


def agreements(reviewers: Sequence[Reviewer]) -> list[ReviewerAgreement]:
    """Of every two reviewers who voted on a question in common."""
    found = []
    for one, other in combinations(reviewers, 2):
        common = sorted(one.votes.keys() & other.votes.keys())
        if common:
            mine, theirs = ([reviewer.votes[n] for n in common] for reviewer in (one, other))
            same = sum(m == t for m, t in zip(mine, theirs, strict=True))
            percent = round(100 * same / len(common), 2)
            found.append(
                ReviewerAgreement(
                    one.name, other.name, len(common), percent, cohen_kappa(Counter(zip(mine, theirs, strict=True)))
                )
            )
    return found


def _reviewer(name: str, export: Export, key: Key) -> Reviewer:
    votes: dict[int, Vote] = {}
    for decision in export.decisions:
        left = key.questions[decision.question - 1].left
        right: Vote = "B" if left == "A" else "A"
        match decision.choice:
            case "1":
                votes[decision.question] = left
            case "2":
                votes[decision.question] = right
            case "tie":
                votes[decision.question] = "tie"
    choices = Counter(decision.choice for decision in export.decisions)
    seconds = tuple(decision.seconds for decision in export.decisions)
    return Reviewer(name, votes, choices["skip"], choices["1"], seconds)


def _read(path: Path, kind: type[M]) -> M:
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise JobError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:  # no UTF-8, no JSON
        raise JobError(f"{path}: no JSON ({error})") from error
    if not isinstance(tree, dict):
        raise JobError(f"{path}: not a JSON object")
    return checked(kind, tree, str(path))
