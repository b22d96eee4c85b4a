"""What quantising costs and brings, against float32: `python -m jobs.timing.quantised --output out/quantised`.

Each kind has a process of its own and decodes the same rows of a labelled file, drawn evenly over it, in the same
chunks; one that is slow stops where its seconds would not do for the next chunk, one that does not answer is stopped.
The table says quality, how many values are those that float32 wrote on the same rows, memory, and documents per second;
`--page` puts it into a page between its markers.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer

from hpd_core.schema import Document
from jobs.options import decoder_spec
from jobs.scores.dataset import read_benchmark
from jobs.scores.predictions import prediction
from jobs.scores.quality import assess
from jobs.timing.process import EngineFailed, TryWeights, Worker
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
#: Most documents that are decoded together: few, since the clock is looked at between them.
CHUNK = 8
#: A process has these beside its seconds of decoding: to import torch, to load and quantise, for its last chunk.
START_SECONDS = 180.0
#: How much of a wrong kind's message is told.
_REASON = 120
_LEGEND = (
    "*F1*: over the rows that a kind came to in its {seconds:g} s (the first: twice as many), in brackets 95 %. *same "
    "values*: as {first} wrote them, of all attributes of the rows that both came to, absent ones among them. *peak*: "
    "the most that the process held while decoding, the weights' own memory before they were quantised among it. "
    "*docs/s*: without the first document, which loads kernels. *x*: so many times as fast as {first}, over the rows "
    "that both came to."
)

Predictions = Sequence[Mapping[str, str | None]]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Documents that were decoded together, and how long that took."""

    rows: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Trial:
    """One kind. predictions: {attribute: text or None} of the rows that it came to. chunks: of the same rows.

    weights, resident: bytes of the weights as they are stored, and the most that the process held while decoding.
    """

    predictions: Predictions
    chunks: Sequence[Chunk]
    weights: int
    resident: int
    machine: str


def tried(order: TryWeights) -> Trial:
    """Runs in a process of its own."""
    import torch

    from hpd_core.extractor import extract_all
    from jobs.decoders import load
    from pipeline.device import device_name
    from pipeline.peak import RESIDENT, forget_peak, peak_memory

    decoder = load(order.spec, order.threads)
    device = str(decoder.model.device)
    forget_peak(device)

    def decode(documents: Sequence[Document]) -> Predictions:
        return [prediction(row) for row in extract_all(decoder, documents).rows]

    found, chunks = within(order.seconds, order.documents, decode)
    resident = peak_memory().get(RESIDENT, 0)
    machine = device_name(decoder, device, torch.get_num_threads())
    return Trial(found, chunks, stored_bytes(decoder.model.hf), resident, machine)


def within(
    seconds: float,
    documents: Sequence[Document],
    decode: Callable[[Sequence[Document]], Predictions],
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Predictions, list[Chunk]]:
    """Decodes one document, and then each chunk that will be done in time if it is as fast as the one before."""
    found, chunks = list[Mapping[str, str | None]](), list[Chunk]()
    end = clock() + seconds
    for chunk in chunked(documents):
        began = clock()
        if chunks and began + len(chunk) * chunks[-1].seconds / chunks[-1].rows > end:
            break
        found += decode(chunk)
        chunks.append(Chunk(len(chunk), clock() - began))
    return found, chunks


def chunked(documents: Sequence[Document]) -> Iterator[Sequence[Document]]:
    """1, 1, 2, 4, and then `CHUNK` at a time: the first document tells how slow a kind is, and two kinds are compared
    over the same chunks."""
    at = 0
    while at < len(documents):
        size = min(CHUNK, max(1, at))
        yield documents[at : at + size]
        at += size


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
    """One line of the table, JSON-able. first: what it is held against, over the chunks that both came to."""
    rows = len(found.predictions)
    quality = assess(gold[:rows], found.predictions)
    interval = quality.interval("f1")
    both = min(len(found.chunks), len(first.chunks))
    common = sum(chunk.rows for chunk in found.chunks[:both])
    pairs = [(found.predictions[n][a], first.predictions[n][a]) for n in range(common) for a in found.predictions[n]]
    return {
        "kind": kind,
        "rows": rows,
        "f1": quality.scores.f1,
        "f1_interval": [interval.low, interval.high],
        "strict_f1": quality.scores.strict_f1,
        "rows_in_common": common,
        "values_as_first": sum(a == b for a, b in pairs) / max(1, len(pairs)),
        "weights_mib": found.weights / 2**20,
        "resident_mib": found.resident / 2**20,
        "docs_per_second": rate(found.chunks),
        "times_first": rate(found.chunks[:both]) / rate(first.chunks[:both]),
    }


