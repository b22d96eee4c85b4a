"""Drivers of an output without Ray, as processes of their own that a test may stop, kill or let race. Forked, so that
they need not import everything again."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from unittest import mock

from pipeline.job import JobSpec
from pipeline.lease import Lease, LeaseLostError, Pace, held
from pipeline.manifest import OutputFolder
from pipeline.run import run
from pipeline.storage import Storage
from tests.pipeline.helpers import inline

#: Long enough for a busy machine to renew in time, short enough to wait for.
QUICK = Pace(seconds=3.0, renew=0.3, poll=0.05)
FORK = multiprocessing.get_context("fork")


@contextmanager
def holding(output: OutputFolder) -> Iterator[tuple[BaseProcess, Connection]]:
    """A driver that holds the lease of `output` until something is sent, and answers whether it still had it."""
    here, there = FORK.Pipe()
    driver = FORK.Process(target=_hold, args=(output, there))
    driver.start()
    try:
        assert here.poll(60) and here.recv() == "held"
        yield driver, here
    finally:
        driver.kill()
        driver.join()


def _hold(output: OutputFolder, pipe: Connection) -> None:
    with mock.patch("pipeline.lease.PACE", QUICK), held(output, lambda _: None) as lease:
        pipe.send("held")
        pipe.recv()
        try:
            lease.confirm()
            pipe.send("still held")
        except LeaseLostError as e:
            pipe.send(f"lost: {e}")


@contextmanager
def without_lease() -> Iterator[None]:
    """Every driver may begin, and is never told that another one has."""
    free = mock.create_autospec(Lease, instance=True, waited=False)

    @contextmanager
    def everybody(*_: object) -> Iterator[Lease]:
        yield free

    with mock.patch("pipeline.run.held", everybody), mock.patch("pipeline.compact.held", everybody):
        yield


def race(spec: JobSpec, seed: int) -> None:
    """Runs a job whose lease does not work, with a little sleep before every object, so that writers meet."""
    chance, create = random.Random(seed), Storage.create

    def slowly(self: Storage, uri: str, data: bytes) -> bool:
        time.sleep(chance.random() / 20)
        return create(self, uri, data)

    with (
        without_lease(),
        mock.patch.object(Storage, "create", slowly),
        mock.patch("pipeline.drive.drive", inline),
        mock.patch("ray.is_initialized", lambda: True),
    ):
        summary = run(spec)
    assert summary.complete, summary.failures
