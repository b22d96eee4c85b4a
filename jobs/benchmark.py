"""`hpd benchmark`: HPD and the baselines on the same documents, one process per engine, in turns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from hpd_core import recipe
from hpd_core.settings import did_you_mean
from hpd_core.spec import DecoderSpec
from jobs.console import Output, command, output, run_alone, say, say_notice
from jobs.options import (
    AsJson,
    Decoding,
    Folder,
    Inputs,
    LayoutName,
    ModelDtype,
    Overrides,
    QuantizationName,
    Threads,
    ValueTokens,
    VisibilityName,
    decoder_spec,
)
from jobs.scores.dataset import read_benchmark
from jobs.scores.pages import benchmark_page, write_page
from jobs.timing.engines import BATCHES, OPTIONAL, PEERS, REFERENCE, ablations, contenders, peer_engines
from jobs.timing.plot import LABELS, LINE, charts
from jobs.timing.series import PeerSettings, Series, run_series
from jobs.timing.shapes import Lengths, Shape, catalog_shape, dataset_shape
from jobs.timing.tables import markdown
from pipeline.catalog import read_catalog
from pipeline.compose import catalog_reader, compose
from pipeline.config import load_config
from pipeline.job import JobError
from pipeline.models import DEFAULT_MODEL
from pipeline.prices import machine_prices

#: Price of an hour where none is given: an assumption of conf/prices.yaml.
_MACHINE = "laptop-2-core"
#: Rows read of a catalog for each that is drawn: some have no text, some repeat.
_READ = 4


@command
def benchmark(
    output_folder: Folder,
    dataset: Annotated[Path | None, typer.Option("--dataset", "-d", help="Benchmark file (JSON lines).")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Or a job's YAML: its catalog, text, schemas, model.")
    ] = None,
    input: Inputs = None,
    set_: Overrides = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="So many rows, drawn by --seed.")] = 64,
    seed: Annotated[int, typer.Option(help="Draws the rows.")] = 0,
    keep_repeats: Annotated[
        bool, typer.Option("--keep-repeats", help="The first --limit rows as they come, repeated texts among them.")
    ] = False,
    repeat: Annotated[int, typer.Option("--repeat", "-r", min=1, help="Rounds; the median counts.")] = 3,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="gold (all write the gold answers; the default of a dataset) | recorded (all write what HPD answered "
            "before; the default of a catalog) | model (each writes the model's own)"
        ),
    ] = None,
    ablation: Annotated[
        bool, typer.Option("--ablations", help="HPD without one optimisation each, in place of the baselines.")
    ] = False,
    cold: Annotated[bool, typer.Option("--cold", help="Compute shared prefixes again in every timed run.")] = False,
    layout: LayoutName = None,
    visibility: VisibilityName = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Name of conf/models.yaml, directory, GGUF file or hub id.")
    ] = None,
    max_value_tokens: ValueTokens = None,
    decode: Decoding = None,
    quantization: QuantizationName = None,
    dtype: ModelDtype = None,
    threads: Threads = None,
    dollars_per_hour: Annotated[
        float | None, typer.Option(min=0, help=f"Price of the machine; {_MACHINE} of conf/prices.yaml otherwise.")
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            help='Leave an engine out, or a batch of it ("ar, batch 1"); may be repeated. Not hpd, not all of ar.'
        ),
    ] = None,
    peers: Annotated[
        str | None,
        typer.Option(help=f"Other projects' engines as well, each in an environment of its own: {','.join(PEERS)}."),
    ] = None,
    peers_folder: Annotated[
        Path, typer.Option(help="Holds their environments (.venv-<peer>), installed where they are not there: GBs.")
    ] = Path(),
    peers_precision: Annotated[str, typer.Option(help="float32 | own (the fastest that each offers)")] = "float32",
    json_: AsJson = False,
) -> None:
    """Time HPD against autoregressive baselines; writes benchmark.md, benchmark.json and benchmark.html."""
    how = Lengths.GOLD if dataset else Lengths.RECORDED
    if lengths is not None and lengths not in list(Lengths):
        raise JobError(f"--lengths {lengths}: must be one of {', '.join(Lengths)}")
    how = how if lengths is None else Lengths(lengths)
    others = _peers(peers, how, ablation, peers_precision)
    known = [*OPTIONAL, *BATCHES, *(engine.name for engine in peer_engines(others))]
    for name in skip or ():
        if name not in known:
            raise JobError(f"--skip {name!r}: must be one of {', '.join(known)}")
    if REFERENCE not in {engine.name for engine in contenders(1, skip or (), forced=True)}:
        raise JobError(f"--skip: no batch of {REFERENCE} is left, and ratios are taken against its best")
    if (dataset is None) == (config is None):
        raise JobError("give either --dataset (a benchmark file) or --config (a job with its catalog)")
    if dataset is not None:
        if input or set_:
            raise JobError("--input and --set belong to --config")
        data = read_benchmark(dataset)
        name = model or DEFAULT_MODEL
        spec = decoder_spec(
            name, layout, visibility, max_value_tokens, None, decode, quantization=quantization, dtype=dtype
        )
        shape = dataset_shape(data, dataset.name, limit, seed, keep_repeats=keep_repeats)
    else:
        if how is Lengths.GOLD:
            raise JobError("--lengths gold: a catalog has no gold answers; recorded or model")
        given = {
            "--model": model,
            "--layout": layout,
            "--visibility": visibility,
            "--max-value-tokens": max_value_tokens,
            "--decode": decode,
            "--quantization": quantization,
            "--dtype": dtype,
        }
        unused = [name for name, value in given.items() if value is not None]
        if unused:
            raise JobError(f"{', '.join(unused)}: with --config, set it there or with --set")
        assert config is not None
        spec, shape = catalog(config, input or (), set_ or (), limit, seed, keep_repeats)
    engines = ablations(duplicates=bool(shape.repeats)) if ablation else None
    if engines is None:
        engines = contenders(len(shape.documents), skip or (), forced=how is not Lengths.MODEL)
        engines += peer_engines(others, skip or ())
    price = machine_prices()[_MACHINE].dollars_per_hour if dollars_per_hour is None else dollars_per_hour
    say_notice(spec.model)
    notice = recipe.notice_of(spec.model)
    with output(json_) as out:
        settings = PeerSettings(peers_folder, peers_precision)
        plan = Series(spec, shape, how, tuple(engines), repeat, threads, cold, price, settings)
        facts = run_series(plan, say) | ({"notice": notice} if notice else {})
        finish(out, output_folder, facts, json_)


def _peers(words: str | None, lengths: Lengths, ablation: bool, precision: str) -> list[str]:
    """Names of --peers. Raises JobError for one that does not exist and for what cannot be asked of them."""
    names = [word.strip() for word in words.split(",")] if words is not None else []
    for name in names:
        if name not in PEERS:
            raise JobError(f"--peers {words}: {did_you_mean(name, PEERS, 'peers')}")
    if precision not in ("float32", "own"):
        raise JobError(f"--peers-precision {precision}: must be float32 or own")
    if names and ablation:
        raise JobError("--peers: --ablations compares HPD with itself")
    if names and lengths is Lengths.MODEL:
        raise JobError("--peers: their lengths are forced, they know no end after so many lines; --lengths recorded")
    return list(dict.fromkeys(names))


def catalog(
    config: Path, inputs: Sequence[str], overrides: Sequence[str], limit: int | None, seed: int, keep_repeats: bool
) -> tuple[DecoderSpec, Shape]:
    """The decoder of a job and rows of its catalog. Nothing is written where the job would write."""
    settings = load_config(config, overrides)
    job = compose(settings, config, inputs=inputs, output=settings.output.path or "unused", limit=settings.input.limit)
    if keep_repeats:
        job = replace(job, limit=limit)
    sample = None if limit is None or keep_repeats else limit * _READ
    items = [product.item for product in read_catalog(job, catalog_reader(settings, config), sample, seed)]
    name = f"{config.stem}: {', '.join(Path(i).name for i in job.inputs)}"
    return job.decoder, catalog_shape(items, name, limit, seed, keep_repeats=keep_repeats)


def finish(out: Output, folder: Path, facts: Mapping[str, Any], json_: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = markdown(facts)
    (folder / "benchmark.json").write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "benchmark.md").write_text(text, encoding="utf-8")
    write_page(folder / "benchmark.html", benchmark_page(facts, charts(facts), LABELS, LINE))
    out.console.print(text, markup=False, highlight=False, soft_wrap=True)
    out.finish({**facts, "output": str(folder)})


if __name__ == "__main__":
    run_alone(benchmark)
