"""`hpd calibrate`: what `hpd evaluate` said of validation rows -> calibration.json, by which confidence can be trusted.

A command of its own, since evaluating takes minutes and a model, and fitting a second and neither: its options can be
tried on one run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from hpd_core import recipe
from hpd_core.confidence import Calibration, Score, identity
from hpd_core.reading import ValueStatus
from jobs.console import command, output, run_alone, say
from jobs.options import AsJson, Dataset, short_name
from jobs.scores.calibrating import fit_calibration
from jobs.scores.confidences import Told, read_confidences
from jobs.scores.dataset import Benchmark, read_benchmark
from jobs.scores.judged import judged
from jobs.scores.runs import Run, check_belongs, check_scores, read_runs
from jobs.scores.scoring import score
from pipeline.job import JobError

#: Values below which a calibration is more luck than measurement: it is made all the same, and the user told.
FEW = 200


@command
def calibrate(
    run_folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="Output folder of `hpd evaluate` over validation rows.")
    ],
    dataset: Dataset,
    output_folder: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="Folder for calibration.json: that of the adapter, where jobs look for it."
        ),
    ],
    strict: Annotated[
        bool,
        typer.Option(
            "--strict/--named",
            help="Whether a value for an attribute that the gold does not name is wrong, or is left out as F1 does.",
        ),
    ] = True,
    of: Annotated[
        Score | None, typer.Option("--score", help="What is calibrated; what predicts better where it is not given.")
    ] = None,
    shrinkage: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Values at which an attribute's own threshold counts half; 'inf' for one common threshold. By "
            "cross-validation where it is not given.",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a calibration.json that is there.")] = False,
    json_: AsJson = False,
) -> None:
    """Fit the confidence of a run to how often it was right; writes calibration.json.

    Use rows that the model was not trained on and that will not test it.
    """
    if (output_folder / recipe.CALIBRATION).exists() and not overwrite:
        raise JobError(f"{output_folder / recipe.CALIBRATION} exists: --overwrite replaces it, or take another folder")
    [run] = read_runs([run_folder])
    benchmark = read_benchmark(dataset)
    check_belongs(run, benchmark, dataset.name)
    confidences = read_confidences(run.folder)
    check_run(run, benchmark, confidences)
    check_target(output_folder, run, short_name(dataset))
    rows = benchmark.rows[: len(run.predictions)]
    fit = fit_calibration(
        judged(rows, run.predictions, confidences), rows, strict=strict, score=of, shrinkage=shrinkage
    )
    if fit.facts["values"] < FEW:
        say(f"warning: {fit.facts['values']} values are few to calibrate on")
    facts = {
        "dataset": short_name(dataset),
        "rows": len(rows),
        "rows_digest": benchmark.digest(len(rows)),
        "strict": strict,
        **fit.facts,
    }
    calibration = Calibration(
        fit.score,
        fit.values,
        fit.absences,
        fit.thresholds.common,
        fit.thresholds.by_attribute,
        identity(run.facts["run"]),
        facts,
    )
    with output(json_) as out:
        output_folder.mkdir(parents=True, exist_ok=True)
        path = calibration.write(output_folder)
        for line in summary(calibration):
            out.console.print(line, markup=False, highlight=False, soft_wrap=True)
        out.console.print(f"written to {path}", highlight=False)
        out.finish(facts | {"score": calibration.score, "threshold": calibration.threshold, "output": str(path)})


def check_run(run: Run, benchmark: Benchmark, confidences: Sequence[dict[str, Told]]) -> None:
    """Raises JobError where a run's files do not belong together or cannot tell how sure its decoder was."""
    check_scores(run, score([row.gold for row in benchmark.rows[: len(run.predictions)]], run.predictions).as_dict())
    decoder = run.facts["run"].get("decoder")
    if decoder != "hpd":
        raise JobError(f"{run.folder}: made by the decoder {decoder}; calibrations are of hpd")
    if len(confidences) != len(run.predictions):
        raise JobError(f"{run.folder}: {len(confidences)} rows of confidences for {len(run.predictions)} predictions")
    for number, (said, sure) in enumerate(zip(run.predictions, confidences, strict=True), 1):
        if any(told.status is ValueStatus.UNSURE for told in sure.values()):
            raise JobError(f"{run.folder}: row {number} lacks values that a threshold took away: evaluate without one")
        odd = [name for name, value in said.items() if value is not None and name not in sure]
        if odd:
            raise JobError(f"{run.folder}: row {number}: no confidence for the value of {odd[0]!r}")


def check_target(folder: Path, run: Run, dataset: str) -> None:
    """Raises JobError where the calibration would lie beside another adapter than the run's, or be fitted to rows that
    the adapter was trained on."""
    if recipe.adapter_spec(str(folder)) is None:
        return
    there, made_for = recipe.content_hash(str(folder)), run.facts["run"]["model"]["adapter"]
    if there != made_for:
        raise JobError(f"{folder}: its adapter is {there}, {run.folder} was made with {made_for or 'none'}")
    training = recipe.Recipe.read(folder).training
    if dataset in training.get("datasets", ()):
        raise JobError(f"{dataset}: {folder} was trained on it, and is surer of what it has seen: take validation rows")


def summary(calibration: Calibration) -> list[str]:
    """A Markdown table of how confidence fits before and after, and what the thresholds do, for people."""
    facts: dict[str, Any] = dict(calibration.measured)
    judged_as = "strictly" if facts["strict"] else "where the gold names the attribute"
    lines = [
        f"{facts['values']} values of {facts['rows']} rows of {facts['dataset']}, judged {judged_as}: "
        f"{100 * facts['right'] / facts['values']:.1f} % right",
        "",
        "| confidence of values | ECE | by chance | Brier | log loss |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, fit in facts["fits"].items():
        lines.append(
            f"| {name} | {100 * fit['ece']:.1f} | {100 * fit['ece_by_chance']:.1f} | {fit['brier']:.4f} "
            f"| {fit['log_loss']:.4f} |"
        )
    f1 = facts["f1"]
    own = len(calibration.thresholds)
    lines += [
        "",
        f"calibrated on the {calibration.score} of log-probabilities; threshold {calibration.threshold:.3f}"
        + (f", and one of their own for {own} attributes" if own else ", one for all attributes"),
        f"F1 of all values {100 * f1['all']:.2f}, with thresholds {100 * f1['thresholds']:.2f} (cross-validated)",
    ]
    return lines


if __name__ == "__main__":
    run_alone(calibrate)
