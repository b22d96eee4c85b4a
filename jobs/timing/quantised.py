"""What quantising costs and brings, against float32: `python -m jobs.timing.quantised --output out/quantised`.

Each kind has a process of its own and decodes the same rows of a labelled file, drawn evenly over it, in the same
chunks; a kind that is slow stops when its seconds are spent. The table says quality, how many values are those that
float32 wrote on the same rows, memory, and documents per second; `--page` puts it into a page between its markers.
"""

from __future__ import annotations

import json
import multiprocessing
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer

from hpd_core.settings import DecoderSpec
from jobs.options import decoder_spec
from jobs.scores.dataset import read_benchmark
from jobs.scores.predictions import prediction
from jobs.scores.quality import assess
from pipeline.job import JobError
from pipeline.models import DEFAULT_MODEL

#: quantization/dtype. The first is what the others are held against; the slowest comes last.
KINDS = (
    "none/float32",
    "int8-weight-only/float32",
    "none/bfloat16",
    "int4-weight-only/bfloat16",
    "int8-dynamic/float32",
)
DATASET = Path("samples/labelled/validation.jsonl")
#: Documents that are decoded together: few, since the clock is looked at between them.
CHUNK = 8
#: How much of a wrong kind's message is told.
_REASON = 120


@dataclass(frozen=True, slots=True)
class Trial:
    """One kind. predictions: {attribute: text or None} of the rows that it came to. seconds: of decoding alone.

    weights, resident: bytes of the weights as they are stored, and the most that the process held while decoding.
    """

    predictions: tuple[Mapping[str, str | None], ...]
    seconds: float
    weights: int
    resident: int
    machine: str


def measure(spec: DecoderSpec, dataset: Path, rows: Sequence[int], threads: int | None, seconds: float) -> Trial:
    """Runs in a process of its own. rows: their numbers in the file."""
    from hpd_core.extractor import extract_all
    from jobs.decoders import load
    from pipeline.device import device_name
    from pipeline.peak import RESIDENT, forget_peak, peak_memory

    documents = [read_benchmark(dataset).documents()[n] for n in rows]
    decoder = load(spec, threads)
    extract_all(decoder, documents[:1])  # kernels and the shared prefix
    forget_peak(str(decoder.model.device))
    started, found = time.perf_counter(), list[Mapping[str, str | None]]()
    while len(found) < len(documents) and (not found or time.perf_counter() - started < seconds):
        chunk = documents[len(found) : len(found) + CHUNK]
        found += [prediction(row) for row in extract_all(decoder, chunk).rows]
    took = time.perf_counter() - started
    import torch

    machine = device_name(decoder, str(decoder.model.device), torch.get_num_threads())
    resident = peak_memory().get(RESIDENT, 0)
    return Trial(tuple(found), took, stored_bytes(decoder.model.hf), resident, machine)


def stored_bytes(hf: Any) -> int:
    """Bytes of a model's parameters, of quantised ones those of all that they are made of: numbers, scales, zeros."""
    return sum(_bytes(parameter) for parameter in hf.parameters())


def _bytes(tensor: Any) -> int:
    if not hasattr(tensor, "__tensor_flatten__"):
        return int(tensor.nbytes)
    inner, _ = tensor.__tensor_flatten__()
    return sum(_bytes(getattr(tensor, name)) for name in inner)


