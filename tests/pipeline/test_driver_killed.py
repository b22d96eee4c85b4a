"""SIGKILL of the driver in the middle, then a rerun: the output equals that of an undisturbed run."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.run import run
from tests.pipeline.driver import slow_job
from tests.pipeline.fakes import HashDecoders
from tests.pipeline.helpers import assert_exact, input_table, output_files, shards

ROOT = Path(__file__).parents[2]


def test_a_killed_driver_loses_and_doubles_nothing(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    source = shards(tmp_path / "in", 3, rows=80, row_group_size=20)
    command = [sys.executable, "-m", "tests.pipeline.driver", str(tmp_path)]
    driver = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    records = tmp_path / "out/_manifest/units"
    try:
        deadline = time.monotonic() + 120
        while driver.poll() is None and time.monotonic() < deadline:
            if records.exists() and len(list(records.glob("*.json"))) >= 2:
                break
            time.sleep(0.02)
        assert driver.poll() is None, "the driver ended before it could be killed"
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    committed = len(list(records.glob("*.json")))
    assert 2 <= committed < 12 and not (tmp_path / "out/_SUCCESS").exists()

    request.getfixturevalue("cluster")  # only now: two Rays would share two CPUs
    summary = run(slow_job(tmp_path, "second.log"))
    assert summary.complete and summary.rows_in == 240
    assert_exact(tmp_path / "out", input_table(source))
    decoded = sum(HashDecoders(tmp_path / "second.log").calls())
    assert 0 < decoded <= 240 - 20 * committed  # what was committed is not computed again

    undisturbed = replace(slow_job(tmp_path, "third.log"), output=str(tmp_path / "undisturbed"))
    assert run(undisturbed).complete
    killed, whole = output_files(tmp_path / "out"), output_files(tmp_path / "undisturbed")
    assert [p.name for p in killed] == [p.name for p in whole]
    assert all(pq.read_table(a).equals(pq.read_table(b)) for a, b in zip(killed, whole, strict=True))
