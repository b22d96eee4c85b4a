"""`hpd benchmark`: HPD and the baselines on the same documents, in one process, interleaved."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpd_core import recipe
from hpd_core.rows import Counts
from jobs.console import command, output, run_alone, say, say_notice
from jobs.measure import REFERENCE, Contender, markdown, measure, report
from jobs.options import (
    AsJson,
    Dataset,
    Folder,
    LayoutName,
    Limit,
    ModelName,
    Threads,
    ValueTokens,
    VisibilityName,
    decoder_spec,
)
from jobs.scores.dataset import Benchmark, read_benchmark
from pipeline.job import JobError
from pipeline.models import DEFAULT_MODEL

if TYPE_CHECKING:
    from hpd_core.extractor import Extractor
    from hpd_core.prompt import EncodedDocument

#: (decoder, sequences decoded together: documents, or prompts of per-attribute; 0 leaves it to HPD's own scheduler).
#: HPD at batch 1 shows the step factor.
CONTENDERS = (("hpd", 0), ("hpd", 1), ("ar", 1), ("ar", 8), ("ar", 32), ("ar-lookup", 1), ("per-attribute", 32))


class Lengths(StrEnum):
    #: Every decoder is made to write the gold answers: the work is that of real values, whatever the model would say.
    GOLD = "gold"
    #: Every decoder writes what the model says.
    MODEL = "model"


@command
def benchmark(
    dataset: Dataset,
    output_folder: Folder,
    limit: Limit = 64,
    repeat: Annotated[int, typer.Option("--repeat", "-r", min=1, help="Rounds; the median counts.")] = 3,
    lengths: Annotated[
        str, typer.Option(help="gold (write the gold answers) | model (write the model's own)")
    ] = "gold",
    layout: LayoutName = None,
    visibility: VisibilityName = None,
    model: ModelName = DEFAULT_MODEL,
    max_value_tokens: ValueTokens = None,
    threads: Threads = None,
    skip: Annotated[
        list[str] | None, typer.Option(help="Leave a decoder out; may be repeated. Not hpd, not ar.")
    ] = None,
    json_: AsJson = False,
) -> None:
    """Time HPD against autoregressive baselines; writes benchmark.md and benchmark.json."""
    if lengths not in list(Lengths):
        raise JobError(f"--lengths {lengths}: must be one of {', '.join(Lengths)}")
    optional = sorted({name for name, _ in CONTENDERS} - {"hpd", REFERENCE})
    if not set(skip or ()) <= set(optional):
        raise JobError(f"--skip {' '.join(skip or ())}: must be one of {', '.join(optional)}")
    chosen = [(name, batch) for name, batch in CONTENDERS if name not in (skip or ())]
    data = read_benchmark(dataset)
    spec = decoder_spec(model, layout, visibility, max_value_tokens)
    from jobs.decoders import load, named  # torch: seconds, and not needed to refuse a wrong option

    say_notice(spec.model)
    notice = recipe.notice_of(spec.model)
    with output(json_) as out:
        loaded = load(spec, threads)
        documents, forced = inputs(loaded, data, limit, Lengths(lengths))
        contenders = []
        for name, batch in chosen:
            decoder = named(name)(loaded, batch)
            say(f"warming up: {name}, batch {batch}")
            work(decoder, documents[:2], forced)
            contenders.append(Contender(name, batch, partial(work, decoder, documents, forced)))
        measurements = measure(contenders, len(documents), repeat, say=say)
        facts = report(measurements) | {
            "documents": len(documents),
            "repeat": repeat,
            "lengths": lengths,
            "dataset": dataset.name,
            "spec": spec.as_dict(),
            **({"notice": notice} if notice else {}),
        }
        how = f"{repeat} rounds, {lengths} lengths, {spec.settings.layout}"
        heading = f"{dataset.name}: {len(documents)} documents, {how}, {model}"
        write_report(output_folder, facts, heading)
        out.console.print(markdown(facts, heading), markup=False, highlight=False, soft_wrap=True)
        out.finish(facts | {"output": str(output_folder)})


def inputs(
    loaded: Extractor, data: Benchmark, limit: int | None, lengths: Lengths
) -> tuple[list[EncodedDocument], list[dict[str, str]] | None]:
    """The first `limit` documents, each distinct text once (HPD decodes a repeat for nothing), and their gold."""
    documents, answers = [], []
    seen = set()
    for document, answer in zip(data.documents(), data.answers(), strict=True):
        if (document.text, document.schema.name) in seen:
            continue
        seen.add((document.text, document.schema.name))
        documents.append(loaded.encoder.encode(document))
        answers.append(answer)
        if len(documents) == limit:
            break
    return documents, answers if lengths is Lengths.GOLD else None


def work(decoder: Extractor, documents: Sequence[EncodedDocument], forced: Sequence[dict[str, str]] | None) -> Counts:
    """Decodes `documents`, which `forced` may have more answers than, and says what it took."""
    answers = None if forced is None else forced[: len(documents)]
    return decoder.extract_encoded(documents, answers).counts


def write_report(folder: Path, facts: dict[str, Any], heading: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "benchmark.json").write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "benchmark.md").write_text(markdown(facts, heading), encoding="utf-8")


if __name__ == "__main__":
    run_alone(benchmark)
