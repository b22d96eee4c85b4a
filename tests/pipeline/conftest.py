from __future__ import annotations

from collections.abc import Iterator

import pytest
import ray


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One small Ray for all tests of a module."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200_000_000)
    yield
    ray.shutdown()