def rate(chunks: Sequence[Chunk]) -> float:
    """Documents per second, the first one apart where there are others: it loads kernels."""
    timed = chunks[1:] or chunks
    return sum(chunk.rows for chunk in timed) / sum(chunk.seconds for chunk in timed)


def table(facts: Mapping[str, Any]) -> str:
    """The facts as Markdown: all that stands between a page's markers."""
    rows = facts["kinds"]
    lines = [
        f"{facts['model']} on {facts['rows']} rows of `{facts['dataset']}`, {facts['machine']}, {facts['date']}, "
        f"{facts['seconds']:,.0f} s in all.",
        "",
        "| quantization / dtype | rows | F1 | strict F1 | same values | weights, MiB | peak, MiB | docs/s | x |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        low, high = row["f1_interval"]
        lines.append(
            f"| {row['kind']} | {row['rows']} | {row['f1']:.1f} ({low:.1f}-{high:.1f}) | {row['strict_f1']:.1f} | "
            f"{100 * row['values_as_first']:.1f} % | {row['weights_mib']:,.0f} | {row['resident_mib']:,.0f} | "
            f"{row['docs_per_second']:.2f} | {row['times_first']:.2f} |"
        )
    lines += [f"\nLeft out: {kind}: {why}" for kind, why in facts["left_out"].items()]
    return "\n".join([*lines, "", _LEGEND.format(seconds=facts["seconds_per_kind"], first=rows[0]["kind"])])


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
    """Every kind after another; one that cannot run, or has not answered `START_SECONDS` after its own were spent, is
    left out with its reason. Raises JobError where the first cannot."""
    started, benchmark = time.perf_counter(), read_benchmark(dataset)
    chosen, everything = spread_over(len(benchmark.rows), limit), benchmark.documents()
    documents, gold = [everything[n] for n in chosen], [benchmark.rows[n] for n in chosen]
    first: Trial | None = None
    rows, left_out = [], {}
    for kind in kinds:
        quantization, _, dtype = kind.partition("/")
        spec = decoder_spec(model, None, None, None, quantization=quantization, dtype=dtype or None)
        # The first has twice the time: the others are compared with what it came to.
        own = seconds * (1 + (not first))
        try:
            found = trial(TryWeights(spec, threads, documents, own), own + START_SECONDS)
        except (EngineFailed, JobError) as error:
            if first is None:
                raise JobError(f"{kind}: {error}") from error
            left_out[kind] = str(error)[:_REASON]
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


def trial(order: TryWeights, seconds: float) -> Trial:
    """`tried` in a process of its own, which is ended after so many seconds. Raises EngineFailed or JobError."""
    worker = Worker(order)
    try:
        found: Trial = worker.ask("trial", seconds)
        return found
    finally:
        worker.stop()


def main(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for quantised.json and quantised.md.")],
    dataset: Annotated[Path, typer.Option(help="Benchmark file, as for hpd evaluate.")] = DATASET,
    model: Annotated[str, typer.Option(help="As for hpd evaluate.")] = DEFAULT_MODEL,
    kind: Annotated[list[str] | None, typer.Option(help="quantization/dtype; may be repeated.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Rows, drawn evenly over the file.")] = 48,
    seconds: Annotated[float, typer.Option(help="Of decoding, for each kind; the first has twice as many.")] = 60.0,
    threads: Annotated[int | None, typer.Option(min=1, help="Of torch; all cores by default.")] = None,
    page: Annotated[Path | None, typer.Option(help="Page that takes the table, such as docs/models.md.")] = None,
) -> None:
    """Quality, memory and speed of quantised weights against float32. A kind takes its seconds beside those of loading,
    and is stopped where it has not answered 3 minutes after them."""
    facts = run(model, kind or KINDS, dataset, limit, threads, seconds)
    output.mkdir(parents=True, exist_ok=True)
    (output / "quantised.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    (output / "quantised.md").write_text(table(facts) + "\n", encoding="utf-8")
    if page is not None:
        into_page(page, table(facts))
    typer.echo(table(facts))


if __name__ == "__main__":
    typer.run(main)
