"""SIGKILL and SIGTERM of the driver in the middle, then a rerun: the output equals that of an undisturbed run."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.lease import LEASE
from pipeline.run import run
from tests.pipeline.driver import slow_job
from tests.pipeline.fakes import HashDecoders
from tests.pipeline.helpers import assert_exact, inline, input_table, output_files, shards

ROOT = Path(__file__).parents[2]


def wait_for_units(driver: subprocess.Popen[bytes], records: Path) -> None:
    """Returns once two units of the running driver are committed."""
    deadline = time.monotonic() + 120
    while driver.poll() is None and time.monotonic() < deadline:
        if records.exists() and len(list(records.glob("*.json"))) >= 2:
            break
        time.sleep(0.02)
    assert driver.poll() is None, "the driver ended before it could be killed"


def test_a_terminated_driver_drops_what_it_has_in_hand_and_can_be_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = shards(tmp_path / "in", 3, rows=80, row_group_size=20)
    command = [sys.executable, "-m", "tests.pipeline.driver", str(tmp_path), "command"]
    with open(tmp_path / "said", "wb") as said:
        driver = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=said)
    records = tmp_path / "out/_manifest/units"
    try:
        wait_for_units(driver, records)
        assert (tmp_path / "out" / LEASE).exists()
        driver.send_signal(signal.SIGTERM)
        assert driver.wait(60) == 4
    finally:
        driver.kill()
        driver.wait()
    assert "terminated: what is committed stays; run the same command again" in (tmp_path / "said").read_text()
    committed = len(list(records.glob("*.json")))
    assert 2 <= committed < 12 and not (tmp_path / "out/_SUCCESS").exists() and not (tmp_path / "out" / LEASE).exists()

    monkeypatch.setattr("pipeline.drive.drive", inline)
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    assert run(slow_job(tmp_path, "second.log")).complete
    assert_exact(tmp_path / "out", input_table(source))
    assert sum(HashDecoders(tmp_path / "second.log").calls()) == 240 - 20 * committed


def test_a_killed_driver_loses_and_doubles_nothing(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    source = shards(tmp_path / "in", 3, rows=80, row_group_size=20)
    command = [sys.executable, "-m", "tests.pipeline.driver", str(tmp_path)]
    driver = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    records = tmp_path / "out/_manifest/units"
    try:
        wait_for_units(driver, records)
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
