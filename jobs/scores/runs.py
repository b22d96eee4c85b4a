"""What `hpd evaluate` left in a folder, read again, and whether it belongs to a benchmark file and to other runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.scores.dataset import Benchmark
from pipeline.job import JobError


@dataclass(frozen=True, slots=True)
class Run:
    """One folder. name: what tells it from the others. facts: scores.json. predictions: one per row, in order."""

    name: str
    folder: Path
    facts: dict[str, Any]
    predictions: tuple[dict[str, str | None], ...]

    @property
    def dataset(self) -> str:
        """Name of the benchmark file, without its folder."""
        return str(self.facts["run"]["dataset"])

    @property
    def rows_digest(self) -> str | None:
        """Of Benchmark.digest; None where the run was written before there was one."""
        return self.facts.get("rows_digest")

    @property
    def declared(self) -> dict[str, set[str]]:
        """{category: attributes that `--schemas` asked its rows for}."""
        found = self.facts["run"].get("declared") or {}
        return {category: {a["name"] for a in schema["attributes"]} for category, schema in found.items()}


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """The runs of some folders. Raises JobError for a folder that is none, and for one given twice."""
    resolved = [folder.resolve() for folder in folders]
    for place, folder in enumerate(resolved):
        if folder in resolved[:place]:
            raise JobError(f"{folders[place]}: given twice")
    names = [folder.name for folder in resolved]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    return [_read_run(name, folder) for name, folder in zip(names, folders, strict=True)]


def check_same_rows(runs: Sequence[Run]) -> None:
    """Raises JobError naming two runs that were not made over the same rows."""
    first = runs[0]
    for run in runs[1:]:
        for what, mine, theirs in (
            ("dataset", first.dataset, run.dataset),
            ("rows", len(first.predictions), len(run.predictions)),
            ("digest of the rows", first.rows_digest, run.rows_digest),
        ):
            if mine != theirs and None not in (mine, theirs):
                raise JobError(f"{first.folder} and {run.folder} are over different rows: {what} {mine} and {theirs}")
        if first.declared != run.declared:
            continue  # the same rows, asked for other attributes
        # Where one of them has no digest, the attributes asked of each row still tell benchmarks apart.
        for number, (said, told) in enumerate(zip(first.predictions, run.predictions, strict=True), 1):
            if said.keys() != told.keys():
                odd = ", ".join(sorted(said.keys() ^ told.keys()))
                both = f"{first.folder} and {run.folder}"
                raise JobError(f"{both} are over different rows: row {number} answers other attributes: {odd}")


def check_belongs(run: Run, benchmark: Benchmark, dataset: str) -> None:
    """Raises JobError where the run was not made over the first rows of `benchmark`, a file of the name `dataset`."""
    if run.dataset != dataset:
        raise JobError(f"{run.folder} is over {run.dataset}, not over {dataset}")
    count = len(run.predictions)
    if count > len(benchmark.rows):
        raise JobError(f"{run.folder} has {count} rows, {dataset} {len(benchmark.rows)}")
    if run.rows_digest not in (None, benchmark.digest(count)):
        raise JobError(f"{run.folder} is over other rows than {dataset} has now: the file or its gold has changed")
    declared = run.declared
    # A run of before the digest, and a predictions.jsonl put beside the scores of another run.
    for number, (row, said) in enumerate(zip(benchmark.rows, run.predictions, strict=False), 1):
        wanted = declared.get(row.category) or {attribute.name for attribute in benchmark.schemas[row.category]}
        if said.keys() != wanted:
            odd = ", ".join(sorted(said.keys() ^ wanted))
            raise JobError(
                f"{run.folder}: row {number} does not answer what {dataset} asks of a {row.category!r}: {odd}"
            )


def check_scores(run: Run, scores: dict[str, Any]) -> None:
    """Raises JobError where scores.json says something else than `scores`, counted now from the predictions."""
    for key in ("counts", "extra_values"):
        if run.facts.get(key) != scores[key]:
            raise JobError(
                f"{run.folder}: scores.json has {key} {run.facts.get(key)}, its predictions give {scores[key]}: "
                "one of the two files, or the gold, has changed since"
            )


def _read_run(name: str, folder: Path) -> Run:
    facts = _object(_text(folder / "scores.json"), str(folder / "scores.json"))
    if not isinstance(facts.get("run"), dict) or "dataset" not in facts["run"]:
        raise JobError(f"{folder / 'scores.json'}: does not name a dataset; not written by `hpd evaluate`")
    path = folder / "predictions.jsonl"
    # Not splitlines(): values hold characters that it takes for line ends.
    lines = _text(path).removesuffix("\n").split("\n")
    predictions = tuple(_prediction(line, f"{path}: line {number}") for number, line in enumerate(lines, 1))
    if facts.get("rows") != len(predictions):
        raise JobError(f"{path}: {len(predictions)} lines, but scores.json counts {facts.get('rows')} rows")
    return Run(name, folder, facts, predictions)


def _prediction(line: str, where: str) -> dict[str, str | None]:
    said = _object(line, where)
    for attribute, value in said.items():
        if value is not None and not isinstance(value, str):
            raise JobError(f"{where}: the value of {attribute!r} is neither a text nor null")
    return said


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise JobError(f"{where}: no JSON ({error})") from error
    if not isinstance(data, dict):
        raise JobError(f"{where}: not a JSON object")
    return data
