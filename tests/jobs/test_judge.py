"""`hpd judge`: verdicts, their agreement with the gold, preferences in both orders, against a local endpoint."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from jobs.cli import app
from jobs.remote import endpoint as module
from jobs.remote.asking import AnswerError
from jobs.remote.judgement import (
    OF_NONE,
    OF_VALUE,
    Agreement,
    Verdict,
    gold_verdicts,
    judge_question,
    judged_facts,
    verdicts_of,
)
from jobs.remote.preferences import Choice, Preference, choice_of, preference_facts, preference_questions, preferred
from jobs.scores.dataset import BenchmarkRow, read_benchmark
from jobs.scores.predictions import write_results
from tests.jobs.fake_endpoint import FakeEndpoint, Reply, asked_text, serving
from tests.jobs.test_dataset import row, write

ROW = BenchmarkRow(
    "Fila red", "Shoes", {"Brand": ("Fila",), "Color": ("red",), "Size": ("n/a",), "Fit": ("n/a",), "Sex": ("men",)}
)
SAID = {"Brand": "Fila", "Color": "blue", "Size": "9", "Fit": None, "Sex": "n/a", "Extra": "x"}


class TestVerdicts:
    def test_by_the_gold(self) -> None:
        assert gold_verdicts(ROW, SAID) == {
            "Brand": Verdict.CORRECT,
            "Color": Verdict.WRONG,
            "Size": Verdict.WRONG,
            "Fit": Verdict.ABSENT,
            "Sex": Verdict.MISSING,
        }

    def test_the_question_shows_no_gold_and_an_order_of_the_seed(self) -> None:
        user = judge_question(ROW, SAID, "0/0").user
        assert "men" not in user and "Fila red" in user and '"Sex": null' in user
        orders = {tuple(re.findall(r'"(\w+)": (?:"|null)', judge_question(ROW, SAID, f"0/{n}").user)) for n in range(9)}
        assert len(orders) > 3 and {frozenset(order) for order in orders} == {frozenset(SAID)}
        assert judge_question(ROW, SAID, "0/0").user == user

    @pytest.mark.parametrize(
        ("answer", "message"),
        [
            ({"Brand": "correct"}, "leaves out 'Color'"),
            ({"Brand": "correct", "Color": "absent"}, "'Color' is 'absent', which must be one of correct, wrong"),
            ({"Brand": ["correct"], "Color": "wrong"}, "'Brand' is"),
        ],
    )
    def test_a_verdict_that_cannot_be(self, answer: dict[str, Any], message: str) -> None:
        with pytest.raises(AnswerError, match=message):
            verdicts_of({"Brand": "Fila", "Color": "red"}, json.dumps(answer))

    def test_kappa_of_a_known_table(self) -> None:
        # Cohen's example: 20 and 15 on the diagonal, 5 and 10 beside it: agreement 0.7, by chance 0.5, kappa 0.4.
        c, w = OF_VALUE
        found = Agreement(Counter({(c, c): 20, (c, w): 5, (w, c): 10, (w, w): 15})).as_dict(OF_VALUE)
        assert (found["slots"], found["agreement"], found["kappa"]) == (50, 70.0, 0.4)
        assert Agreement().as_dict(OF_NONE)["agreement"] is None
        assert Agreement(Counter({(c, c): 3})).as_dict(OF_VALUE)["kappa"] is None

    def test_a_slot_without_gold_counts_as_judged_and_not_as_agreed(self) -> None:
        judged = {"Brand": Verdict.CORRECT, "Extra": Verdict.WRONG, "Fit": Verdict.MISSING}
        facts = judged_facts([judged], [gold_verdicts(ROW, SAID)])
        assert facts["verdicts"] == {"correct": 1, "wrong": 1, "missing": 1, "absent": 0} and facts["precision"] == 50
        agreement = facts["agreement_with_gold"]
        assert (agreement["of_values"]["slots"], agreement["of_values"]["agreement"]) == (1, 100)
        assert (agreement["of_none"]["slots"], agreement["of_none"]["agreement"]) == (1, 0)


class TestPreferences:
    def test_both_orders_of_what_differs(self) -> None:
        pair = preference_questions(ROW, {"Brand": "Fila", "Color": "red"}, {"Brand": "Fila", "Color": "blue"})
        assert pair is not None
        places = [(question.user.index("red", 20), question.user.index("blue")) for question in pair]
        assert "Brand" not in pair[0].user
        first, second = (question.user.split("First:")[1] for question in pair)
        assert first.index("red") < first.index("blue") and second.index("blue") < second.index("red") and places
        assert preference_questions(ROW, {"Brand": None}, {"Brand": "n/a"}) is None

    def test_what_changes_with_the_order_is_no_preference(self) -> None:
        first, second, same = Choice
        assert preferred(first, second) is Preference.A and preferred(second, first) is Preference.B
        assert preferred(same, same) is Preference.TIE
        assert {preferred(first, first), preferred(second, second), preferred(first, same)} == {Preference.UNSTEADY}
        facts = preference_facts([(first, second), (first, first), (same, same)], ("x", "y"), 4)
        assert facts["preferred"] == {"a": 1, "b": 0, "tie": 1, "unsteady": 1} and facts["first_share"] == 75
        with pytest.raises(AnswerError, match="must be one of first, second, same"):
            choice_of('{"better": "third"}')


ROWS = 12


def judging(body: dict[str, Any]) -> Reply:
    """A judge that takes what begins with "b" for right, and whatever stands first for better."""
    shape = body["response_format"]["json_schema"]["schema"]["properties"]
    if "better" in shape:
        return Reply('{"better": "first"}')
    said = json.loads(asked_text(body).split("Extracted:\n")[1])
    verdict = {name: "absent" if v is None else "correct" if v[0] == "b" else "wrong" for name, v in said.items()}
    return Reply(json.dumps(verdict))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEndpoint]:
    monkeypatch.setattr(module, "FIRST_WAIT", 0.01)
    with serving(judging) as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """x.jsonl and two runs over it: a has each brand right, b every second one wrong; both find no size."""
    data = write(tmp_path / "x.jsonl", *(row(f"text {n}", "Tea", Brand=f"b{n}", Size=f"s{n}") for n in range(ROWS)))
    benchmark = read_benchmark(data)
    for name, wrong_every in (("a", ROWS + 1), ("b", 2)):
        predictions = [{"Brand": "z" if n % wrong_every == 1 else f"b{n}", "Size": None} for n in range(ROWS)]
        facts = {"rows": ROWS, "rows_digest": benchmark.digest(ROWS), "run": {"dataset": "x.jsonl"}}
        write_results(tmp_path / name, predictions, facts)
    # Of a, row 1 is wrong too: n % 13 == 1.
    return tmp_path


@pytest.fixture
def judge(folder: Path, fake: FakeEndpoint) -> Callable[..., Result]:
    def run(*words: str) -> Result:
        runs = [str(folder / word) if word in ("a", "b") else word for word in words]
        fixed = ["--dataset", str(folder / "x.jsonl"), "--endpoint", fake.url, "--model", "big"]
        return CliRunner().invoke(app, ["judge", *runs, *fixed, "--output", str(folder / "out")])

    return run


class TestCommand:
    def test_two_runs_with_preferences(self, judge: Callable[..., Result], folder: Path, fake: FakeEndpoint) -> None:
        done = judge("a", "b", "--pairwise", "--input-price", "1", "--output-price", "1")
        assert done.exit_code == 0, done.output
        facts = json.loads((folder / "out" / "judgement.json").read_text())
        a, b = facts["runs"]
        assert a["verdicts"] == {"correct": 11, "wrong": 1, "missing": 0, "absent": 12}
        assert b["verdicts"] == {"correct": 6, "wrong": 6, "missing": 0, "absent": 12} and b["precision"] == 50
        assert b["agreement_with_gold"]["of_values"]["kappa"] == 1, "the fake judge is right about brands"
        assert b["agreement_with_gold"]["of_none"]["agreement"] == 0, "and wrong about sizes"
        assert facts["pairwise"] == {
            "a": "a",
            "b": "b",
            "rows_equal": 7,
            "rows_judged": 5,
            "preferred": {"a": 0, "b": 0, "tie": 0, "unsteady": 5},
            "first_share": 100.0,
            "rows_unanswered": 0,
        }
        # 12 of a, the 5 of b that differ, and 5 pairs in both orders: equal questions are asked once
        assert len(fake.bodies) == 12 + 5 + 10 and facts["spent"]["dollars"] == pytest.approx(27 * 110 / 1e6)
        lines = [json.loads(line) for line in (folder / "out" / "verdicts.jsonl").read_text().splitlines()]
        assert len(lines) == 2 * ROWS + 5
        assert lines[1]["values"]["Brand"] == {"value": "z", "judge": "wrong", "gold": "wrong"}
        assert "| b, correct or wrong | 12 | 100.00 | 1.000 |" in (folder / "out" / "judgement.md").read_text()
        fake.bodies = []
        assert judge("a", "b", "--pairwise").exit_code == 0 and not fake.bodies

    def test_the_order_of_questions_is_the_seeds(self, judge: Callable[..., Result], fake: FakeEndpoint) -> None:
        assert judge("a", "--concurrency", "1", "--limit", "8").exit_code == 0
        numbers = [int(asked_text(body).split("text ")[1].split()[0]) for body in fake.bodies]
        assert sorted(numbers) == list(range(8)) != numbers

    def test_a_judgement_without_an_answer_is_counted_with_its_reason(
        self, judge: Callable[..., Result], folder: Path, fake: FakeEndpoint
    ) -> None:
        fake.answer = lambda body: Reply("maybe") if "text 3\n" in asked_text(body) else judging(body)
        done = judge("a")
        assert done.exit_code == 3 and "1 of 12 judgements have no answer" in done.stderr
        lines = [json.loads(line) for line in (folder / "out" / "verdicts.jsonl").read_text().splitlines()]
        assert "no JSON" in lines[3]["reason"] and lines[3]["values"]["Brand"]["judge"] is None
        facts = json.loads((folder / "out" / "judgement.json").read_text())
        assert (facts["runs"][0]["rows_judged"], facts["runs"][0]["rows_unanswered"]) == (11, 1)

    def test_a_judge_that_is_gone_is_to_be_continued(self, judge: Callable[..., Result], fake: FakeEndpoint) -> None:
        fake.answer = lambda body: Reply(status=500)
        done = judge("a", "--retries", "0", "--max-failures", "3", "--concurrency", "1")
        assert done.exit_code == 4 and "the same command goes on" in done.stderr and len(fake.bodies) == 3

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["a", "--pairwise"], "--pairwise compares two runs"),
            (["a", "a"], "given twice"),
            (["a", "nosuch"], "nosuch"),
        ],
    )
    def test_wrong_options_ask_nothing(
        self, judge: Callable[..., Result], fake: FakeEndpoint, words: list[str], message: str
    ) -> None:
        done = judge(*words)
        assert done.exit_code == 2 and message in done.stderr and not fake.bodies


def test_runs_that_were_asked_for_other_attributes_are_held_together_on_all_of_them() -> None:
    row = BenchmarkRow("Acme boot, slim", "Shoes", {"Brand": ("Acme",)})
    first, second = preference_questions(row, {"Brand": "Acme"}, {"Brand": "Acme", "Fit": "slim", "Size": None}) or ()
    assert '"Fit": null' in first.user and '"Fit": "slim"' in first.user and "Size" not in first.user
    assert first.user.index('"Fit": null') < first.user.index('"Fit": "slim"') and second.user != first.user