def spread_over(count: int, limit: int) -> list[int]:
    """At most `limit` of the numbers below `count`, evenly: labelled files are sorted by category."""
    limit = min(limit, count)
    return [n * count // limit for n in range(limit)]


def row_of(kind: str, found: Trial, first: Trial, gold: Sequence[Any]) -> dict[str, Any]:
    """One line of the table, JSON-able. first: of float32, which came to at least as many rows."""
    count = len(found.predictions)
    quality = assess(gold[:count], found.predictions)
    pairs = [
        (mine[a], theirs[a]) for mine, theirs in zip(found.predictions, first.predictions, strict=False) for a in mine
    ]
    interval = quality.interval("f1")
    return {
        "kind": kind,
        "rows": count,
        "f1": quality.scores.f1,
        "f1_interval": [interval.low, interval.high],
        "strict_f1": quality.scores.strict_f1,
        "values_as_first": sum(a == b for a, b in pairs) / max(1, len(pairs)),
        "weights_mib": found.weights / 2**20,
        "resident_mib": found.resident / 2**20,
        "docs_per_second": count / found.seconds,
        "times_first": count / found.seconds / (len(first.predictions) / first.seconds),
    }


def table(facts: Mapping[str, Any]) -> str:
    """The facts as Markdown."""
    lines = [
        f"{facts['model']} on {facts['rows']} rows of `{facts['dataset']}`, {facts['machine']}, {facts['date']}, "
        f"{facts['seconds']:,.0f} s in all. In brackets 95 %; a kind with fewer rows ran out of its "
        f"{facts['seconds_per_kind']:g} s.",
        "",
        "| quantization / dtype | rows | F1 | strict F1 | same values | weights, MiB | peak, MiB | docs/s | x |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in facts["kinds"]:
        low, high = row["f1_interval"]
        lines.append(
            f"| {row['kind']} | {row['rows']} | {row['f1']:.1f} ({low:.1f}-{high:.1f}) | {row['strict_f1']:.1f} | "
            f"{100 * row['values_as_first']:.1f} % | {row['weights_mib']:,.0f} | {row['resident_mib']:,.0f} | "
            f"{row['docs_per_second']:.2f} | {row['times_first']:.2f} |"
        )
    return "\n".join([*lines, *(f"\nLeft out: {kind}: {why}" for kind, why in facts["left_out"].items())])


def into_page(page: Path, content: str) -> None:
    """Puts the table between the page's markers. Raises JobError where it has none."""
    pattern = re.compile(r"(<!-- quantised: [^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)
    text, found = pattern.subn(lambda m: f"{m[1]}{content}\n{m[2]}", page.read_text(encoding="utf-8"), count=1)
    if not found:
        raise JobError(f"{page}: no marker <!-- quantised: … --> with an <!-- end -->")
    page.write_text(text, encoding="utf-8")


def run(
    model: str, kinds: Sequence[str], dataset: Path, limit: int, threads: int | None, seconds: float
) -> dict[str, Any]:
    """Every kind after another; one that cannot run is left out with its reason. Raises JobError where the first
    cannot."""
    started, benchmark = time.perf_counter(), read_benchmark(dataset)
    chosen = spread_over(len(benchmark.rows), limit)
    gold = [benchmark.rows[n] for n in chosen]
    first: Trial | None = None
    rows, left_out = [], {}
    for kind in kinds:
        quantization, _, dtype = kind.partition("/")
        spec = decoder_spec(model, None, None, None, quantization=quantization, dtype=dtype or None)
        try:
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                # The first has twice the time: the others are compared with what it came to.
                found = pool.submit(measure, spec, dataset, chosen, threads, seconds * (1 + (not first))).result()
        except (ValueError, FileNotFoundError, RuntimeError, BrokenProcessPool) as error:
            if first is None:
                raise JobError(f"{kind}: {error}") from error
            left_out[kind] = f"{type(error).__name__}: {error}"[:_REASON]
            continue
        first = first or found
        rows.append(row_of(kind, found, first, gold))
        typer.echo(f"{kind}: {rows[-1]['rows']} rows, {rows[-1]['docs_per_second']:.2f} documents a second", err=True)
    assert first is not None
    return {
        "model": model,
        "dataset": str(dataset),
        "rows": len(chosen),
        "machine": first.machine,
        "date": date.today().isoformat(),
        "seconds": time.perf_counter() - started,
        "seconds_per_kind": seconds,
        "kinds": rows,
        "left_out": left_out,
    }


def main(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for quantised.json and quantised.md.")],
    dataset: Annotated[Path, typer.Option(help="Benchmark file, as for hpd evaluate.")] = DATASET,
    model: Annotated[str, typer.Option(help="As for hpd evaluate.")] = DEFAULT_MODEL,
    kind: Annotated[list[str] | None, typer.Option(help="quantization/dtype; may be repeated.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Rows, drawn evenly over the file.")] = 48,
    seconds: Annotated[float, typer.Option(help="Of decoding, for each kind; looked at after each chunk.")] = 60.0,
    threads: Annotated[int | None, typer.Option(min=1, help="Of torch; all cores by default.")] = None,
    page: Annotated[Path | None, typer.Option(help="Page that takes the table, such as docs/models.md.")] = None,
) -> None:
    """Quality, memory and speed of quantised weights against float32. Under 10 minutes on 2 quiet cores."""
    facts = run(model, kind or KINDS, dataset, limit, threads, seconds)
    output.mkdir(parents=True, exist_ok=True)
    (output / "quantised.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    (output / "quantised.md").write_text(table(facts) + "\n", encoding="utf-8")
    if page is not None:
        into_page(page, table(facts))
    typer.echo(table(facts))


if __name__ == "__main__":
    typer.run(main)
