from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as dataset
import pytest


@pytest.fixture(scope="session")
def sample(repository: Path) -> pa.Table:
    """The sample catalog that ships."""
    return dataset.dataset(repository / "samples" / "catalog").to_table()
