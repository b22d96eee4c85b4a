"""What a blind comparison shows and what it hides: products with two answers on random sides, and the key to the sides.

The page holds the questions and nothing of the runs; the key, a file of its own, says which side was whose. The two
belong together by the page's id, a digest of all that the page shows.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from jobs.scores.dataset import BenchmarkRow
from jobs.scores.scoring import is_value

Answers = Mapping[str, str | None]
Side = Literal["A", "B"]


@dataclass(frozen=True, slots=True)
class BlindQuestion:
    """One product as the page shows it. lines: (attribute, value of answer 1, value of answer 2), None for no value."""

    row: int  # of the benchmark file, from 1
    category: str
    text: str
    left: Side  # whose answer is answer 1
    lines: tuple[tuple[str, str | None, str | None], ...]

    def shown(self) -> dict[str, Any]:
        """What the page may know: neither the row nor the side."""
        return {"category": self.category, "text": self.text, "lines": [list(line) for line in self.lines]}


@dataclass(frozen=True, slots=True)
class Sample:
    """questions: in the page's order. identical: rows of the sample that are not shown, both answers being the same."""

    questions: tuple[BlindQuestion, ...]
    identical: tuple[int, ...]

    @property
    def page_id(self) -> str:
        """A digest of what is shown; it does not depend on which run is A."""
        shown = json.dumps([question.shown() for question in self.questions])
        return hashlib.sha256(shown.encode()).hexdigest()[:16]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class KeyRun(_Strict):
    name: str
    settings: dict[str, str]


class KeyQuestion(_Strict):
    row: int = Field(ge=1)
    category: str
    left: Side


class Key(_Strict):
    """The content of page.key.json. questions: in the page's order; question n of the page is the nth.

    identical: rows of the sample with the same answer in both runs, which the page leaves out.
    """

    page: str
    dataset: str
    seed: int
    only_differing: bool
    a: KeyRun
    b: KeyRun
    questions: list[KeyQuestion]
    identical: list[int]


def draw(
    rows: Sequence[BenchmarkRow],
    attributes: Mapping[str, Sequence[str]],
    a: Sequence[Answers],
    b: Sequence[Answers],
    count: int,
    seed: int,
    only_differing: bool = False,
) -> Sample:
    """A sample of up to `count` rows with both answers on random sides.

    attributes: {category: names in the order of the page}. a, b: answers of the two runs, one per row. Categories
    are in the sample as they are in the file, to within a row. Which rows are drawn depends on the rows and the seed
    alone, so that one run can be held against several others on the same products; with `only_differing` only rows
    with different answers are drawn. As many questions show A on the left as on the right, to within one.
    """
    differs = [answer(mine) != answer(theirs) for mine, theirs in zip(a, b, strict=True)]
    numbers = [n for n in range(len(rows)) if differs[n] or not only_differing]
    drawn = spread([rows[n].category for n in numbers], count, random.Random(f"rows {seed}"))
    chosen = [numbers[place] for place in drawn]
    different = [n for n in chosen if differs[n]]
    # Answers are part of the seed: who has seen the key of one page could else read the sides of the next.
    said = json.dumps([[dict(a[n]), dict(b[n])] for n in different])
    dealer = random.Random(f"sides {seed} {hashlib.sha256(said.encode()).hexdigest()}")
    dealer.shuffle(different)
    # Which side the odd question out goes to is drawn too.
    pair: tuple[Side, Side] = ("A", "B") if dealer.random() < 0.5 else ("B", "A")
    sides = [pair[place % 2] for place in range(len(different))]
    dealer.shuffle(sides)
    questions = []
    for n, left in zip(different, sides, strict=True):
        first, second = (answer(a[n]), answer(b[n])) if left == "A" else (answer(b[n]), answer(a[n]))
        lines = tuple((name, first.get(name), second.get(name)) for name in attributes[rows[n].category])
        questions.append(BlindQuestion(n + 1, rows[n].category, rows[n].text, left, lines))
    return Sample(tuple(questions), tuple(n + 1 for n in chosen if not differs[n]))


def spread(categories: Sequence[str], count: int, dice: random.Random) -> list[int]:
    """Places of up to `count` rows in ascending order, drawn so that each category has its share, to within a row.

    The rows of a category are shuffled and laid at even distances on the line from 0 to 1; the first `count` on the
    line are taken.
    """
    members: dict[str, list[int]] = {}
    for place, category in enumerate(categories):
        members.setdefault(category, []).append(place)
    line = []
    for places in members.values():
        dice.shuffle(places)
        start = dice.random()
        line += [((rank + start) / len(places), place) for rank, place in enumerate(places)]
    return sorted(place for _, place in sorted(line)[:count])


def answer(said: Answers) -> dict[str, str]:
    """The values that people see: without edge blanks, and without those that the benchmark takes for no value."""
    shown = {name: value.strip() for name, value in said.items() if value is not None and is_value(value)}
    return {name: value for name, value in shown.items() if value}


def key(sample: Sample, dataset: str, seed: int, only_differing: bool, a: KeyRun, b: KeyRun) -> Key:
    return Key(
        page=sample.page_id,
        dataset=dataset,
        seed=seed,
        only_differing=only_differing,
        a=a,
        b=b,
        questions=[KeyQuestion(row=q.row, category=q.category, left=q.left) for q in sample.questions],
        identical=list(sample.identical),
    )
