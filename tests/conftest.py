"""Where tests find data that is not part of the repository: benchmark files and real catalogs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("repository", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repository")

# Spinning OpenMP threads of several test processes on few cores starve each other; read when torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

REPOSITORY = Path(__file__).resolve().parent.parent


def unable(why: str) -> NoReturn:
    """Skips the test: this machine lacks a program or a right that every machine may have. With HPD_NO_SKIP, which
    `.ci/run` sets, the test fails, or whole modules would be left out without anybody seeing it."""
    if os.environ.get("HPD_NO_SKIP"):
        pytest.fail(f"{why} (HPD_NO_SKIP is set: no skip)", pytrace=False)
    pytest.skip(why)


def data_folder() -> Path:
    """The folder named by HPD_DATA; without it, the one that lies beside the checkout in development."""
    return Path(os.environ.get("HPD_DATA") or REPOSITORY.parent / "shared" / "data")


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def real_data() -> Callable[[str], Path]:
    """real_data("ave/oa-mine/test.jsonl") -> its path; the test is skipped where it is not there."""

    def find(relative: str) -> Path:
        path = data_folder() / relative
        if not path.exists():
            pytest.skip(f"needs {relative} in the folder that HPD_DATA names")
        return path

    return find


@pytest.fixture(scope="session")
def reference_scorer() -> Path:
    """The benchmark's reference scorer, which lies in `tools` beside the data folder."""
    path = data_folder().parent / "tools" / "score_ave.py"
    if not path.exists():
        pytest.skip("needs the reference scorer in the folder `tools` beside the one that HPD_DATA names")
    return path
