"""`hpd finetune`: trains a model under the mask and positions that it will decode with."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpd_core import recipe
from hpd_core.examples import Labelled, Sampling, epoch_examples
from hpd_core.prompt import PromptEncoder, PromptError
from hpd_core.recipe import Recipe
from hpd_core.settings import DecoderSpec, Layout, Prompting, Visibility
from jobs.console import command, output, run_alone, say
from jobs.dataset import Benchmark, read_benchmark
from jobs.evaluate import decoder_spec, extract_chunks, prediction
from jobs.labelled import Reading, data_fingerprint, read_labelled
from jobs.options import AsJson, Folder, LayoutName, ModelName, Threads, ValueTokens, VisibilityName
from jobs.scoring import score
from pipeline.compose import schemas_by_category
from pipeline.config import SchemasConfig
from pipeline.job import JobError
from pipeline.models import DEFAULT_MODEL

if TYPE_CHECKING:
    from hpd_core.finetune import Step
    from hpd_core.lessons import Lesson

#: Learning rates where none is given: LoRA wants about ten times that of all weights.
LORA_RATE, FULL_RATE = 1e-3, 1e-4

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
    validation: Annotated[Path | None, typer.Option(help="Benchmark file that scores every epoch.")] = None,
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
    model: ModelName = DEFAULT_MODEL,
    decoder: Annotated[str, typer.Option(help="hpd | ar (the control: plain causal text)")] = "hpd",
    layout: LayoutName = Layout.BRANCHES.value,
    visibility: VisibilityName = Visibility.ISOLATED.value,
    max_value_tokens: ValueTokens = 24,
    prompting: Annotated[Prompting, typer.Option(help="The model's chat template, or plain text.")] = Prompting.CHAT,
    epochs: Annotated[int, typer.Option(min=1)] = 3,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate; 1e-3 for LoRA, 1e-4 for all weights.")] = None,
    rank: Annotated[int, typer.Option(min=0, help="Rank of the LoRA adapter; 0 trains all weights.")] = 32,
    batch_documents: Annotated[int, typer.Option(min=1, help="Documents of one forward.")] = 16,
    accumulate: Annotated[int, typer.Option(min=1, help="Forwards per optimizer step.")] = 1,
    negatives: Annotated[float, typer.Option(min=0, max=1, help="Share of absent attributes taught.")] = 0.25,
    patience: Annotated[int, typer.Option(min=0, help="Epochs without a better score; 0: never stop.")] = 0,
    decay: Annotated[str, typer.Option(help="cosine | linear")] = "cosine",
    precision: Annotated[str, typer.Option(help="auto | float32 | bfloat16")] = "auto",
    validation_rows: Annotated[int | None, typer.Option(min=1, help="Only its first so many rows.")] = None,
    max_steps: Annotated[int, typer.Option(min=0, help="End after so many steps; 0: never.")] = 0,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 50,
    seed: int = 0,
    device: Annotated[str, typer.Option(help="auto | cpu | cuda:0 …")] = "auto",
    threads: Threads = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the folder's checkpoint.")] = False,
    json_: AsJson = False,
) -> None:
    """Fine-tune a model on labelled products; writes the adapter (or model), a log and a checkpoint."""
    spec = decoder_spec(model, layout, visibility, max_value_tokens)
    if recipe.recipe_of(spec.model) is not None:
        raise JobError(f"--model {model}: is fine-tuned already; train from its base model")
    spec = replace(spec, model=replace(spec.model, prompting=prompting), template=recipe.COMPACT)
    sampling = Sampling(negatives, batch_documents, accumulate, seed=seed)
    made_for = Recipe(spec.model.source, spec.settings, spec.template, prompting, decoder, rank)
    declared = {c: s for path in schemas or () for c, s in schemas_by_category(_file(path), ".").items()}
    reading = Reading(job, min_confidence, unfinished)
    labelled = read_labelled(dataset, [*(exclude or ()), *([validation] if validation else ())], declared, reading)
    judge = read_benchmark(validation) if validation else None
    from hpd_core.finetune import Trainer, TrainingSettings  # torch: seconds, and not needed to refuse a wrong option

    settings = TrainingSettings(
        epochs=epochs,
        learning_rate=lr or (LORA_RATE if rank else FULL_RATE),
        decay=decay,  # type: ignore[arg-type]
        patience=patience,
        max_steps=max_steps,
        checkpoint_every=checkpoint_every,
        precision=precision,
        seed=seed,
    )
    facts = {
        "datasets": [Path(name).name for name in dataset],
        "schemas": [path.name for path in schemas or ()],
        "excluded": [path.name for path in exclude or ()],
        "validation": validation.name if validation else None,
        "rows": len(labelled),
        "sampling": asdict(sampling),
        "settings": asdict(settings),
        **reading.facts(),
    }
    with output(json_) as out:
        start = time.perf_counter()
        student = Student(spec, made_for, seed, device, threads)
        trainer = Trainer(
            student.hf,
            Lessons(student.encoder, labelled, sampling, autoregressive=decoder == "ar"),
            settings,
            output_folder,
            layout=spec.settings.layout,
            visibility=spec.settings.visibility,
            data=data_fingerprint(labelled, {"facts": facts, "recipe": repr(made_for)}),
            validate=(lambda: student.score(judge, validation_rows)) if judge else None,
            save=lambda: student.save(output_folder, facts | {"scores": trainer.progress.scores}),
            report=lambda line: say(_spoken(line)),
        )
        progress = trainer.run(resume=resume)
        where = student.folder(output_folder)
        best = "" if progress.best is None else f", best score {progress.best:.2f} in epoch {progress.best_epoch}"
        out.console.print(f"{progress.step} steps ({progress.stopped}){best}; written to {where}", highlight=False)
        seconds = time.perf_counter() - start
        out.finish(facts | asdict(progress) | {"output": str(where), "seconds": seconds})


def _file(path: Path) -> SchemasConfig:
    return SchemasConfig(file=str(path))


@dataclass(slots=True)
class Lessons:
    """Steps of an epoch. A document or value that cannot be put into ids is left out, and counted out loud."""

    encoder: PromptEncoder
    labelled: Sequence[Labelled]
    sampling: Sampling
    autoregressive: bool

    def __call__(self, epoch: int) -> Sequence[Step]:
        from hpd_core.lessons import LessonMaker

        maker = LessonMaker(self.encoder, autoregressive=self.autoregressive)
        batches: list[list[Lesson]] = []
        reasons = []
        for examples in epoch_examples(self.labelled, self.sampling, epoch):
            batches.append([])
            for example in examples:
                try:
                    batches[-1].append(maker.lesson(example))
                except PromptError as error:
                    reasons.append(str(error))
        if reasons:
            say(f"{len(reasons)} of {len(self.labelled)} documents cannot be taught, the first because: {reasons[0]}")
        size = self.sampling.accumulate
        return [batches[start : start + size] for start in range(0, len(batches), size)]


class Student:
    """The model in training: weights, prompts, and how it is scored and saved."""

    def __init__(self, spec: DecoderSpec, made_for: Recipe, seed: int, device: str, threads: int | None) -> None:
        import torch

        from hpd_core import adapter
        from hpd_core.model import Model

        if threads is not None:
            torch.set_num_threads(threads)
        self.recipe = made_for
        self.encoder = PromptEncoder.from_spec(spec)
        # Trained in float32: an update is smaller than what bfloat16 resolves.
        self.hf = Model.load(replace(spec.model, dtype="float32"), device=device).hf
        self._wrapped = adapter.add_lora(self.hf, made_for.rank, seed=seed) if made_for.rank else None

    def score(self, benchmark: Benchmark, limit: int | None) -> Mapping[str, float]:
        """Figures of the validation file; `score` is the mean of F1 and strict F1, so that neither is bought with the
        other."""
        from hpd_core.extractor import HyperParallelDecoder
        from hpd_core.model import Model
        from jobs.decoders import named

        extractor = named(self.recipe.decoder)(HyperParallelDecoder(Model(self.hf), self.encoder), 0)
        rows, _ = extract_chunks(extractor, benchmark.documents(limit))
        scores = score([row.gold for row in benchmark.rows[: len(rows)]], [prediction(row) for row in rows])
        named_figures = {name: getattr(scores, name) for name in ("f1", "strict_f1", "precision", "recall")}
        return {"score": (scores.f1 + scores.strict_f1) / 2, **named_figures}

    def folder(self, output_folder: Path) -> Path:
        return output_folder / ("adapter" if self.recipe.rank else "model")

    def save(self, output_folder: Path, training: Mapping[str, Any]) -> None:
        from hpd_core import adapter

        folder = self.folder(output_folder)
        if self._wrapped is not None:
            size = adapter.save_lora(self._wrapped, folder, self.recipe.base_model)
        else:
            size = adapter.save_whole(self.hf, self.encoder.tokenizer, folder)
        replace(self.recipe, training=training).write(folder)
        say(f"saved {size / 1e6:.1f} MB to {folder}")


def _spoken(line: Mapping[str, Any]) -> str:
    if "score" in line:
        return f"epoch {line['epoch']}: f1 {line['f1']:.2f}, strict f1 {line['strict_f1']:.2f}"
    return f"step {line['step']}/{line['steps']}: loss {line['loss']:.4f}, {line['seconds']:.1f} s"


if __name__ == "__main__":
    run_alone(finetune)
