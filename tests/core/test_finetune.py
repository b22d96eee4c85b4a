"""The training loop on a tiny model: what it learns, that a kill costs nothing, when it stops, what it refuses."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hpd_core.finetune import CHECKPOINT, LOG, Trainer, TrainingSettings
from hpd_core.lessons import lesson
from hpd_core.peers import Group
from hpd_core.settings import Layout, SettingsError, Visibility
from tests.core.test_training import values_of
from tests.core.tiny import prompts_of, tiny_model

WAY = {"layout": Layout.BRANCHES, "visibility": Visibility.ISOLATED}
SETTINGS = TrainingSettings(epochs=3, learning_rate=3e-3, checkpoint_every=3, seed=5)


def lessons_of(epoch: int, micro: int = 2):
    """Four steps of `4 / micro` micro-batches; another order every epoch."""
    prompts = prompts_of(1, [5, 9, 3, 12] * 4, schemas=2)
    items = [lesson(p, v, Layout.BRANCHES) for p, v in zip(prompts, values_of(prompts, 1), strict=True)]
    random.Random(epoch).shuffle(items)
    steps = [items[n : n + 4] for n in range(0, 16, 4)]
    return [[step[n : n + micro] for n in range(0, 4, micro)] for step in steps]


def trainer(folder: Path, settings: TrainingSettings = SETTINGS, **others) -> Trainer:
    torch.set_num_threads(1)
    return Trainer(tiny_model("llama").hf, others.pop("lessons", lessons_of), settings, folder, **WAY, **others)


def log_of(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / LOG).read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def weights(run: Trainer) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in run.parameters.items()}


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_the_loss_falls_and_the_log_says_so(tmp_path):
    run = trainer(tmp_path, replace(SETTINGS, epochs=6))
    progress = run.run()
    log = log_of(tmp_path)
    assert progress.step == len(log) == 24 and progress.stopped == "done"
    assert progress.scores == [None] * 6 and progress.best is None
    assert log[-1]["loss"] < 0.8 * log[0]["loss"]
    assert [line["step"] for line in log] == list(range(1, 25))


def test_accumulated_micro_batches_are_the_whole_batch(tmp_path):
    settings = replace(SETTINGS, epochs=1)
    runs = []
    for micro in (4, 1):
        runs.append(trainer(tmp_path / str(micro), settings, lessons=lambda e, m=micro: lessons_of(e, m)))
        runs[-1].run()
    whole, parts = (log_of(tmp_path / m) for m in ("4", "1"))
    for a, b in zip(whole, parts, strict=True):
        assert a["targets"] == b["targets"] and a["loss"] == pytest.approx(b["loss"], rel=1e-4)
    for name, value in runs[0].parameters.items():
        assert torch.allclose(value, runs[1].parameters[name], atol=2e-4), name


@pytest.mark.parametrize(("size", "micro"), [(2, 2), (3, 4), (2, 1)])
def test_peers_take_the_steps_of_one_process(tmp_path, size, micro):
    """Also where some process has no document of a micro-batch, and where it has none of a whole step."""
    settings = replace(SETTINGS, epochs=2)
    alone = trainer(tmp_path / "alone", settings, lessons=lambda e: lessons_of(e, micro), validate=Scores([0.4, 0.6]))
    expected = alone.run()
    context = torch.multiprocessing.spawn(peer, (size, tmp_path, settings, micro), nprocs=size, join=False)
    while not context.join(timeout=60):
        pass
    found = [torch.load(tmp_path / f"weights{rank}.pt") for rank in range(size)]
    assert all(same(found[0], other) for other in found[1:])
    for name, value in alone.parameters.items():
        assert torch.allclose(value, found[0][name], atol=2e-4), name
    for one, many in zip(log_of(tmp_path / "alone"), log_of(tmp_path / "peers"), strict=True):
        assert {k: many[k] for k in one if k in ("step", "targets", "score")} == {
            k: one[k] for k in one if k in ("step", "targets", "score")
        }
        assert many.get("loss", 0) == pytest.approx(one.get("loss", 0), rel=1e-3)
    assert (tmp_path / "progress").read_text() == str(expected)
    assert (tmp_path / "saved").read_text() == "00"


def peer(rank: int, size: int, folder: Path, settings: TrainingSettings, micro: int) -> None:
    torch.distributed.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=size)

    def save():
        with (folder / "saved").open("a") as file:
            file.write(str(rank))

    run = trainer(
        folder / "peers",
        settings,
        lessons=lambda e: lessons_of(e, micro),
        validate=Scores([0.4, 0.6]),
        save=save,
        peers=Group(torch.device("cpu")),
    )
    progress = run.run()
    torch.save(weights(run), folder / f"weights{rank}.pt")
    if rank == 0:
        (folder / "progress").write_text(str(progress))
    torch.distributed.destroy_process_group()


class Killed(BaseException):
    pass


def kill_at(step: int):
    def report(line):
        if line.get("step") == step and "loss" in line:
            raise Killed

    return report


@pytest.mark.parametrize("at", [1, 3, 4, 8, 11, 12])
def test_a_killed_run_resumed_equals_an_uninterrupted_one(tmp_path, at):
    """Before the first checkpoint, on one, at an epoch's end, between two, at the end."""
    scores = [0.5, 0.7, 0.6]
    whole = trainer(tmp_path / "whole", validate=Scores(scores))
    expected = whole.run()
    with pytest.raises(Killed):
        trainer(tmp_path / "killed", validate=Scores(scores), report=kill_at(at)).run()
    again = trainer(tmp_path / "killed", validate=Scores(scores[(at - 1) // 4 :]))
    assert again.run(resume=True) == expected
    assert same(weights(again), weights(whole))
    assert log_of(tmp_path / "killed") == log_of(tmp_path / "whole")


class Scores:
    """A validation that knows its scores beforehand."""

    def __init__(self, scores):
        self.left = list(scores)

    def __call__(self):
        return {"score": self.left.pop(0)}


def test_a_kill_during_validation(tmp_path):
    """The epoch's steps are not done again, its validation is; the weights kept are those of the best epoch."""

    def killed():
        raise Killed

    with pytest.raises(Killed):
        trainer(tmp_path, validate=killed).run()
    assert len(log_of(tmp_path)) == 4
    again, kept = trainer(tmp_path, validate=Scores([0.9, 0.7, 0.6])), []
    again._save = lambda: kept.append(weights(again))
    assert again.run(resume=True).best_epoch == 0
    assert [line["step"] for line in log_of(tmp_path) if "loss" in line] == list(range(1, 13))
    assert len(kept) == 1 and not same(kept[0], weights(again))


def test_sigkill(tmp_path):
    """The real thing, in a process of its own, while a line past the last checkpoint is in the log."""
    code = (
        "import os, sys, signal; from pathlib import Path; from tests.core.test_finetune import trainer\n"
        "def report(line):\n"
        "    if line['step'] == 8: os.kill(os.getpid(), signal.SIGKILL)\n"
        "trainer(Path(sys.argv[1]), report=report).run()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "killed")], timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert len(log_of(tmp_path / "killed")) == 8
    again, whole = trainer(tmp_path / "killed"), trainer(tmp_path / "whole")
    again.run(resume=True)
    whole.run()
    assert same(weights(again), weights(whole))
    assert log_of(tmp_path / "killed") == log_of(tmp_path / "whole")


def test_another_seed_of_lessons_gives_other_weights(tmp_path):
    """What the two tests above compare is not the same for every run."""
    a, b = trainer(tmp_path / "a"), trainer(tmp_path / "b", lessons=lambda epoch: lessons_of(epoch + 1))
    a.run(), b.run()
    assert not same(weights(a), weights(b))


def test_the_best_epoch_is_kept_and_patience_ends_training(tmp_path):
    kept = []
    settings = replace(SETTINGS, epochs=9, patience=2)
    run = trainer(tmp_path, settings, validate=Scores([0.2, 0.5, 0.5, 0.4, 0.9]), save=lambda: kept.append(1))
    progress = run.run()
    assert progress.scores == [0.2, 0.5, 0.5, 0.4] and progress.best == 0.5 and progress.best_epoch == 1
    assert len(kept) == 2 and progress.step == 16 and progress.stopped == "no better score in 2 epochs"


def test_max_steps_ends_training_and_its_schedule(tmp_path):
    kept = []
    run = trainer(tmp_path, replace(SETTINGS, max_steps=6), save=lambda: kept.append(1))
    assert run.run().step == 6 and kept == [1]
    rates = [line["learning_rate"] for line in log_of(tmp_path)]
    assert rates == sorted(rates, reverse=True) and rates[-1] < 0.1 * rates[0]


@pytest.mark.parametrize("decay, half", [("cosine", 0.5), ("linear", 0.5)])
def test_the_rate_warms_up_and_decays(tmp_path, decay, half):
    run = trainer(tmp_path, replace(SETTINGS, learning_rate=1.0, warmup=0.2, decay=decay))
    rates = [run.learning_rate(step, 50) for step in range(50)]
    assert rates[:10] == pytest.approx([(n + 1) / 10 for n in range(10)])
    assert rates[10] == 1.0 and rates[30] == pytest.approx(half) and 0 < rates[49] < 0.03
    assert (rates[20] > 0.8) == (decay == "cosine")


class TestRefusals:
    def test_a_finished_folder_without_resume(self, tmp_path):
        trainer(tmp_path, replace(SETTINGS, max_steps=1)).run()
        with pytest.raises(SettingsError, match=f"{CHECKPOINT} exists: resume"):
            trainer(tmp_path, replace(SETTINGS, max_steps=1)).run()

    @pytest.mark.parametrize("change", [{"settings": replace(SETTINGS, seed=6)}, {"data": "another file"}])
    def test_a_checkpoint_of_another_run(self, tmp_path, change):
        with pytest.raises(Killed):
            trainer(tmp_path, report=kill_at(4)).run()
        with pytest.raises(SettingsError, match="made with other settings"):
            trainer(tmp_path, **change).run(resume=True)

    @pytest.mark.parametrize(
        "wrong",
        [{"epochs": 0}, {"learning_rate": 0.0}, {"warmup": 1.0}, {"decay": "steps"}, {"precision": "int8"}],
    )
    def test_settings(self, wrong):
        with pytest.raises(ValueError):
            TrainingSettings(**wrong)

    def test_a_gradient_that_is_not_finite(self, tmp_path):
        run = trainer(tmp_path)
        with torch.no_grad():
            run.hf.model.norm.weight.fill_(float("nan"))
        with pytest.raises(FloatingPointError, match="step 0"):
            run.run()
