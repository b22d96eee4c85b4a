from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.world import World, world


@pytest.fixture(scope="session")
def cluster_with_s3() -> Iterator[World]:
    """One Ray cluster and S3 server, apart from everything, for all tests of the session."""
    with world() as made:
        yield made
