"""Tables of parts and kinds of errors, against cases counted by hand, and how they add up to the metric's counts."""

from __future__ import annotations

import random

import pytest

from jobs.scores.breakdown import Part, by_attribute, by_category
from jobs.scores.dataset import BenchmarkRow
from jobs.scores.errors import ErrorKind, SlotError, error_counts, examples, overlap, slot_errors
from jobs.scores.quality import assess
from jobs.scores.scoring import Scores

ROWS = [
    BenchmarkRow("Diesel sneaker, red", "Shoes", {"Brand": ("Diesel",), "Color": ("red",), "Size": ("n/a",)}),
    BenchmarkRow("Tazo green tea", "Tea", {"Brand": ("Tazo",)}),
    BenchmarkRow("Fila boot", "Shoes", {"Color": ("n/a",), "Brand": ("Fila",)}),
]
SAID: list[dict[str, str | None]] = [
    {"Brand": "Diesel", "Color": "Diesel", "Size": "9"},
    {"Brand": None, "Flavor": "green"},
    {"Brand": "Fila", "Color": None, "Size": "10"},
]


def test_categories_are_scored_apart_in_the_order_of_the_file() -> None:
    assert by_category(ROWS, SAID) == [
        Part("Shoes", None, Scores(vc=2, vw=1, nv=1, nn=1, extra=1)),
        Part("Tea", None, Scores(vn=1, extra=1)),
    ]


def test_attributes_are_scored_apart_per_category_the_frequent_first() -> None:
    assert by_attribute(ROWS, SAID) == [
        Part("Shoes", "Brand", Scores(vc=2)),
        Part("Shoes", "Color", Scores(vw=1, nn=1)),
        Part("Shoes", "Size", Scores(nv=1, extra=1)),
        Part("Tea", "Brand", Scores(vn=1)),
        Part("Tea", "Flavor", Scores(extra=1)),
    ]


def test_a_line_of_a_table_is_that_computed_by_hand() -> None:
    # gold 2 + 1 + 1, predicted 2 + 1 + 1, P = R = 2/4; beyond the gold 4: strict P = 2/8, F1 = 2*25*50/75
    line = Part("Shoes", "Size", Scores(nn=5, nv=1, vn=1, vc=2, vw=1, extra=4)).as_dict()
    assert line == {
        "category": "Shoes", "attribute": "Size", "gold": 4, "predicted": 4, "correct": 2, "extra": 4,
        "precision": 50.0, "recall": 50.0, "f1": 50.0, "strict_f1": 33.33,
    }  # fmt: skip


GOLD = {
    "Brand": ("Nike",),
    "Model": (" Nike Air Max ", "Air Max"),
    "Size": ("10 D US",),
    "Width": ("D",),
    "Sole": ("n/a",),
}


@pytest.mark.parametrize(
    ("attribute", "predicted", "kind"),
    [
        ("Brand", "Nike", None),
        ("Model", "Air Max", None),  # any accepted value is right
        ("Sole", None, None),
        ("Sole", "n/a", None),
        ("Weight", None, None),
        ("Brand", None, ErrorKind.MISSED),
        ("Brand", "None", ErrorKind.MISSED),  # no value, as the benchmark reads it
        ("Sole", "rubber", ErrorKind.INVENTED_ABSENT),
        ("Sole", "Nike", ErrorKind.INVENTED_ABSENT),  # whatever the value is
        ("Weight", "1 kg", ErrorKind.INVENTED_UNNAMED),
        ("Weight", "D", ErrorKind.INVENTED_UNNAMED),
        ("Brand", "D", ErrorKind.WRONG_ATTRIBUTE),
        ("Model", "Nike", ErrorKind.WRONG_ATTRIBUTE),  # also inside its own gold: a whole other value says more
        ("Model", "nike", ErrorKind.BOUNDARY),  # no gold value of Brand: case counts
        ("Model", "Max Air", ErrorKind.BOUNDARY),
        ("Size", "10 D US wide", ErrorKind.BOUNDARY),
        ("Size", "1", ErrorKind.BOUNDARY),
        ("Brand", "NIKE", ErrorKind.BOUNDARY),
        ("Brand", "Nike Inc.", ErrorKind.BOUNDARY),
        ("Brand", "n/a ", ErrorKind.WRONG_VALUE),  # not the marker; nor is the gold of Sole a value
        ("Brand", "Puma", ErrorKind.WRONG_VALUE),
        ("Brand", "", ErrorKind.WRONG_VALUE),  # inside every text, and no part of any
        ("Brand", "  ", ErrorKind.WRONG_VALUE),
    ],
)
def test_an_error_is_of_one_kind(attribute: str, predicted: str | None, kind: ErrorKind | None) -> None:
    right: dict[str, str | None] = {"Brand": "Nike", "Model": "Air Max", "Size": "10 D US", "Width": "D", "Sole": None}
    found = slot_errors([BenchmarkRow("x", "Shoes", GOLD)], [right | {attribute: predicted}])
    assert [(error.attribute, error.kind) for error in found] == ([] if kind is None else [(attribute, kind)])


