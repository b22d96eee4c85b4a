"""The command `hpd`. Each command is in a module of its own, which `python -m jobs.<name>` starts as well."""

from __future__ import annotations

import typer

from jobs.benchmark import benchmark
from jobs.calibrate import calibrate
from jobs.compact import compact
from jobs.compare import compare
from jobs.evaluate import evaluate
from jobs.extract import extract
from jobs.finetune import finetune
from jobs.judge import judge
from jobs.label import label
from jobs.plan import plan
from jobs.publish import publish
from jobs.report import report
from jobs.review import app as review
from jobs.silver import silver
from jobs.submit import submit
from jobs.validate import validate
from jobs.verify import verify

app = typer.Typer(
    name="hpd",
    help="Hyper-Parallel Decoding of product attributes over Parquet catalogs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(extract)
app.command()(submit)
app.command()(validate)
app.command()(plan)
app.command()(report)
app.command()(verify)
app.command()(compact)
app.command()(publish)
app.command()(evaluate)
app.command()(calibrate)
app.command()(compare)
app.add_typer(review)
app.command()(benchmark)
app.command()(finetune)
app.command()(label)
app.command()(silver)
app.command()(judge)

if __name__ == "__main__":
    app()
