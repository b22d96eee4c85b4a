"""`hpd verify` as people and schedulers start it: exit codes, the report, the JSON object, and what it does without."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import pipeline.drive
from jobs.cli import app
from pipeline.run import run
from tests.pipeline.helpers import inline, job, shards


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pipeline.drive, "drive", inline)
    assert run(job(tmp_path, shards(tmp_path / "in", 2))).complete
    return tmp_path / "out"


def test_the_report_the_object_and_what_is_not_imported(out: Path, repository: Path) -> None:
    script = (
        "import sys\nfrom jobs.cli import app\n"
        "app(sys.argv[1:], standalone_mode=False)\n"
        "assert not {'torch', 'transformers', 'ray'} & set(sys.modules), sorted(sys.modules)\n"
    )
    command = [sys.executable, "-c", script, "verify", str(out), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=repository)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["verdict"], facts["rows_in"], facts["rows_compared"], facts["findings"]) == ("verified", 80, 80, [])
    result = CliRunner().invoke(app, ["verify", str(out)])
    assert result.exit_code == 0 and "verified" in result.stdout and "80 rows in 6 units" in result.stdout


def test_exit_codes(out: Path, tmp_path: Path) -> None:
    def code(*options: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["verify", str(out), *options])
        return result.exit_code, result.stderr

    shutil.move(tmp_path / "in", tmp_path / "moved")
    assert code()[0] == 2 and "does not exist" in code()[1]
    assert code("--no-input")[0] == 0 and code("--input", str(tmp_path / "moved"), "--sample", "2")[0] == 0
    assert "1 --input for" not in code("--input", str(tmp_path / "moved"))[1]
    status, error = code("--input", str(tmp_path / "moved"), "--input", str(tmp_path))
    assert status == 2 and "2 --input for the job's 1" in error
    assert code("--no-input", "--input", "x")[0] == 2
    (out / "_SUCCESS").unlink()
    status, error = code("--no-input")
    assert status == 4 and "_SUCCESS: is not there" in error
    (out / "_SUCCESS").touch()
    (out / "data/stray.parquet").write_bytes(b"x")
    status, error = code("--no-input")
    assert status == 5 and f"damage: {out}/data/stray.parquet: is not listed" in error
    result = CliRunner().invoke(app, ["verify", str(tmp_path)])
    assert result.exit_code == 2 and "not the output of a job" in result.stderr


def test_many_findings_are_cut_for_people_only(out: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for number in range(60):
        (out / f"data/{number}.txt").touch()
    result = CliRunner().invoke(app, ["verify", str(out), "--json"])
    assert result.exit_code == 5 and "… and 10 more; --json has all of them" in result.stderr
    assert len(json.loads(capfd.readouterr().out.splitlines()[-1])["findings"]) == 60


def test_storage_options_come_from_the_job_file(out: Path, tmp_path: Path) -> None:
    config = tmp_path / "job.yaml"
    config.write_text("text: {template: '{{ title }}'}\nschemas: {define: {a: {attributes: [Brand]}}, default: a}\n")
    assert CliRunner().invoke(app, ["verify", str(out), "--config", str(config)]).exit_code == 0
    result = CliRunner().invoke(app, ["verify", str(out), "--config", str(config), "--set", "input.storag={}"])
    assert result.exit_code == 2 and "storage" in result.stderr


@pytest.mark.parametrize("command", ["verify", "compact"])
def test_an_override_without_a_configuration_is_refused(out: Path, command: str) -> None:
    result = CliRunner().invoke(app, [command, str(out), "--set", "output.storage.anon=true"])
    assert result.exit_code == 2 and "--set output.storage.anon=…: there is no configuration" in result.stderr
