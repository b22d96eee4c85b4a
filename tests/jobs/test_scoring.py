"""The benchmark's metric against cases counted by hand, and against the reference scorer where it is there."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.scores.scoring import Scores, score

GOLD = [
    {"Brand": ("Diesel",), "Color": ("n/a",), "Size": ("10",)},
    {"Brand": (" Fila ",), "Color": ("Red", "red"), "Size": ("n/a",)},
    {"Brand": ("Bass",)},
]


@pytest.mark.parametrize(
    ("predicted", "counts"),
    [
        # VC Diesel, NN Color, VW Size | VN Brand, VC red, NV Size | VN Brand (absent key)
        ([{"Brand": "Diesel", "Color": None, "Size": "9"}, {"Color": "red", "Size": "M"}, {}], (1, 1, 2, 2, 1, 0)),
        # gold is stripped, predictions are not; case counts
        ([{"Brand": "diesel"}, {"Brand": "Fila"}, {"Brand": "Bass "}], (2, 0, 2, 1, 2, 0)),
        # n/a and None are no values, also outside the gold; the empty text is one
        (
            [{"Brand": "n/a", "Age": "None", "X": ""}, {"Brand": "None"}, {"Age": "kids", "Y": "n/a"}],
            (2, 0, 5, 0, 0, 2),
        ),
    ],
)
def test_outcomes_are_those_counted_by_hand(
    predicted: list[dict[str, str | None]], counts: tuple[int, int, int, int, int, int]
) -> None:
    nn, nv, vn, vc, vw, extra = counts
    assert score(GOLD, predicted) == Scores(nn=nn, nv=nv, vn=vn, vc=vc, vw=vw, extra=extra)


def test_figures_are_those_computed_by_hand() -> None:
    scores = Scores(nn=4, nv=1, vn=2, vc=5, vw=3, extra=6)
    # P = 5/9 = 55.56, R = 5/10 = 50.00, F1 = 2*55.56*50/105.56; strict P = 5/15 = 33.33
    assert scores.as_dict() == {
        "f1": 52.63,
        "strict_f1": 40.0,
        "precision": 55.56,
        "recall": 50.0,
        "counts": {"NN": 4, "NV": 1, "VN": 2, "VC": 5, "VW": 3},
        "extra_values": 6,
    }


def test_nothing_found_is_zero_and_not_a_division_error() -> None:
    assert score([{"Brand": ("n/a",)}], [{}]).as_dict()["f1"] == 0.0


def test_rows_that_do_not_pair_up_are_refused() -> None:
    with pytest.raises(ValueError, match="1 predictions for 3 gold rows"):
        score(GOLD, [{}])


@pytest.mark.parametrize("seed", range(5))
def test_agrees_with_the_reference_scorer(seed: int, reference_scorer: Path, tmp_path: Path) -> None:
    rng = random.Random(seed)
    words = ["red", "Red ", "n/a", "None", "", "10 cm", "ü"]
    rows, predictions = [], []
    for _ in range(97):
        attributes = rng.sample(["A", "B", "C", "D", "E"], rng.randint(1, 5))
        rows.append({a: list(dict.fromkeys(rng.sample(words, rng.randint(1, 3)))) for a in attributes})
        predictions.append({a: rng.choice([*words, None]) for a in rng.sample(["A", "B", "C", "D", "E"], 3)})
    gold_file, predicted_file = tmp_path / "gold.jsonl", tmp_path / "predicted.jsonl"
    lines = [
        {"input": "x", "category": "c", "target_scores": {a: dict.fromkeys(v, 1) for a, v in r.items()}} for r in rows
    ]
    gold_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    predicted_file.write_text("".join(json.dumps(line) + "\n" for line in predictions))

    command = [sys.executable, str(reference_scorer), str(gold_file), str(predicted_file)]
    reference = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert score(rows, predictions).as_dict() == reference
