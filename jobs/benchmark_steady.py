"""Whether an actor stays as fast, and as small, however long it lives.

    python -m jobs.benchmark_steady speed --config JOB.yaml --input … --rows 500,4000
    python -m jobs.benchmark_steady memory --rows 200000

`speed` decodes so many different documents of a catalog and, in the same process, many more, in turns. `memory` sends
made-up rows through tokenisation, the decoder and the output's columns, in units, and reads the process's resident
memory after each; its model is random and tiny, with the tokenizer of the default model.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from hpd_core.model_spec import ModelSpec, Prompting
from hpd_core.settings import DecodeSettings
from hpd_core.spec import DecoderSpec
from jobs.console import command, say
from jobs.options import ConfigFile, Inputs, ModelName, Overrides, Threads
from jobs.timing.process import EngineFailed, Loop, Worker
from jobs.timing.shapes import catalog_shape
from jobs.timing.steady import memory_figures, speed_figures
from pipeline.catalog import read_catalog
from pipeline.compose import catalog_reader, compose
from pipeline.config import load_config
from pipeline.job import JobError
from pipeline.models import DEFAULT_MODEL

#: Rows read for each document that is drawn: some repeat, some have no text.
_READ = 4


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
@command
def speed(
    config: ConfigFile,
    input: Inputs = None,
    set_: Overrides = None,
    rows: Annotated[str, typer.Option(help="Few and many; documents that repeat no other are counted.")] = "500,4000",
    repeat: Annotated[int, typer.Option("--repeat", "-r", min=1, help="Rounds; the median counts.")] = 3,
    seed: Annotated[int, typer.Option(help="Draws the rows.")] = 0,
    threads: Threads = None,
) -> None:
    """Documents per second at many rows against few, in one process. One JSON object."""
    few, many = _two(rows)
    settings = load_config(config, set_ or ())
    job = compose(settings, config, inputs=input or (), output="unused")
    items = [product.item for product in read_catalog(job, catalog_reader(settings, config), _READ * many, seed)]
    documents = list(catalog_shape(items, config.stem, many, seed, keep_repeats=False).documents)
    if len(documents) < many:
        raise JobError(f"--rows {rows}: of {len(items)} rows drawn {len(documents)} are different documents")
    # Few are drawn over all of them: neighbours in a catalog are like each other.
    units = {"few": [documents[:: many // few][:few]], "many": [documents]}
    try:
        worker = Worker(Loop(job.decoder, threads or job.pool.threads or None, job.pack_documents, units))
        try:
            passes = []
            for turn in range(repeat):
                passes.append((worker.ask("few"), worker.ask("many")))
                say(f"round {turn + 1}/{repeat}: {passes[-1][0].seconds:.1f} s, {passes[-1][1].seconds:.1f} s")
        finally:
            worker.stop()
    except EngineFailed as error:
        raise JobError(f"the decoder: {error}") from error
    print(json.dumps(speed_figures(passes)))


@app.command()
@command
def memory(
    rows: Annotated[int, typer.Option(min=10, help="Rows in all.")] = 200_000,
    unit: Annotated[int, typer.Option(min=1, help="Rows of a unit.")] = 2_000,
    model: ModelName = DEFAULT_MODEL,
    threads: Threads = None,
) -> None:
    """Resident memory of an actor over many rows. One JSON object. `--model`: whose tokenizer the tiny model has."""
    from jobs.timing.resident import samples, write_tiny  # torch

    with tempfile.TemporaryDirectory() as folder:
        spec = DecoderSpec(
            ModelSpec(str(write_tiny(model, Path(folder) / "tiny")), prompting=Prompting.PLAIN, dtype="float32"),
            DecodeSettings(max_value_tokens=3),
        )
        found = []
        for sample in samples(spec, rows, unit, threads or 1):
            found.append(sample)
            if len(found) % 10 == 1:
                say(f"{sample[0]:,} rows: {sample[1] / 2**20:.0f} MiB")
    print(json.dumps(memory_figures(found)))


def _two(words: str) -> tuple[int, int]:
    try:
        few, many = (int(word) for word in words.split(","))
    except ValueError:
        raise JobError(f"--rows {words}: must be two numbers, few,many") from None
    if not 0 < few < many:
        raise JobError(f"--rows {words}: must be two numbers, few,many")
    return few, many


if __name__ == "__main__":
    app()
