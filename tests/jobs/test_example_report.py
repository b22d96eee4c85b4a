"""How the example report is made: its command lines exist, and its page is looked at in a real browser."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer

from jobs.cli import app
from jobs.report import write_report
from tests.jobs.outputs import write_benchmark, write_output, write_plan
from tests.jobs.test_report import facts_of, random_sample

#: Writes down how it was called, and makes the file that is looked for.
FAKE = """#!{python}
import json, pathlib, sys
with open({calls!r}, "a") as calls:
    calls.write(json.dumps([pathlib.Path(sys.argv[0]).name, *sys.argv[1:]]) + chr(10))
if sys.argv[1:2] == ["benchmark"]:
    folder = pathlib.Path(sys.argv[sys.argv.index("--output") + 1])
    folder.mkdir()
    (folder / "benchmark.json").touch()
"""


@pytest.fixture
def screenshot(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("screenshot", repository / "docs/example-report/screenshot.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "screenshot", module)  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_the_script_runs_commands_that_exist(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("hpd", "python"):
        (tmp_path / name).write_text(FAKE.format(python=sys.executable, calls=str(tmp_path / "calls")))
        (tmp_path / name).chmod(0o755)
    environment = dict(os.environ) | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "WORK": str(tmp_path / "work")}

    def calls() -> list[list[str]]:
        (tmp_path / "calls").unlink(missing_ok=True)
        command = ["docs/example-report/make.sh", "catalogs/a b"]
        done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]

    checked, *made = calls()
    assert checked == ["python", "docs/example-report/screenshot.py"]  # before 25 minutes of work
    assert [call[1] for call in made[:-1]] == ["plan", "extract", "extract", "extract", "benchmark", "report"]
    monkeypatch.chdir(repository)  # where the configuration is
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for _, name, *arguments in made[:-1]:
        commands[name].make_context(name, list(arguments))  # raises where an option does not exist
        assert "catalogs/a b" in arguments or name == "report"
    seeds = [call[call.index("--seed") + 1] for call in made[1:4]]
    outputs = [call[call.index("--output") + 1] for call in made[1:4]]
    assert seeds == ["1", "2", "3"] and made[5][2:5] == outputs
    units = [int(call[call.index("--sample-units") + 1]) for call in made[1:4]]
    assert sum(units) >= 30  # fewer give no interval
    assert made[-1][1:] == [f"docs/example-report/{name}" for name in ("screenshot.py", "report.html", "report.png")]
    again = [call[1] for call in calls()[1:-1]]
    assert again == ["plan", "extract", "extract", "extract", "report"]  # gone on with


def test_what_a_picture_needs_is_missed_at_once(
    repository: Path, tmp_path: Path, screenshot: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, repository / "docs/example-report/screenshot.py"]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 1 and "no browser on the path: one of chromium" in done.stderr
    monkeypatch.setattr(screenshot, "browser", lambda: str(tmp_path / "none"))
    assert screenshot.missing().startswith("no picture can be taken: ")


def test_the_committed_example_is_what_its_facts_say(repository: Path, tmp_path: Path) -> None:
    """A report that was made by other code tells other things than the page about it."""
    example = repository / "docs/example-report"
    if not (example / "report.json").exists():
        pytest.skip("make example-report has not been run")
    facts = json.loads((example / "report.json").read_text(encoding="utf-8"))
    write_report(tmp_path, facts)
    for name in ("report.md", "report.html"):
        assert (tmp_path / name).read_text() == (example / name).read_text(), f"{name} was told by other code"
    assert facts["sampling"]["units"] >= 30 and facts["sampling"]["interval"] and facts["spread"]["runs"] >= 3
    assert facts["benchmark"]["same_model"] and facts["documents"] == 500e6
    assert not re.findall(r'"/\w+/', (example / "report.json").read_text(encoding="utf-8")), "a path of a machine"
    assert "docs/example-report/report.png" in (repository / "README.md").read_text(encoding="utf-8")


def test_the_page_fits_a_phone_and_asks_for_nothing(screenshot: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("playwright.sync_api", reason="needs playwright, of the extra `dev`")
    if screenshot.browser() is None:
        pytest.skip("needs a Chromium on the path (Debian: chromium)")
    runs = [write_output(tmp_path / f"run{n}", seed=n, sample=random_sample(40, n)) for n in range(3)]
    options = ["--plan", write_plan(tmp_path / "plan.json"), "--compare", write_benchmark(tmp_path / "benchmark.json")]
    facts_of(tmp_path / "out", *runs, *options)
    page, picture = tmp_path / "out/report.html", tmp_path / "out/report.png"
    seen = screenshot.look(page, picture)
    assert seen.problems == [] and seen.title.startswith("Cost of 500,000,000 documents")
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 50_000

    page.write_text('<div style="width: 900px">wide</div><img src="http://127.0.0.1:1/x.png"><script>x</script>')
    found = screenshot.look(page, tmp_path / "other.png").problems
    assert "pixels wide on a phone" in found[0] and found[1] == "asks for http://127.0.0.1:1/x.png"
    assert "x is not defined" in found