def test_an_error_says_where_it_is_and_whose_value_it_took() -> None:
    assert slot_errors(ROWS, SAID) == [
        SlotError(ErrorKind.WRONG_ATTRIBUTE, 1, "Shoes", ROWS[0].text, "Color", ("red",), "Diesel", "Brand"),
        SlotError(ErrorKind.INVENTED_ABSENT, 1, "Shoes", ROWS[0].text, "Size", (), "9"),
        SlotError(ErrorKind.MISSED, 2, "Tea", ROWS[1].text, "Brand", ("Tazo",), None),
        SlotError(ErrorKind.INVENTED_UNNAMED, 2, "Tea", ROWS[1].text, "Flavor", (), "green"),
        SlotError(ErrorKind.INVENTED_UNNAMED, 3, "Shoes", ROWS[2].text, "Size", (), "10"),
    ]
    [_, _, taken] = slot_errors(ROWS[:1], [{"Brand": "Diesel", "Color": "x", "Size": "red", "Age": "red"}])
    assert (taken.kind, taken.belongs_to) == (ErrorKind.INVENTED_UNNAMED, "Color")


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("High-Top Sneaker", "Sneaker", True),
        ("slip  on\nLoafer", "Slip on", True),
        ("Lauflernschuh", "Schuh", True),  # a part of a word
        ("red/black", "black red", True),  # a word shared, neither inside the other
        ("Größe 10", "GRÖSSE 10", True),
        ("绿茶", "茶", True),
        ("red", "green", False),
        ("$", "€", False),
        ("", "red", False),
    ],
)
def test_texts_overlap(one: str, other: str, expected: bool) -> None:
    assert overlap(one, other) is overlap(other, one) is expected


@pytest.mark.parametrize("seed", range(5))
def test_parts_and_kinds_add_up_to_the_counts_of_the_metric(seed: int) -> None:
    rng = random.Random(seed)
    names, words = ["A", "B", "C", "D", "E"], ["red", "Red ", "dark red", "n/a", "None", "", "10 cm", "ü"]
    rows, said = [], []
    for number in range(131):
        gold = {a: tuple(rng.sample(words, rng.randint(1, 3))) for a in rng.sample(names, rng.randint(1, 5))}
        rows.append(BenchmarkRow(f"text {number}", rng.choice(["X", "Y"]), gold))
        said.append({a: rng.choice([*words, None]) for a in rng.sample(names, 3)})

    quality = assess(rows, said)

    for parts in (quality.categories, quality.attributes):
        assert sum((part.scores for part in parts), Scores()) == quality.scores
    counts, scores = error_counts(quality.errors), quality.scores
    assert counts[ErrorKind.MISSED] == scores.vn
    assert counts[ErrorKind.INVENTED_ABSENT] == scores.nv
    assert counts[ErrorKind.INVENTED_UNNAMED] == scores.extra
    wrong = [counts[k] for k in (ErrorKind.WRONG_ATTRIBUTE, ErrorKind.BOUNDARY, ErrorKind.WRONG_VALUE)]
    assert sum(wrong) == scores.vw and all(wrong)
    assert len({(error.row, error.attribute) for error in quality.errors}) == len(quality.errors)


def test_examples_are_spread_over_the_run() -> None:
    errors = [SlotError(ErrorKind.MISSED, n, "c", "x", "A", ("y",), None) for n in range(1, 102)]
    errors.append(SlotError(ErrorKind.BOUNDARY, 9, "c", "x", "A", ("y",), "y z"))
    assert [error.row for error in examples(errors, ErrorKind.MISSED, 4)] == [1, 26, 51, 76]
    assert [error.row for error in examples(errors, ErrorKind.BOUNDARY, 4)] == [9]
    assert examples(errors, ErrorKind.WRONG_VALUE, 4) == []


def test_scores_json_keeps_its_keys_and_gains_intervals_parts_and_errors() -> None:
    facts = assess(ROWS, SAID).as_dict()
    plain = Scores(nn=1, nv=1, vn=1, vc=2, vw=1, extra=2).as_dict()
    assert plain.items() <= facts.items()
    assert facts.keys() - plain.keys() == {"intervals", "errors", "by_category", "by_attribute"}
    low, high = facts["intervals"].pop("f1")
    assert low <= facts["f1"] <= high
    low, high = facts["intervals"].pop("strict_f1")
    assert low <= facts["strict_f1"] <= high
    assert facts["intervals"] == {"level": 0.95, "resamples": 1000, "seed": 0}
    assert facts["errors"] == {
        "missed": 1, "invented_absent": 1, "invented_unnamed": 2, "wrong_attribute": 1, "boundary": 0, "wrong_value": 0,
    }  # fmt: skip
    assert [line["category"] for line in facts["by_category"]] == ["Shoes", "Tea"]
    assert [line["attribute"] for line in facts["by_attribute"]] == ["Brand", "Color", "Size", "Brand", "Flavor"]
