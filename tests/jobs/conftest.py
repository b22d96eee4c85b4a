from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.dataset as dataset
import pytest

from tests.jobs import fake_airflow
from tests.jobs.fake_programs import FakeHpd, FakeKubectl
from tests.pipeline.conftest import no_ray_without_a_stream

__all__ = ["no_ray_without_a_stream"]  # a fixture of tests/pipeline


@pytest.fixture(scope="session")
def sample(repository: Path) -> pa.Table:
    """The sample catalog that ships."""
    return dataset.dataset(repository / "samples" / "catalog").to_table()


@pytest.fixture
def hpd(tmp_path: Path) -> FakeHpd:
    return FakeHpd(tmp_path)


@pytest.fixture
def commands(hpd: FakeHpd, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """hpd_commands.py under a stand-in for Airflow; `tasks`, `catalog` and `kuberay` are the files that import it."""
    for name, module in fake_airflow.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("HPD_COMMAND", str(hpd.path))
    monkeypatch.setenv("HPD_RETRY_SECONDS", "7")
    yield fake_airflow.load("hpd_commands")
    for name in fake_airflow.FILES:
        sys.modules.pop(name, None)


@pytest.fixture
def tasks(commands: ModuleType) -> ModuleType:
    fake_airflow.load("hpd_ray_trigger")
    return fake_airflow.load("hpd_tasks")


@pytest.fixture
def catalog(tasks: ModuleType) -> ModuleType:
    return fake_airflow.load("hpd_catalog")


@pytest.fixture
def kuberay(tasks: ModuleType) -> ModuleType:
    return fake_airflow.load("hpd_kuberay")


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeKubectl:
    folder = tmp_path / "path"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return FakeKubectl(folder)
