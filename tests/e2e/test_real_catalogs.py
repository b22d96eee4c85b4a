"""The main job with the real default model over real catalogs: every row once, inputs untouched, SIGKILL survived."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.manifest import OutputFolder
from pipeline.storage import Storage
from pipeline.verify import verify

ROWS, UNIT = 12, 4
#: Documents of these catalogs take up to 4,000 tokens: cut short here, which marks rows and changes nothing else.
SMALL = ["decode.max_document_tokens=96", "pool.threads=1", f"units.rows={UNIT}"]
SMALL += ["limits.max_error_rate=1"]  # these catalogs have rows without text

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def command(config: Path, source: Path, output: Path) -> list[str]:
    line = [str(Path(sys.executable).parent / "hpd"), "extract", "--config", str(config), "--input", str(source)]
    return [*line, "--output", str(output), "--limit", str(ROWS), *(x for s in SMALL for x in ("--set", s)), "--json"]


def finish(line: list[str]) -> dict:
    done = subprocess.run(line, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def kill_after_first_commit(line: list[str], output: Path) -> int:
    """Units committed when the driver was killed. Its workers may live on for seconds, as after a real crash."""
    driver = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    records = output / "_manifest" / "units"
    deadline = time.monotonic() + 240
    try:
        while driver.poll() is None and time.monotonic() < deadline:
            if records.exists() and any(records.glob("*.json")):
                break
            time.sleep(0.05)
        assert driver.poll() is None, "the driver ended before it could be killed"
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
    assert not (output / "_SUCCESS").exists()
    return len(list(records.glob("*.json")))


def committed(output: Path) -> pa.Table:
    """The committed rows in the order of the manifest."""
    listing = json.loads((output / "_manifest" / "job.json").read_text())
    return pa.concat_tables(pq.read_table(output / o["data"]) for o in listing["objects"])


@pytest.mark.parametrize("catalog", ["amazon-2023", "camera-listings", "promap"])
def test_a_killed_and_resumed_run_equals_an_undisturbed_one(
    catalog: str, tmp_path: Path, repository: Path, real_data: Callable[[str], Path]
) -> None:
    source, config = real_data(f"catalogs/{catalog}"), repository / "conf" / f"{catalog}.yaml"
    whole, killed = tmp_path / "whole", tmp_path / "killed"

    facts = finish(command(config, source, whole))

    assert facts["rows_in"] == ROWS == facts["rows_ok"] + facts["rows_error"]
    rows = committed(whole)
    first = pq.read_table(sorted(source.glob("*.parquet"))[0]).slice(0, ROWS)
    assert rows.num_rows == ROWS
    for name in first.column_names:  # types of one file may widen to those of all files; the values stay
        assert rows.column(name).to_pylist() == first.column(name).to_pylist(), name
    assert (whole / "_SUCCESS").exists()

    before = kill_after_first_commit(command(config, source, killed), killed)
    assert 1 <= before < ROWS // UNIT
    again = finish(command(config, source, killed))
    assert 0 < again["model_calls"] < facts["model_calls"]
    assert committed(killed).equals(rows)
    for output in (whole, killed):
        assert verify(OutputFolder(str(output), Storage()), Storage()).findings == ()
    assert sorted(p.name for p in (killed / "data").iterdir()) == sorted(p.name for p in (whole / "data").iterdir())
