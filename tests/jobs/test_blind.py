"""The sample of a blind comparison: which rows, on which sides, and what the page gets to know of them."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from jobs.blind.questions import Answers, Sample, answer, draw, spread
from jobs.scores.dataset import BenchmarkRow

CATEGORIES = ["Shoes"] * 30 + ["Tea"] * 10
ROWS = [BenchmarkRow(f"text {n}", category, {}) for n, category in enumerate(CATEGORIES)]
ATTRIBUTES = {"Shoes": ["Brand", "Size"], "Tea": ["Brand"]}
A: list[Answers] = [{"Brand": f"a{n}", "Size": None} for n in range(40)]
#: Says what A says on every fourth row.
B: list[Answers] = [{"Brand": f"a{n}" if n % 4 == 0 else f"b{n}", "Size": "n/a"} for n in range(40)]


def sample(count: int = 20, seed: int = 0, only_differing: bool = False, b: list[Answers] = B) -> Sample:
    return draw(ROWS, ATTRIBUTES, A, b, count, seed, only_differing)


def test_a_question_has_each_answer_on_the_side_that_it_says() -> None:
    for question in sample(40).questions:
        n = question.row - 1
        assert (question.text, question.category) == (ROWS[n].text, ROWS[n].category)
        brand = ("Brand", f"a{n}", f"b{n}") if question.left == "A" else ("Brand", f"b{n}", f"a{n}")
        size = [("Size", None, None)] if question.category == "Shoes" else []
        assert list(question.lines) == [brand, *size]


@pytest.mark.parametrize("count", [7, 20, 40])
def test_sides_are_even_and_neither_they_nor_the_order_follow_the_rows(count: int) -> None:
    questions = sample(count).questions
    left = Counter(question.left for question in questions)
    assert abs(left["A"] - left["B"]) <= 1
    rows = [question.row for question in questions]
    assert rows != sorted(rows)


def test_the_odd_question_out_is_not_always_of_the_same_run() -> None:
    more = {Counter(q.left for q in sample(7, seed).questions).most_common()[0][0] for seed in range(20)}
    assert more == {"A", "B"}


def test_a_row_comes_first_or_on_either_side_as_the_seed_has_it() -> None:
    seen = {(question.row, question.left) for seed in range(20) for question in sample(40, seed).questions}
    assert len(seen) == 2 * 30  # every row that differs, on both sides
    assert len({sample(40, seed).questions[0].row for seed in range(20)}) > 5


def test_the_same_seed_draws_the_same_and_other_answers_other_sides() -> None:
    assert sample() == sample()
    assert sample(seed=1) != sample()
    other: list[Answers] = [{"Brand": f"c{n}" if n % 4 else f"a{n}", "Size": None} for n in range(40)]
    elsewhere = sample(b=other)
    # The same rows, so that A can be held against several; who has seen one key cannot read the other page.
    assert {q.row for q in elsewhere.questions} == {q.row for q in sample().questions}
    assert [(q.row, q.left) for q in elsewhere.questions] != [(q.row, q.left) for q in sample().questions]


def test_rows_with_the_same_answer_are_counted_and_not_shown() -> None:
    drawn = sample(40)
    assert len(drawn.questions) == 30
    assert drawn.identical == tuple(range(1, 41, 4))
    only = sample(20, only_differing=True)
    assert (len(only.questions), only.identical) == (20, ())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("count", [1, 4, 13, 20, 39, 40, 99])
def test_categories_are_drawn_in_proportion(count: int, seed: int) -> None:
    places = spread(CATEGORIES, count, random.Random(seed))
    assert places == sorted(set(places)) and len(places) == min(count, 40)
    shoes = sum(CATEGORIES[place] == "Shoes" for place in places)
    assert abs(shoes - 0.75 * len(places)) <= 1


def test_every_row_can_be_drawn() -> None:
    assert {place for seed in range(60) for place in spread(CATEGORIES, 5, random.Random(seed))} == set(range(40))


def test_an_answer_is_what_people_see() -> None:
    said: Answers = {"a": " x ", "b": None, "c": "n/a", "d": "None", "e": "  ", "f": "X"}
    assert answer(said) == {"a": "x", "f": "X"}


def test_the_page_id_changes_with_what_is_shown() -> None:
    assert len(sample().page_id) == 16
    assert len({sample(seed=seed).page_id for seed in range(5)}) == 5
    assert sample().page_id == sample().page_id
