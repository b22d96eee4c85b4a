"""Several processes of a Ray cluster that train one model. The one file that knows Ray Train."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jobs.training.student import Work, train
from pipeline.job import JobError

if TYPE_CHECKING:
    from hpd_core.finetune import Progress


#: How long workers wait for one another: worker 0 alone validates, and Ray's half an hour would end a run in it.
TIMEOUT_SECONDS = 4 * 60 * 60


def train_together(work: Work, workers: int, gpus: float, *, resume: bool = False) -> Progress:
    """`train` on so many Ray Train workers with so many GPUs each; steps are those of one process.

    The folder must be one that all of them see. Workers wait for one another, as for a validation by the first, up to
    `TIMEOUT_SECONDS`. Raises JobError with the reason of the worker that failed.
    """
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    if not ray.is_initialized():
        ray.init(log_to_driver=True, logging_level="warning")
    cpus = float(ray.cluster_resources().get("CPU", 0))
    each = {"CPU": min(float(work.threads or 1), cpus / workers)} | ({"GPU": gpus} if gpus else {})
    trainer = TorchTrainer(
        _worker,
        train_loop_config={"work": work, "resume": resume},
        torch_config=TorchConfig(timeout_s=TIMEOUT_SECONDS),
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=gpus > 0, resources_per_worker=each),
        run_config=RunConfig(name="workers", storage_path=str(work.folder)),
    )
    try:
        trainer.fit()
    except Exception as error:  # Ray Train wraps what a worker raised, several layers deep
        raise JobError(f"training on {workers} workers failed: {_reason(error)}") from error
    finally:
        ray.shutdown()
    from hpd_core.finetune import stored_progress

    return stored_progress(
        work.folder
    )  # Ray Train 2.60 hands back no metrics that came without a checkpoint of its own


def _worker(config: dict[str, Any]) -> None:
    from ray.train.torch import get_device

    from hpd_core.peers import Group

    device = get_device()
    assert not isinstance(device, list), "a worker has one device"
    train(replace(config["work"], device=str(device)), Group(device), resume=config["resume"])


def _reason(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
