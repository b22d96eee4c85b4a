"""How Ray Train is asked for workers; that they train what one process trains is in test_finetune.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.training.workers import train_together


class Asked(Exception):
    """Instead of training."""


def test_workers_wait_longer_for_one_another_than_a_validation_takes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import ray
    import ray.train.torch

    asked: dict[str, Any] = {}

    def trainer(*_: Any, **options: Any) -> Any:
        asked.update(options)
        raise Asked

    monkeypatch.setattr(ray.train.torch, "TorchTrainer", trainer)
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0})
    work: Any = SimpleNamespace(threads=1, folder=tmp_path)
    with pytest.raises(Asked):
        train_together(work, 2, 0)
    assert asked["torch_config"].timeout_s >= 4 * 60 * 60
