"""Whether an actor stays as fast, and as small, however long it lives.

    python -m jobs.timing.steady speed --config JOB.yaml --input … --rows 500,4000
    python -m jobs.timing.steady memory --rows 200000

`speed` decodes so many different documents of a catalog and, in the same process, many more, in turns. `memory` sends
made-up rows through tokenisation, the decoder and the output's columns, in units, and reads the process's resident
memory after each; its model is random and tiny, with the tokenizer of the default model.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from hpd_core.settings import DecoderSpec, DecodeSettings, ModelSpec, Prompting
from jobs.benchmark import catalog
from jobs.console import command, say
from jobs.options import ConfigFile, Inputs, ModelName, Overrides, Threads
from jobs.timing.process import EngineFailed, Loop, Worker
from jobs.timing.scale_report import line_through
from pipeline.job import JobError
from pipeline.models import DEFAULT_MODEL

#: Documents of a pack, as a job has them.
PACK = 512
#: Share of the rows after which caches and allocators are taken to be full.
_WARM = 0.1


def speed_figures(passes: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
    """passes: (few rows, many rows) as `bare.Pass`, one pair a round. Speed of many over few: in documents, and in
    tokens, which other lengths among the further rows do not move."""

    def ratios(unit: str) -> dict[str, float]:
        rates = [tuple(getattr(p, unit) / p.seconds for p in pair) for pair in passes]
        rounds = [many / few for few, many in rates]
        whole = median(many for _, many in rates) / median(few for few, _ in rates)
        return {"median": whole, "low": min(rounds), "high": max(rounds)}

    return {
        "rows": [p.documents for p in passes[0]],
        "seconds": [[p.seconds for p in pair] for pair in passes],
        "docs_per_second": [median(pair[n].documents / pair[n].seconds for pair in passes) for n in (0, 1)],
        "many_over_few": {"documents": ratios("documents"), "tokens": ratios("tokens")},
    }


def memory_figures(samples: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """samples: (rows done, bytes resident) after each unit. Growth is that of a line through what comes after the first
    tenth of the rows."""
    rows = samples[-1][0]
    warm = [(done, size) for done, size in samples if done >= _WARM * rows]
    line = line_through(warm)
    return {
        "rows": rows,
        "mib_warm": round(warm[0][1] / 2**20, 1),
        "mib_end": round(warm[-1][1] / 2**20, 1),
        "mib_most": round(max(size for _, size in samples) / 2**20, 1),
        "mib_per_100_000_rows": None if line is None else round(line["slope"] * 1e5 / 2**20, 2),
        "samples": [(done, round(size / 2**20, 1)) for done, size in samples],
    }


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
    spec, shape = catalog(config, input or (), set_ or (), many, seed, keep_repeats=False)
    if len(shape.documents) < many:
        raise JobError(f"--rows {rows}: the catalog has {len(shape.documents)} different documents")
    documents = list(shape.documents)
    # Few are drawn over all of them: neighbours in a catalog are like each other.
    units = {"few": [documents[:: many // few][:few]], "many": [documents]}
    try:
        worker = Worker(Loop(spec, threads, PACK, units))
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
