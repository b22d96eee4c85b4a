"""`hpd judge`: what a model behind an endpoint thinks of the predictions of `hpd evaluate`, and how far to trust it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from jobs.console import Exit, command, output, run_alone, say
from jobs.options import AsJson, Dataset, Folder, Limit
from jobs.remote.asking import Answers, Limits, Question, ask_all
from jobs.remote.costs import cost, price_of, spoken
from jobs.remote.endpoint import Endpoint
from jobs.remote.endpoint_options import (
    AnswerFormat,
    Attempts,
    Concurrency,
    EndpointUrl,
    HostedModel,
    InputPrice,
    KeyVariable,
    MaxFailures,
    OutputPrice,
    Request,
    Retries,
    Timeout,
    endpoint_of,
)
from jobs.remote.journal import Journal
from jobs.remote.judgement import Verdict, gold_verdicts, judge_question, judged_facts, verdicts_of
from jobs.remote.preferences import choice_of, preference_facts, preference_questions, preferred
from jobs.scores.dataset import BenchmarkRow, read_benchmark
from jobs.scores.lines import write_lines
from jobs.scores.runs import Run, check_belongs, check_same_rows, read_runs
from pipeline.job import JobError

#: Share of the questions that may stay without an answer before the exit code says so.
MAX_UNANSWERED = 0.05

Runs = Annotated[list[Path], typer.Argument(help="Output folders of `hpd evaluate`, one or two.")]


@command
def judge(
    runs: Runs,
    dataset: Dataset,
    endpoint: EndpointUrl,
    model: HostedModel,
    output_folder: Folder,
    pairwise: Annotated[bool, typer.Option("--pairwise", help="Also which of two runs is better, row by row.")] = False,
    limit: Limit = None,
    seed: Annotated[int, typer.Option(help="Of the order of questions and of attributes in them.")] = 0,
    key_variable: KeyVariable = None,
    concurrency: Concurrency = 8,
    timeout: Timeout = 120.0,
    retries: Retries = 5,
    attempts: Attempts = 2,
    max_failures: MaxFailures = 20,
    answer_format: AnswerFormat = "schema",
    request: Request = None,
    input_price: InputPrice = None,
    output_price: OutputPrice = None,
    json_: AsJson = False,
) -> None:
    """Let a model judge each value: correct, wrong, missing, absent; and say how far it agrees with the gold.

    Writes verdicts.jsonl, judgement.json, judgement.md and answers.jsonl, from which the same command goes on. Exit
    codes: 0 complete, 2 input or an endpoint that refuses, 3 too many questions unanswered, 4 stopped before the end.
    """
    if len(runs) > 2 or (pairwise and len(runs) != 2):
        raise JobError("--pairwise compares two runs" if pairwise else "give one run or two")
    found = read_runs(runs)
    check_same_rows(found)
    benchmark = read_benchmark(dataset)
    for run in found:
        check_belongs(run, benchmark, dataset.name)
    door = endpoint_of(endpoint, model, key_variable, timeout, retries, answer_format, request)
    price = price_of(model, input_price, output_price)
    rows = benchmark.rows[: min(len(found[0].predictions), limit or len(benchmark.rows))]
    with output(json_) as out, Journal(output_folder / "answers.jsonl") as journal:
        sheet = Sheet(door, rows, found, seed, pairwise)
        answers = ask_all(door, sheet.questions(), journal, Limits(concurrency, attempts, max_failures), say)
        lines = list(sheet.lines(answers))
        unanswered = sum(1 for line in lines if line["reason"])
        facts = {
            "dataset": dataset.name,
            "rows": len(rows),
            "judge": {"endpoint": door.url, "model": model, "request": dict(door.request), "seed": seed},
            "runs": [sheet.run_facts(run, answers) for run in found],
            "pairwise": sheet.pair_facts(answers) if pairwise else None,
            "unanswered": unanswered,
            "stopped": answers.stopped,
            "spent": cost(answers.spent, price),
            "spent_in_all_runs": cost(journal.spent, price),
        }
        write_lines(output_folder / "verdicts.jsonl", lines)
        text = json.dumps(facts, indent=2, ensure_ascii=False) + "\n"
        (output_folder / "judgement.json").write_text(text, encoding="utf-8")
        (output_folder / "judgement.md").write_text(markdown(facts), encoding="utf-8")
        out.console.print(markdown(facts), markup=False, highlight=False, soft_wrap=True)
        out.console.print(f"this run: {spoken(answers.spent, price)}", highlight=False)
        out.console.print(f"written to {output_folder}", highlight=False)
        out.finish(facts | {"output": str(output_folder)})
    if answers.stopped:
        say(f"stopped: {answers.stopped}; the same command goes on")
        raise typer.Exit(Exit.INCOMPLETE)
    if unanswered > MAX_UNANSWERED * len(lines):
        say(f"{unanswered} of {len(lines)} judgements have no answer, more than {MAX_UNANSWERED:.0%}")
        raise typer.Exit(Exit.TOO_MANY_ERRORS)


@dataclass(frozen=True, slots=True)
class Sheet:
    """All that is asked about some rows of one or two runs."""

    endpoint: Endpoint
    rows: Sequence[BenchmarkRow]
    runs: Sequence[Run]
    seed: int
    pairwise: bool

    def questions(self) -> list[Question]:
        """In an order of the seed: files are sorted by category, and a judging that stops early is to be of all."""
        asked = [self.question(run, number) for run in self.runs for number in range(len(self.rows))]
        if self.pairwise:
            pairs = (self.pair(number) for number in range(len(self.rows)))
            asked += [question for pair in pairs if pair for question in pair]
        random.Random(self.seed).shuffle(asked)
        return asked

    def question(self, run: Run, number: int) -> Question:
        # The same order for both runs: equal predictions are one question, and what differs is not the order.
        return judge_question(self.rows[number], run.predictions[number], f"{self.seed}/{number}")

    def pair(self, number: int) -> tuple[Question, Question] | None:
        a, b = (run.predictions[number] for run in self.runs)
        return preference_questions(self.rows[number], a, b)

    def verdicts(self, run: Run, number: int, answers: Answers) -> dict[str, Verdict] | None:
        text = answers.texts.get(self.question(run, number).key(self.endpoint))
        return None if text is None else verdicts_of(run.predictions[number], text)

    def lines(self, answers: Answers) -> Iterator[dict[str, Any]]:
        """A line per run and row, and per row and pair. reason: why a line has no verdict, "" where it has."""
        for run in self.runs:
            for number, row in enumerate(self.rows):
                said, judged = run.predictions[number], self.verdicts(run, number, answers)
                gold = gold_verdicts(row, said)
                values = {
                    name: {"value": value, "judge": judged and judged[name], "gold": gold.get(name)}
                    for name, value in said.items()
                }
                reason = self._reason([self.question(run, number)], answers)
                yield {"run": run.name, "row": number + 1, "category": row.category, "reason": reason, "values": values}
        for number, pair in enumerate(map(self.pair, range(len(self.rows))) if self.pairwise else ()):
            if pair:
                reason = self._reason(pair, answers)
                texts = [answers.texts.get(question.key(self.endpoint)) for question in pair]
                choices = [None if text is None else choice_of(text) for text in texts]
                kind = None if reason else preferred(*(choice_of(text) for text in texts if text is not None))
                yield {"pair": [run.name for run in self.runs], "row": number + 1, "reason": reason} | {
                    "a_first": choices[0],
                    "b_first": choices[1],
                    "preferred": kind,
                }

    def run_facts(self, run: Run, answers: Answers) -> dict[str, Any]:
        judged = [self.verdicts(run, number, answers) for number in range(len(self.rows))]
        gold = [gold_verdicts(row, said) for row, said in zip(self.rows, run.predictions, strict=False)]
        kept = [(mine, known) for mine, known in zip(judged, gold, strict=True) if mine is not None]
        rows = {"name": run.name, "rows_judged": len(kept), "rows_unanswered": len(judged) - len(kept)}
        return rows | judged_facts([mine for mine, _ in kept], [known for _, known in kept])

    def pair_facts(self, answers: Answers) -> dict[str, Any]:
        pairs = [self.pair(number) for number in range(len(self.rows))]
        asked = [pair for pair in pairs if pair]
        texts = [[answers.texts.get(question.key(self.endpoint)) for question in pair] for pair in asked]
        choices = [(choice_of(a), choice_of(b)) for a, b in texts if a is not None and b is not None]
        facts = preference_facts(choices, (self.runs[0].name, self.runs[1].name), len(pairs) - len(asked))
        return facts | {"rows_unanswered": len(asked) - len(choices)}

    def _reason(self, questions: Sequence[Question], answers: Answers) -> str:
        for question in questions:
            key = question.key(self.endpoint)
            if key not in answers.texts:
                return answers.failures.get(key, f"not asked: {answers.stopped}")
        return ""


def markdown(facts: dict[str, Any]) -> str:
    """The judgement as Markdown tables."""
    heading = f"# {facts['judge']['model']} on {facts['rows']} rows of {facts['dataset']}"
    kinds = [verdict.value for verdict in Verdict]
    lines = [heading, "", f"| run | rows judged | {' | '.join(kinds)} | precision |", f"|---|{'---:|' * 6}"]
    for run in facts["runs"]:
        counts = " | ".join(str(run["verdicts"][kind]) for kind in kinds)
        lines.append(f"| {run['name']} | {run['rows_judged']} | {counts} | {_figure(run['precision'])} |")
    lines += ["", "| agreement with the gold | slots | percent | kappa |", "|---|---:|---:|---:|"]
    for run in facts["runs"]:
        for kind, name in (("of_values", "correct or wrong"), ("of_none", "missing or absent")):
            found = run["agreement_with_gold"][kind]
            figures = f"{_figure(found['agreement'])} | {_figure(found['kappa'], 3)}"
            lines.append(f"| {run['name']}, {name} | {found['slots']} | {figures} |")
    if facts["pairwise"]:
        pair = facts["pairwise"]
        preferred_ = pair["preferred"]
        lines += [
            "",
            f"Pairwise, both orders asked: {pair['a']} better in {preferred_['a']} rows, {pair['b']} in "
            f"{preferred_['b']}, as good in {preferred_['tie']}, unsteady in {preferred_['unsteady']}; equal in "
            f"{pair['rows_equal']}, unanswered {pair['rows_unanswered']}. The first one shown was chosen in "
            f"{_figure(pair['first_share'])} % of the choices.",
        ]
    return "\n".join([*lines, ""])


def _figure(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    run_alone(judge)
