"""docs/getting-started.md from its first block to its last, in an empty folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import pipeline.drive
from jobs.cli import app
from tests.core.tiny_folder import write_tiny_model
from tests.jobs.written import Block, blocks
from tests.pipeline.helpers import inline


@pytest.fixture
def page(repository: Path) -> list[Block]:
    return blocks(repository / "docs" / "getting-started.md")


def follow(page: list[Block], run: Callable[[list[str]], None], python: Callable[[str], None]) -> None:
    """Writes the YAML blocks into the files that they name, and does the others, in their order."""
    for block in page:
        if block.language == "yaml":
            name = block.text.partition("\n")[0].removeprefix("# ")
            Path(name).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            python(block.text)
        for words in block.commands:
            run(words)


def check_what_it_left() -> None:
    table = pq.read_table("enriched/data").to_pylist()
    assert [row["sku"] for row in table] == [1, 2, 3, 4] and table[3]["hpd_status"] == "no_text"
    assert {"brand", "model", "socket", "bulb_count", "shade"} < set(table[0])
    report = json.loads(Path("cost/report.json").read_text())
    assert report["documents"] == 1e6 and "fewer than 30" in report["sampling"]["why"]


def test_the_page_is_followed_with_a_tiny_model_and_without_ray(
    page: list[Block],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    base = write_tiny_model(tmp_path / "tiny")
    tiny = [
        f"--set=model={{source: {base}, prompting: plain}}",
        "--set=pool.threads=1",
        "--set=decode.max_value_tokens=4",
    ]
    monkeypatch.setattr(pipeline.drive, "drive", inline)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    done = []

    def run(words: list[str]) -> None:
        done.append(words[:2])
        if words[0] == "hpd":
            result = CliRunner().invoke(
                app, [*words[1:], *(tiny if words[1] in ("validate", "plan", "extract") else [])]
            )
            assert result.exit_code == 0, f"{' '.join(words)}\n{result.output}"
            if words[1] == "validate":
                assert "Lumiora desk lamp Aria, E27, black metal\n- dimmable\n- max. 40 W" in result.stdout

    follow(page, run, lambda code: exec(compile(code, "getting-started.md", "exec"), {}))
    names = ["validate", "plan", "extract", "extract", "verify", "report", "plan"]
    assert done == [["make", "run"], *(["hpd", name] for name in names)]
    check_what_it_left()
    assert "no_text" in capsys.readouterr().out  # what the page prints


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_page_is_followed_as_it_stands(page: list[Block], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands in a shell, the default model, Ray; all but `make run`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/hpd").write_text(f'#!/bin/sh\nexec {sys.executable} -m jobs.cli "$@"\n')
    (tmp_path / "bin/hpd").chmod(0o755)
    repository = Path(__file__).resolve().parents[2]
    environment = os.environ | {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "PYTHONPATH": str(repository)}

    def shell(words: list[str]) -> None:
        if words[0] != "make":
            done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=280)
            assert done.returncode == 0, f"{' '.join(words)}\n{done.stderr[-3000:]}"

    follow(page, shell, lambda code: shell([sys.executable, "-c", code]))
    check_what_it_left()
    assert pq.read_table("enriched/data").to_pylist()[0]["brand"] == "Lumiora"
