"""One model in training: what it learns from, how it is scored on the way, where it is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpd_core.examples import Labelled, Sampling
from hpd_core.prompt import PromptEncoder
from hpd_core.recipe import Recipe
from hpd_core.spec import DecoderSpec
from jobs.console import say
from jobs.scores.dataset import Benchmark
from jobs.scores.predictions import extract_chunks, prediction
from jobs.scores.scoring import score
from jobs.training.curve import write_curve
from jobs.training.epoch import Lessons
from jobs.training.labelled import data_fingerprint

if TYPE_CHECKING:
    from hpd_core.finetune import Progress, TrainingSettings
    from hpd_core.peers import Peers


@dataclass(frozen=True, slots=True)
class Work:
    """Everything that a process needs to train; small enough to send, but for `labelled`.

    folder: of log, checkpoint and result. facts: what the recipe tells people, the same in a resumed run. origin: what
    it tells beside that, which may differ then. device, threads: see hpd_core.extractor.
    """

    spec: DecoderSpec
    recipe: Recipe
    labelled: Sequence[Labelled]
    sampling: Sampling
    settings: TrainingSettings
    folder: Path
    facts: Mapping[str, Any]
    origin: Mapping[str, Any] = field(default_factory=dict)
    validation: Benchmark | None = None
    device: str = "auto"
    threads: int | None = None

    @property
    def saved_as(self) -> str:
        return "adapter" if self.recipe.rank else "model"


def train(work: Work, peers: Peers | None = None, *, resume: bool = False) -> Progress:
    """Trains to the end; the best weights lie in `work.folder / work.saved_as` then, the curves of the whole training,
    earlier runs of it included, in its CURVE. Raises as Trainer does."""
    from hpd_core.finetune import LOG, Trainer

    def draw() -> None:
        write_curve(work.folder / LOG, f"Training of {work.folder.name}")

    def report(line: Mapping[str, Any]) -> None:
        say(_spoken(line))
        if "score" in line:  # an epoch takes hours where a model is large: its curve need not wait for the last one
            draw()

    student = Student(work)
    trainer = Trainer(
        student.hf,
        Lessons(student.encoder, work.labelled, work.sampling, autoregressive=work.recipe.decoder == "ar"),
        work.settings,
        work.folder,
        layout=work.spec.settings.layout,
        visibility=work.spec.settings.visibility,
        data=data_fingerprint(work.labelled, {"facts": work.facts, "recipe": repr(work.recipe)}),
        validate=student.score if work.validation else None,
        save=lambda: student.save({**work.facts, **work.origin, "scores": trainer.progress.scores}),
        report=report,
        peers=peers,
    )
    progress = trainer.run(resume=resume)
    if peers is None or peers.rank == 0:
        draw()
    return progress


class Student:
    """The model in training: weights, prompts, and how it is scored and saved."""

    def __init__(self, work: Work) -> None:
        import torch

        from hpd_core import adapter
        from hpd_core.model import Model

        if work.threads is not None:
            torch.set_num_threads(work.threads)
        self.work, self.recipe = work, work.recipe
        self.encoder = PromptEncoder.from_spec(work.spec)
        # Trained in float32: an update is smaller than what bfloat16 resolves.
        self.hf = Model.load(replace(work.spec.model, dtype="float32"), device=work.device).hf
        rank, seed = self.recipe.rank, work.settings.seed
        self._wrapped = adapter.add_lora(self.hf, rank, seed=seed) if rank else None

    def score(self) -> Mapping[str, float]:
        """Figures of the validation rows; `score` is the mean of F1 and strict F1, so that neither is bought with the
        other."""
        from hpd_core.extractor import HyperParallelDecoder
        from hpd_core.model import Model
        from jobs.decoders import named

        benchmark = self.work.validation
        assert benchmark is not None, "only called where there is one"
        extractor = named(self.recipe.decoder)(HyperParallelDecoder(Model(self.hf), self.encoder), 0)
        rows, _ = extract_chunks(extractor, benchmark.documents())
        scores = score([row.gold for row in benchmark.rows], [prediction(row) for row in rows])
        named_figures = {name: getattr(scores, name) for name in ("f1", "strict_f1", "precision", "recall")}
        return {"score": (scores.f1 + scores.strict_f1) / 2, **named_figures}

    def save(self, training: Mapping[str, Any]) -> None:
        from hpd_core import adapter

        folder = self.work.folder / self.work.saved_as
        if self._wrapped is not None:
            size = adapter.save_lora(self._wrapped, folder, self.recipe.base_model)
        else:
            size = adapter.save_whole(self.hf, self.encoder.tokenizer, folder)
        replace(self.recipe, training=training).write(folder)
        say(f"saved {size / 1e6:.1f} MB to {folder}")


def _spoken(line: Mapping[str, Any]) -> str:
    if "score" in line:
        return f"epoch {line['epoch'] + 1}: f1 {line['f1']:.2f}, strict f1 {line['strict_f1']:.2f}"
    return f"step {line['step']}/{line['steps']}: loss {line['loss']:.4f}, {line['seconds']:.1f} s"
