"""The training loop: lessons in, better weights out, and a log of how. A killed run resumes exactly.

Everything a step does follows from the settings, the lessons and the number of the step: random numbers are seeded per
step, so that a resumed run needs no generator's state.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hpd_core.lessons import Lesson
from hpd_core.peers import Alone, Peers
from hpd_core.settings import Layout, SettingsError, Visibility
from hpd_core.spec import fingerprint
from hpd_core.training import make_batch, summed_loss

#: Micro-batches of one optimizer step.
Step = Sequence[Sequence[Lesson]]
CHECKPOINT, LOG = "checkpoint.pt", "log.jsonl"


class Decay(StrEnum):
    COSINE = "cosine"
    LINEAR = "linear"


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """How weights are trained.

    warmup: share of all steps in which the learning rate rises. decay: how it falls to 0 behind them.
    clip: largest norm of a step's gradient. patience: epochs without a better validation score before training stops,
    0 for never. max_steps: ends training early, 0 for never; the schedule ends there too.
    checkpoint_every: steps between checkpoints; each epoch ends with one. precision: `auto` is bfloat16 autocast on
    GPUs that compute in it and float32 elsewhere (CPUs measured slower in bfloat16 from 32 rows up).
    """

    epochs: int = 3
    learning_rate: float = 1e-3
    warmup: float = 0.06
    decay: Decay = Decay.COSINE
    weight_decay: float = 0.0
    clip: float = 1.0
    patience: int = 0
    max_steps: int = 0
    checkpoint_every: int = 50
    precision: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.decay not in list(Decay):
            raise SettingsError(f"decay {self.decay!r}: must be {' or '.join(Decay)}")
        object.__setattr__(self, "decay", Decay(self.decay))
        if self.precision not in ("auto", "float32", "bfloat16"):
            raise SettingsError(f"precision {self.precision!r}: must be auto, float32 or bfloat16")
        for name, least in (("epochs", 1), ("checkpoint_every", 1), ("patience", 0), ("max_steps", 0)):
            if getattr(self, name) < least:
                raise SettingsError(f"{name} is {getattr(self, name)}: must be at least {least}")
        if not (self.learning_rate > 0 and self.clip > 0 and 0 <= self.warmup < 1 and self.weight_decay >= 0):
            raise SettingsError("learning_rate and clip must be above 0, warmup in [0, 1), weight_decay at least 0")


@dataclass(slots=True)
class Progress:
    """Where a run is: optimizer steps done, validation score of every finished epoch, the best of them.

    A score is None where nothing validates.
    """

    step: int = 0
    scores: list[float | None] = field(default_factory=list)
    best_epoch: int | None = None
    stopped: str = ""

    @property
    def best(self) -> float | None:
        return None if self.best_epoch is None else self.scores[self.best_epoch]


def stored_progress(folder: Path) -> Progress:
    """How far the run in `folder` had come when it last wrote its checkpoint."""
    return Progress(**torch.load(folder / CHECKPOINT, map_location="cpu", weights_only=True)["progress"])


class Trainer:
    """Trains the parameters of `hf` that ask for a gradient.

    lessons: steps of an epoch by its number; every epoch has the same number of steps.
    validate: figures for the log of the weights as they are, among them `score`, higher is better.
    save: keeps the weights as they are; called after every epoch that is the best so far, and at the end where nothing
        validates.
    report: sees every line of the log. data: names what `lessons` gives, so that no run is resumed with other data.
    peers: processes that train together. Each is built with the same arguments and weights, gets the same lessons and
        takes its share of them; `folder` must be one that all of them see. Only number 0 calls the functions above.
    """

    def __init__(
        self,
        hf: Any,
        lessons: Callable[[int], Sequence[Step]],
        settings: TrainingSettings,
        folder: Path,
        *,
        layout: Layout,
        visibility: Visibility,
        data: str = "",
        validate: Callable[[], Mapping[str, float]] | None = None,
        save: Callable[[], None] | None = None,
        report: Callable[[dict[str, Any]], None] | None = None,
        peers: Peers | None = None,
    ) -> None:
        self.hf, self.lessons, self.settings, self.folder = hf, lessons, settings, folder
        self.layout, self.visibility = layout, visibility
        self._validate, self._save, self._report = validate, save, report
        self._peers = peers or Alone()
        self.progress = Progress()
        self.parameters: dict[str, Tensor] = {n: p for n, p in hf.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise SettingsError("the model has no parameter to train")
        self.optimizer = torch.optim.AdamW(_groups(self.parameters, settings.weight_decay), lr=settings.learning_rate)
        facts = {"settings": asdict(settings), "layout": layout, "visibility": visibility, "data": data}
        self._facts = fingerprint(facts | {"names": sorted(self.parameters)})

    def run(self, *, resume: bool = False) -> Progress:
        """Trains to the end. resume: goes on from the folder's checkpoint where there is one.

        Raises SettingsError where the checkpoint is of other settings, or one is there and `resume` was not asked for.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._start(resume)
        settings, progress = self.settings, self.progress
        for epoch in range(len(progress.scores), settings.epochs):
            if progress.stopped:
                break
            steps = self.lessons(epoch)
            total = settings.epochs * len(steps)
            total = min(total, settings.max_steps) if settings.max_steps else total
            for number in range(progress.step - epoch * len(steps), len(steps)):
                if progress.step >= total:
                    break
                self._step(steps[number], epoch, total)
                if progress.step % settings.checkpoint_every == 0:
                    self._checkpoint()
            self._checkpoint()
            self._end_epoch(epoch, total)
            self._checkpoint()
        if self._validate is None and self._save is not None and self._is_first:
            self._save()
        return progress

    @property
    def _is_first(self) -> bool:
        return self._peers.rank == 0

    def learning_rate(self, step: int, total: int) -> float:
        """Rate of step number `step` (from 0) of `total`."""
        warm = math.ceil(self.settings.warmup * total)
        if step < warm:
            return self.settings.learning_rate * (step + 1) / warm
        done = (step - warm) / max(1, total - warm)
        left = 1 - done if self.settings.decay is Decay.LINEAR else (1 + math.cos(math.pi * done)) / 2
        return self.settings.learning_rate * left

    def _step(self, step: Step, epoch: int, total: int) -> None:
        settings, progress, started = self.settings, self.progress, time.perf_counter()
        torch.manual_seed(settings.seed * 1_000_003 + progress.step)
        rate = self.learning_rate(progress.step, total)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        targets = sum(len(lesson.targets) for lessons in step for lesson in lessons)
        device = next(iter(self.parameters.values())).device
        self.hf.train()
        summed, rows = torch.zeros(2, dtype=next(iter(self.parameters.values())).dtype, device=device).unbind()
        for lessons in step:
            mine = lessons[self._peers.rank :: self._peers.size]
            if not any(lesson.targets for lesson in mine):
                continue
            batch = make_batch(mine, self.layout, self.visibility, device)
            rows += len(batch.ids)
            with torch.autocast(device.type, torch.bfloat16, enabled=_uses_bfloat16(settings.precision, device)):
                loss = summed_loss(self.hf, batch)
            (loss / targets).backward()
            summed += loss.detach()
        if self._peers.size > 1:
            for parameter in self.parameters.values():
                if parameter.grad is None:  # no document of this step was this process's
                    parameter.grad = torch.zeros_like(parameter)
            self._peers.add_up([p.grad for p in self.parameters.values() if p.grad is not None] + [summed, rows])
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters.values(), settings.clip))
        if not math.isfinite(norm):
            raise FloatingPointError(f"step {progress.step}: the gradient is not finite; lower the learning rate")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        progress.step += 1
        self._log(
            {
                "step": progress.step,
                "steps": total,
                "epoch": epoch,
                "loss": float(summed) / max(1, targets),
                "targets": targets,
                "rows": int(rows),
                "learning_rate": rate,
                "gradient_norm": norm,
                "seconds": time.perf_counter() - started,
            }
        )

    def _end_epoch(self, epoch: int, total: int) -> None:
        settings, progress = self.settings, self.progress
        started = time.perf_counter()
        figures = dict(self._validate()) if self._validate is not None and self._is_first else {}
        score = self._peers.from_first(figures.get("score", float("nan")))
        progress.scores.append(None if self._validate is None else score)
        if self._validate is not None and (progress.best is None or score > progress.best):
            progress.best_epoch = epoch
            if self._save is not None and self._is_first:
                self._save()
        if figures:
            seconds = time.perf_counter() - started
            self._log({"step": progress.step, "epoch": epoch, **figures, "seconds": seconds})
        if progress.step >= total:
            progress.stopped = "done"
        elif settings.patience and progress.best_epoch is not None and epoch - progress.best_epoch >= settings.patience:
            progress.stopped = f"no better score in {settings.patience} epochs"

    def _log(self, line: dict[str, Any]) -> None:
        if not self._is_first:
            return
        with (self.folder / LOG).open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")
        if self._report is not None:
            self._report(line)

    def _checkpoint(self) -> None:
        """Weights, optimizer and progress in one file, replaced whole: a kill leaves the old one or the new one."""
        if not self._is_first:
            return
        state = {
            "facts": self._facts,
            "parameters": dict(self.parameters),
            "optimizer": self.optimizer.state_dict(),
            "progress": asdict(self.progress),
        }
        path = self.folder / CHECKPOINT
        torch.save(state, path.with_suffix(".tmp"))
        os.replace(path.with_suffix(".tmp"), path)

    def _start(self, resume: bool) -> None:
        path = self.folder / CHECKPOINT
        if not path.exists():
            if self._is_first:
                (self.folder / LOG).unlink(missing_ok=True)
            return
        if not resume:
            raise SettingsError(f"{path} exists: resume that run, or choose another folder")
        state = torch.load(path, map_location="cpu", weights_only=True)
        if state["facts"] != self._facts:
            raise SettingsError(f"{path} was made with other settings: resume with the same, or choose another folder")
        with torch.no_grad():
            for name, stored in state["parameters"].items():
                self.parameters[name].copy_(stored)
        self.optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(**state["progress"])
        if self._is_first:
            self._forget_later_lines()

    def _forget_later_lines(self) -> None:
        """Drops log lines of steps and epochs that the checkpoint does not know: they are done again."""
        path, done = self.folder / LOG, self.progress
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        kept = []
        for text in lines:
            try:
                line = json.loads(text)
            except ValueError:  # the kill came while it was written
                continue
            known = line["epoch"] < len(done.scores) if "score" in line else line["step"] <= done.step
            kept += [text + "\n"] if known else []
        path.write_text("".join(kept), encoding="utf-8")


def _groups(parameters: dict[str, Tensor], weight_decay: float) -> list[dict[str, Any]]:
    """Weight decay is for matrices; norms and biases go without."""
    flat = [p for p in parameters.values() if p.dim() < 2]
    matrices = [p for p in parameters.values() if p.dim() >= 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": flat, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _uses_bfloat16(precision: str, device: torch.device) -> bool:
    if precision == "auto":
        return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return precision == "bfloat16"
