"""A driver to be killed: runs the job of `python -m tests.pipeline.driver FOLDER` in a Ray of its own, with a second
word as `hpd extract` does."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

from jobs.cli import app
from pipeline.job import JobSpec
from pipeline.run import run
from tests.pipeline.fakes import HashDecoders
from tests.pipeline.helpers import job


def slow_job(folder: Path, log: str) -> JobSpec:
    return job(folder, folder / "in", decoder_factory=HashDecoders(folder / log, delay=0.3))


if __name__ == "__main__":
    spec = slow_job(Path(sys.argv[1]), "first.log")
    if len(sys.argv) == 2:
        run(spec)
    else:
        with mock.patch("jobs.extract.compose", lambda *_, **__: spec):
            app(["extract", "--config", "conf/quickstart.yaml"])
