"""`hpd silver`: labels of a catalog from fields of its own, as a benchmark file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from jobs.console import command, output, run_alone
from jobs.labels.command import BenchmarkFile, Sample, SampleSeed, check_choice, exit_of_too_many
from jobs.labels.fields import FieldLabels
from jobs.labels.run import LabelRun, shown
from jobs.options import AsJson, ConfigFile, Inputs, Limit, Overrides
from pipeline.catalog import read_rows
from pipeline.compose import catalog_reader, compose
from pipeline.config import load_config
from pipeline.job import JobError

#: Why a row that is as it should be has no label.
_UNSAID = ("no_field", "nothing_usable")


@command
def silver(
    config: ConfigFile,
    fields: Annotated[Path, typer.Option("--fields", help="YAML: per schema, each attribute's template of columns.")],
    output_file: BenchmarkFile,
    input: Inputs = None,
    limit: Limit = None,
    sample: Sample = None,
    seed: SampleSeed = 0,
    set_: Overrides = None,
    json_: AsJson = False,
) -> None:
    """Label a catalog by fields that sellers filled in; `hpd finetune` and `hpd evaluate` take what it writes.

    A field says nothing of a product that leaves it empty: only attributes with a value are labelled, and only where
    that value stands in the text. Beside OUTPUT.jsonl it writes OUTPUT.rejected.jsonl (rows without labels, and why)
    and OUTPUT.summary.json. Exit codes: 0 complete, 2 configuration or input, 3 more rows in error than
    limits.max_error_rate; a row whose fields are empty, or say what its text does not, is in no error.
    """
    check_choice(limit, sample, output_file)
    settings = load_config(config, set_ or ())
    job = compose(settings, config, inputs=input or (), output=str(output_file), limit=limit)
    labels = FieldLabels.load(fields, catalog_reader(settings, config))
    with output(json_) as out:
        run = LabelRun()
        for rows in read_rows(job, labels.columns(), labels.check, sample, seed):
            labels.label(rows, run)
        if not run.rows:
            raise JobError(f"{', '.join(job.inputs)}: no row to label")
        facts: dict[str, Any] = {
            "run": {
                "config": config.name, "fields": fields.name, "inputs": list(job.inputs),
                "limit": limit, "sample": sample, "seed": seed,
            },
            **run.facts(),
        }  # fmt: skip
        run.write(output_file, facts)
        for line in shown(facts):
            out.console.print(line, highlight=False, markup=False, soft_wrap=True)
        out.console.print(f"written to {output_file}", highlight=False)
        out.finish(facts | {"output": str(output_file)})
    failed = sum(count for kind, count in facts["rejected"].items() if kind not in _UNSAID)
    exit_of_too_many(settings.limits, failed, run.rows)


if __name__ == "__main__":
    run_alone(silver)
