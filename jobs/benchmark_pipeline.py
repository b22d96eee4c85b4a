"""What the pipeline costs beside its decoder: `python -m jobs.benchmark_pipeline --config JOB.yaml --input … -o OUT`.

`hpd extract` with one actor, and the bare decoder in a loop over the same units of the same catalog with the same
settings and threads, in turns, each in a process of its own.

Of a run of `hpd extract` three times are given. Decode phase: of the actor on its units, which is the decoder and what
an actor does around it (columns, metrics, the ledger). Stream: the decode phase and the actor's waiting between units,
from the beginning of the first to the end of the last. Start-up: all else of the command, from its first line to its
exit (imports, Ray, loading, the first read, the last commit, the closing of the output); paid once, whatever the rows.
"""

from __future__ import annotations

import json
import tempfile
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from hpd_core import sizing
from hpd_core.schema import Document
from jobs.console import command, run_alone, say
from jobs.options import ConfigFile, Folder, Inputs, Overrides
from jobs.timing.process import EngineFailed, Loop, Probe, Worker
from jobs.timing.through_ray import extracted, figures, markdown
from pipeline.catalog import read_catalog
from pipeline.compose import catalog_reader, compose
from pipeline.config import load_config
from pipeline.job import JobError, JobSpec
from pipeline.plan import make_plan
from pipeline.storage import Storage


def units_of(job: JobSpec, config: Any, origin: Path) -> list[list[Document]]:
    """The documents of each unit, as the run plans them; rows without one are left out."""
    plan = make_plan(job.inputs, Storage(job.input_storage), job.units, job.limit)
    rows = read_catalog(job, catalog_reader(config, origin))
    items = [[product.item for product in islice(rows, unit.rows)] for unit in plan.units]
    found = [[item for item in unit if isinstance(item, Document)] for unit in items]
    return [unit for unit in found if unit]


@command
def benchmark_pipeline(
    config: ConfigFile,
    output_folder: Folder,
    input: Inputs = None,
    set_: Overrides = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Only the first so many rows.")] = 512,
    repeat: Annotated[int, typer.Option("--repeat", "-r", min=1, help="Rounds; the median counts.")] = 3,
) -> None:
    """Time `hpd extract` with one actor against the bare decoder over the same rows; writes through-ray.json, .md."""
    overrides = [*(set_ or ()), "pool.min_size=1", "pool.max_size=1"]
    settings = load_config(config, overrides)
    job = compose(settings, config, inputs=input or (), output="unused", limit=limit)
    threads = job.pool.threads or max(1, int(job.pool.cpus))
    try:
        if job.decoder.settings.is_auto:
            sizes = _sizes(job, threads)
            overrides += [f"decode.{name}={value}" for name, value in sizes.items()]
            settings = load_config(config, overrides)
            job = compose(settings, config, inputs=input or (), output="unused", limit=limit)
        units = units_of(job, settings, config)
        if not units:
            raise JobError("none of the rows is a document")
        say("loading the decoder of the bare loop")
        loop = Worker(Loop(job.decoder, threads, job.pack_documents, {"all": units}))
        bare, runs = [], []
        try:
            words = ["--config", str(config), "--limit", str(limit)]
            words += [word for given in input or () for word in ("--input", given)]
            words += [word for given in overrides for word in ("--set", given)]
            with tempfile.TemporaryDirectory() as folder:
                for turn in range(repeat):
                    bare.append(loop.ask("all").seconds)
                    runs.append(extracted(words, Path(folder) / str(turn)))
                    say(f"round {turn + 1}/{repeat}: bare {bare[-1]:.1f} s, actor {runs[-1].stream:.1f} s")
        finally:
            loop.stop()
    except EngineFailed as error:
        raise JobError(f"the bare decoder: {error}") from error
    documents = sum(map(len, units))
    facts = figures(bare, runs, documents)
    facts = {"heading": f"{config.stem}, {documents} documents in {len(units)} units, {threads} threads", **facts}
    text = markdown(facts)
    output_folder.mkdir(parents=True, exist_ok=True)
    (output_folder / "through-ray.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    (output_folder / "through-ray.md").write_text(text, encoding="utf-8")
    typer.echo(text)


def _sizes(job: JobSpec, threads: int) -> dict[str, Any]:
    """The numbers of `auto` settings, measured once for both."""
    worker = Worker(Probe(job.decoder, threads))
    try:
        decided = sizing.decided(job.decoder.settings, worker.ask("measure"))
    finally:
        worker.stop()
    return {name: getattr(decided, name) for name in sizing.SIZES}


if __name__ == "__main__":
    run_alone(benchmark_pipeline)
