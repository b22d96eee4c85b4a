from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest
import ray

import pipeline.drive
import pipeline.stream


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One small Ray for all tests of a module."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200_000_000)
    yield
    ray.shutdown()


@pytest.fixture(autouse=True)
def no_ray_without_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run starts no Ray where a test has put something else in the place of `drive`: nothing would run in it."""
    drive, start = pipeline.drive.drive, pipeline.stream.cluster

    def started(*arguments: object) -> AbstractContextManager[None]:
        return start(*arguments) if pipeline.drive.drive is drive else nullcontext()  # type: ignore[arg-type]

    monkeypatch.setattr(pipeline.stream, "cluster", started)
