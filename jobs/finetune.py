"""`hpd finetune`: trains a model under the mask and positions that it will decode with."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from hpd_core import recipe
from hpd_core.examples import Sampling
from hpd_core.model_spec import Prompting, Quantization
from hpd_core.recipe import Recipe
from hpd_core.settings import Layout, Visibility
from hpd_core.template import Stub
from jobs.console import command, output, run_alone, say_notices
from jobs.options import (
    AsJson,
    Folder,
    LayoutName,
    ModelName,
    Threads,
    ValueTokens,
    VisibilityName,
    decoder_spec,
    short_name,
)
from jobs.scores.dataset import joined, read_benchmark
from jobs.scores.declared import declared_schemas
from jobs.training.labelled import ReadOptions, read_datasets
from jobs.training.reproduction import reproduction
from jobs.training.student import Work, train
from jobs.training.workers import train_together
from pipeline.job import JobError
from pipeline.models import BASE_MODEL

#: Learning rates where none is given: LoRA wants about ten times that of all weights.
LORA_RATE, FULL_RATE = 1e-3, 1e-4
#: As long as titles are, which are seen whole: longer texts show the model no word further ahead than training did.
DOCUMENT_BLOCK = 64

Datasets = Annotated[
    list[str],
    typer.Option(
        "--dataset",
        "-d",
        help="Benchmark file, Parquet with attribute columns (file, folder or glob; needs --job), or output folder of "
        "`hpd extract`; may be repeated. See docs/finetuning.md.",
        show_default=False,
    ),
]


@command
def finetune(
    dataset: Datasets,
    output_folder: Folder,
    validation: Annotated[
        list[Path] | None, typer.Option(help="Benchmark file that scores every epoch; may be repeated.")
    ] = None,
    schemas: Annotated[
        list[Path] | None,
        typer.Option(help="Of benchmark rows, by category, as a job's; else all that rows name. Repeatable."),
    ] = None,
    job: Annotated[Path | None, typer.Option(help="YAML of the job that says text and schemas of Parquet.")] = None,
    min_confidence: Annotated[
        float | None, typer.Option(min=0, max=1, help="Values of an extract output below it are not taught.")
    ] = None,
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Take an extract output without _SUCCESS.")] = False,
    exclude: Annotated[list[Path] | None, typer.Option(help="Rows left out of training; may be repeated.")] = None,
    model: ModelName = BASE_MODEL,
    decoder: Annotated[str, typer.Option(help="hpd | ar (the control: plain causal text)")] = "hpd",
    layout: LayoutName = Layout.BRANCHES.value,
    visibility: VisibilityName = Visibility.ISOLATED.value,
    max_value_tokens: ValueTokens = 24,
    document_block: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of a document that see each other; 1: causal. 64, and 1 for the control."),
    ] = None,
    prompting: Annotated[Prompting, typer.Option(help="The model's chat template, or plain text.")] = Prompting.CHAT,
    stub: Annotated[
        Stub, typer.Option(help="Before each value: its whole key, or as little of it as tells it from the others.")
    ] = Stub.KEY,
    epochs: Annotated[int, typer.Option(min=1)] = 3,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate; 1e-3 for LoRA, 1e-4 for all weights.")] = None,
    rank: Annotated[int, typer.Option(min=0, help="Rank of the LoRA adapter; 0 trains all weights.")] = 32,
    batch_documents: Annotated[int, typer.Option(min=1, help="Documents of one forward.")] = 16,
    accumulate: Annotated[int, typer.Option(min=1, help="Forwards per optimizer step.")] = 1,
    negatives: Annotated[
        float, typer.Option(min=0, max=1, help="Rate at which known absences are taught, 0 to 1.")
    ] = 0.25,
    recombine: Annotated[
        float, typer.Option(min=0, max=1, help="Share of values in the texts replaced by those of other products.")
    ] = 0.0,
    patience: Annotated[int, typer.Option(min=0, help="Epochs without a better score; 0: never stop.")] = 0,
    decay: Annotated[str, typer.Option(help="cosine | linear")] = "cosine",
    precision: Annotated[str, typer.Option(help="auto | float32 | bfloat16")] = "auto",
    validation_rows: Annotated[int | None, typer.Option(min=1, help="Only the first so many rows of each.")] = None,
    max_steps: Annotated[int, typer.Option(min=0, help="End after so many steps; 0: never.")] = 0,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 50,
    notice: Annotated[
        str | None, typer.Option(help="Terms that whoever loads the result is told, beside those of data and model.")
    ] = None,
    seed: int = 0,
    device: Annotated[str, typer.Option(help="auto | cpu | cuda:0 …")] = "auto",
    threads: Threads = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that train together, by Ray Train.")] = 1,
    gpus: Annotated[float, typer.Option(min=0, help="GPUs of each worker.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the folder's checkpoint.")] = False,
    json_: AsJson = False,
) -> None:
    """Fine-tune a model on labelled products; writes the adapter (or model), a log, its curves and a checkpoint."""
    options = dict(locals())  # before anything else has a name
    if decoder == "ar" and document_block not in (None, 1):
        raise JobError("--document-block: is for --decoder hpd; the control is plain causal text")
    block = document_block or (1 if decoder == "ar" else DOCUMENT_BLOCK)
    spec = decoder_spec(model, layout, visibility, max_value_tokens, None, [f"document_block={block}"])
    if spec.model.quantization is not Quantization.NONE:
        raise JobError(
            f"--model {model}: quantised weights ({spec.model.quantization.value}) are not trained; quantise the result"
        )
    if recipe.recipe_of(spec.model) is not None:
        raise JobError(f"--model {model}: is fine-tuned already; train from its base model")
    spec = replace(spec, model=replace(spec.model, prompting=prompting), template=replace(recipe.COMPACT, stub=stub))
    sampling = Sampling(negatives, batch_documents, accumulate, seed=seed, recombine=recombine)
    made_for = Recipe(spec.model.source, spec.settings, spec.template, prompting, decoder, rank)
    if workers > 1 and device != "auto":
        raise JobError(f"--device {device}: each of several workers takes the device that Ray gives it")
    if workers == 1 and gpus:
        raise JobError("--gpus: is for --workers; one process takes the device that --device names")
    if notice is not None and not notice.strip():
        raise JobError("--notice: is empty")
    declared = declared_schemas(schemas or ())
    reading = ReadOptions(job, min_confidence, unfinished)
    sets = read_datasets(dataset, [*(exclude or ()), *(validation or ())], declared, reading)
    labelled = [row for data in sets for row in data.rows]
    brought = [
        (spec.model.name, recipe.notice_of(spec.model)),
        *((short_name(data.name), data.notice) for data in sets),
    ]
    made_for = replace(made_for, notice=recipe.joined_notices([*(text for _, text in brought), notice or ""]))
    judges = [read_benchmark(path).with_schemas(declared) for path in validation or ()]
    judge = joined(judges, validation_rows).with_schemas(declared) if judges else None
    from hpd_core.finetune import TrainingSettings  # torch: seconds, and not needed to refuse a wrong option

    settings = TrainingSettings(
        epochs=epochs,
        learning_rate=lr if lr is not None else LORA_RATE if rank else FULL_RATE,
        decay=decay,  # type: ignore[arg-type]
        patience=patience,
        max_steps=max_steps,
        checkpoint_every=checkpoint_every,
        precision=precision,
        seed=seed,
    )
    facts = {
        "datasets": [short_name(path) for path in dataset],
        "schemas": [short_name(path) for path in schemas or ()],
        "excluded": [short_name(path) for path in exclude or ()],
        "validation": [short_name(path) for path in validation or ()],
        "rows": len(labelled),
        "sampling": asdict(sampling),
        "settings": asdict(settings),
        **reading.facts(),
    }
    origin: dict[str, Any] = {"reproduction": reproduction(options, sets, spec.model)}
    if teachers := [dict(data.teacher) for data in sets if data.teacher]:
        origin["teachers"] = teachers
    work = Work(
        spec=spec,
        recipe=made_for,
        labelled=labelled,
        sampling=sampling,
        settings=settings,
        folder=output_folder.resolve(),
        facts=facts,
        origin=origin,
        validation=judge,
        device=device,
        threads=threads,
    )
    say_notices(brought)
    with output(json_) as out:
        start = time.perf_counter()
        progress = train(work, resume=resume) if workers == 1 else train_together(work, workers, gpus, resume=resume)
        where = output_folder / work.saved_as
        epoch = progress.best_epoch
        best = "" if epoch is None else f", best score {progress.best:.2f} in epoch {epoch + 1}"
        out.console.print(f"{progress.step} steps ({progress.stopped}){best}; written to {where}", highlight=False)
        seconds = time.perf_counter() - start
        out.finish(facts | asdict(progress) | {"output": str(where), "seconds": seconds})


if __name__ == "__main__":
    run_alone(finetune)
