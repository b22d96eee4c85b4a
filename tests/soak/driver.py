"""The soak's driver, which is there to be killed: `python -m tests.soak.driver PLAN EVENTS`."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

from jobs.cli import app
from tests.soak.job import Plan

if __name__ == "__main__":
    plan = Plan.read(Path(sys.argv[1]))
    # The configuration's model, texts and schemas are all that is not the command's own.
    with mock.patch("jobs.extract.compose", lambda *_, **__: plan.job()):
        app(["extract", "--config", "conf/quickstart.yaml", "--log-file", sys.argv[2], "--json"])
