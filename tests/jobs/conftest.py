from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as dataset
import pytest

from tests.pipeline.conftest import no_ray_without_a_stream

__all__ = ["no_ray_without_a_stream"]  # a fixture of tests/pipeline


@pytest.fixture(scope="session")
def sample(repository: Path) -> pa.Table:
    """The sample catalog that ships."""
    return dataset.dataset(repository / "samples" / "catalog").to_table()
