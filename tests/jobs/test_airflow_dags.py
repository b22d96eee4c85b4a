"""The DAG files without Airflow: what they import, the command lines they make, and what an exit code becomes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import typer

from jobs.cli import app
from tests.jobs import fake_airflow
from tests.jobs.fake_airflow import AirflowException, AirflowFailException, AirflowSkipException, context
from tests.jobs.fake_programs import FakeHpd

VALIDATED = {"files": 2, "units": 4, "rows": 3600, "rows_left": 3600}


#: Parses each file as Airflow does and prints {file: DAGs found in it}. Imports nothing but the standard library, the
#: stand-in for Airflow and the files named in the arguments.
PARSE = """
import json, sys
from importlib.abc import MetaPathFinder
class Blocked(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] not in (*sys.stdlib_module_names, "tests", "airflow", *sys.argv[1:]):
            raise ImportError(f"{name} is not to be imported")
sys.meta_path.insert(0, Blocked())
from tests.jobs import fake_airflow
sys.modules.update(fake_airflow.modules())
sys.path.append(str(fake_airflow.FOLDER))
found = {name: fake_airflow.found(name) for name in sys.argv[1:]}
print(json.dumps([found, sys.modules["hpd_tasks"].waiting is not None]))
"""
DAG_FOLDER = ["hpd_catalog", "hpd_commands", "hpd_kuberay", "hpd_tasks"]


@pytest.mark.parametrize("plugins", [["hpd_ray_trigger"], []], ids=["plugin", "no plugin"])
def test_parsing_takes_no_package_and_finds_each_dag_in_one_file(repository: Path, plugins: list[str]) -> None:
    """No torch, no ray, nothing of this project; the plugin may be missing."""
    assert sorted([*DAG_FOLDER, "hpd_ray_trigger"]) == fake_airflow.FILES
    files = [*plugins, *DAG_FOLDER]
    command = [sys.executable, "-S", "-c", PARSE, *files]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    dags = {"hpd_catalog": ["hpd_catalog"], "hpd_kuberay": ["hpd_kuberay"]}
    assert json.loads(done.stdout) == [{name: dags.get(name, []) for name in files}, bool(plugins)]


def test_airflow_looks_for_no_dags_in_what_dags_import() -> None:
    lines = (fake_airflow.FOLDER / ".airflowignore").read_text().splitlines()
    ignored = {line.removesuffix(".py") for line in lines if not line.startswith("#")}
    assert ignored == {"hpd_commands", "hpd_tasks"}


def test_the_page_says_which_files_to_copy_where(repository: Path) -> None:
    page = (repository / "docs/airflow.md").read_text()
    _, dags, plugins = re.split(r"^- into the (?:DAG folder|plugins folder)", page, maxsplit=2, flags=re.MULTILINE)
    assert set(re.findall(r"`(hpd_\w+)\.py`", dags)) == set(DAG_FOLDER) and "`.airflowignore`" in dags
    assert re.findall(r"`(hpd_\w+)\.py`", plugins.partition("\n")[0]) == ["hpd_ray_trigger"]


def test_the_dag_is_a_chain_whose_tasks_are_tried_again(catalog: ModuleType, kuberay: ModuleType) -> None:
    tasks = catalog.dag.tasks
    assert {name: task.downstream for name, task in tasks.items()} == {
        "plan": ["extract"],
        "extract": ["verify"],
        "verify": ["report"],
        "report": [],
    }
    assert list(kuberay.dag.tasks) == ["plan", "extract", "verify"]
    for module in (catalog, kuberay):
        settings = module.dag.settings
        assert settings["default_args"]["retries"] == 3 and settings["default_args"]["retry_delay"].seconds == 7
        assert settings["max_active_runs"] == 1 and settings["catchup"] is False
        assert module.dag.tasks["extract"].settings["execution_timeout"].total_seconds() == 24 * 3600


def test_the_command_lines_are_options_of_the_command(catalog: ModuleType, commands: ModuleType) -> None:
    params = catalog.dag.defaults | {
        "schema": "/a b/schemas.yaml",
        "limit": 5,
        "set": ["pool.max_size=4"],
        "verify_sample": 3,
        "rows_per_second": 20.5,
        "report": "/reports/{partition}",
    }
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    made = {
        "validate": commands.validate_command(params, "2026-11-30"),
        "submit": commands.follow_command(params, "2026-11-30"),
        "verify": commands.verify_command(params, "2026-11-30"),
        "plan": commands.plan_command(params, "2026-11-30"),
        "report": commands.report_command(params, "2026-11-30"),
    }
    for name, line in made.items():
        assert line[0].endswith("/hpd") and line[1] == name and "{partition}" not in " ".join(line)
        known[name].make_context(name, line[2:])  # raises where an option does not exist
    job = ["--config", "/opt/hpd/job.yaml", "--input", "s3://bucket/catalog/date=2026-11-30/"]
    job += ["--output", "s3://bucket/enriched/date=2026-11-30/", "--set", 'schemas.file="/a b/schemas.yaml"']
    job += ["--limit", "5", "--set", "pool.max_size=4"]
    alone = [*job, "--address", "http://127.0.0.1:8265", "--stop-on-interrupt", "--json"]
    assert made["submit"][2:] == [*alone, "--follow", "--every", "30"]
    assert commands.submit_command(params, "2026-11-30")[2:] == alone
    attached = commands.follow_command(params, "2026-11-30", "hpd-feed-1")
    assert attached == [*made["submit"], "--attach", "hpd-feed-1"]
    known["submit"].make_context("submit", attached[2:])
    assert made["validate"][2:] == [*job, "--set", "run.ray_address=auto", "--json"]
    assert made["plan"][2:] == [*job, "--set", "run.ray_address=auto", "--json", "--throughput", "20.5"]
    assert made["verify"][2] == "s3://bucket/enriched/date=2026-11-30/" and "--sample" in made["verify"]
    about = ["--config", "/opt/hpd/job.yaml", "--set", "pool.max_size=4"]
    ends = ["--documents", "1000000", "--output", "/reports/2026-11-30"]
    assert made["report"][3:] == [*about, *ends]
    # As the budget was held against it: where the configuration has no price.
    priced = commands.report_command(params | {"dollars_per_hour": 3}, "2026-11-30")
    assert priced[3:] == [*about, "--fallback-dollars-per-hour", "3", *ends]
    known["report"].make_context("report", priced[2:])


def test_the_partition_is_the_parameter_or_the_date_of_the_run(catalog: ModuleType, commands: ModuleType) -> None:
    assert commands.partition_of(context(catalog)) == "2026-11-30"
    assert commands.partition_of(context(catalog, partition="week-48")) == "week-48"
    manual = context(catalog) | {"logical_date": None, "dag_run": SimpleNamespace(run_after=datetime(2026, 12, 1))}
    assert commands.partition_of(manual) == "2026-12-01"
    with pytest.raises(AirflowFailException, match="parameter output: is empty"):
        commands.located({"input": "x", "output": " "}, "p")


@pytest.mark.parametrize(("code", "error"), [(2, AirflowFailException), (3, AirflowFailException)])
def test_what_a_retry_cannot_mend_is_not_tried_again(
    catalog: ModuleType, hpd: FakeHpd, code: int, error: type[Exception]
) -> None:
    hpd.orders(submit=(code, {}))
    with pytest.raises(error, match=f"hpd submit ended with {code}"):
        catalog.dag.tasks["extract"].execute(context(catalog))


@pytest.mark.parametrize("code", [1, 4, 130, 137])
def test_what_a_retry_may_mend_is(catalog: ModuleType, hpd: FakeHpd, code: int) -> None:
    hpd.orders(submit=(code, {}))
    with pytest.raises(AirflowException) as caught:
        catalog.dag.tasks["extract"].execute(context(catalog))
    assert not isinstance(caught.value, AirflowFailException)


def test_a_task_returns_the_object_and_relays_the_log(
    catalog: ModuleType, hpd: FakeHpd, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    hpd.orders(submit=(0, {"complete": True}))
    assert catalog.dag.tasks["extract"].execute(context(catalog)) == {"complete": True}
    assert "some progress" in caplog.text and "running " in caplog.text


def test_the_log_has_no_value_of_set(catalog: ModuleType, hpd: FakeHpd, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    hpd.orders(submit=(0, {}), verify=(0, {}), report=(0, {}), validate=(0, VALIDATED), plan=(0, PRICED))
    keys = ["output.storage.secret=s3cr3t", "input={storage: {secret: s3cr3t=}}"]
    for task in catalog.dag.tasks.values():
        task.execute(context(catalog, set=keys, report="/r"))
    assert all(keys[0] in call and keys[1] in call for call in hpd.calls()) and len(hpd.calls()) == 5
    assert "s3cr3t" not in caplog.text and caplog.text.count("--set output.storage.secret=… --set input=…") == 5


def test_killing_a_task_ends_its_command(catalog: ModuleType, hpd: FakeHpd) -> None:
    hpd.orders(submit=("wait", {}))
    task, errors = catalog.dag.tasks["extract"], []

    def execute() -> None:
        try:
            task.execute(context(catalog))
        except AirflowException as error:
            errors.append(str(error))

    running = threading.Thread(target=execute)
    running.start()
    hpd.wait_for("waiting")
    task.on_kill()
    running.join(60)
    assert (hpd.folder / "terminated").exists() and errors == ["hpd submit ended with 4"]
    task.on_kill()  # nothing is left to kill


def test_a_task_that_takes_too_long_tells_its_command_once(catalog: ModuleType, hpd: FakeHpd) -> None:
    """As Airflow does it: `on_kill`, then an error in `execute`."""
    hpd.orders(submit=("wait", {}))
    task = catalog.dag.tasks["extract"]

    def too_long(*_: object) -> None:
        task.on_kill()
        hpd.wait_for("terminated")  # or the kernel makes one signal of two
        raise TimeoutError("too long")

    def clock() -> None:
        hpd.wait_for("waiting")
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, too_long)
    try:
        threading.Thread(target=clock).start()
        with pytest.raises(TimeoutError, match="too long"):
            task.execute(context(catalog))
    finally:
        signal.signal(signal.SIGUSR1, before)
    hpd.wait_for("ended")
    assert (hpd.folder / "terminated").read_text() == "x"


def planned(catalog: ModuleType, **params: Any) -> dict[str, Any]:
    return catalog.dag.tasks["plan"].execute(context(catalog, **params))


#: Of `hpd plan --json`, with a price in the configuration and without.
PRICED = {"hours": 2.0, "hours_high": 3.0, "dollars_per_hour": 3.0, "dollars": 6.0, "dollars_high": 9.0}
UNPRICED = PRICED | {"dollars_per_hour": 0, "dollars": 0.0, "dollars_high": 0.0}
NO_INTERVAL = {"hours_high": None, "dollars_high": None}


def test_the_cost_is_that_of_hpd_plan_at_its_price_or_at_the_parameters(catalog: ModuleType, hpd: FakeHpd) -> None:
    for facts, at_its_price, at_five in (
        (PRICED, 9.0, 9.0),
        (PRICED | NO_INTERVAL, 6.0, 6.0),
        (UNPRICED, None, 15.0),
        (UNPRICED | NO_INTERVAL, None, 10.0),
    ):
        hpd.orders(validate=(0, VALIDATED), plan=(0, facts))
        assert planned(catalog) == VALIDATED | {"dollars": at_its_price}
        assert planned(catalog, dollars_per_hour=5.0)["dollars"] == at_five
    assert {call[0] for call in hpd.calls()} == {"validate", "plan"} and "--help" not in str(hpd.calls())
    hpd.orders(validate=(0, VALIDATED | {"rows_left": 0}), plan=(2, {}))
    assert planned(catalog, budget_dollars=0.01)["dollars"] == 0.0  # all is done: nothing to estimate


def test_a_budget_stops_what_is_above_it_and_what_nobody_can_estimate(catalog: ModuleType, hpd: FakeHpd) -> None:
    hpd.orders(validate=(0, VALIDATED), plan=(0, PRICED))
    assert planned(catalog, budget_dollars=9.0)
    with pytest.raises(AirflowFailException, match=r"9\.00 dollars, above budget_dollars 7: not started"):
        planned(catalog, budget_dollars=7)
    hpd.orders(validate=(0, VALIDATED), plan=(0, UNPRICED))
    with pytest.raises(AirflowFailException, match=r"no price to estimate with: .* parameter dollars_per_hour"):
        planned(catalog, budget_dollars=7)  # without a price everything seems free
    with pytest.raises(AirflowFailException, match=r"15\.00 dollars, above budget_dollars 7: not started"):
        planned(catalog, budget_dollars=7, dollars_per_hour=5)  # what the message told to set
    with pytest.raises(AirflowFailException, match=r"report is /r, and there is no price .* dollars_per_hour"):
        planned(catalog, report="/r")  # `hpd report` would refuse, after everything was paid
    assert planned(catalog, report="/r", dollars_per_hour=5)["dollars"] == 15.0
    assert planned(catalog, report="")["dollars"] is None and planned(catalog)["dollars"] is None
    hpd.orders(validate=(2, VALIDATED))
    with pytest.raises(AirflowFailException, match="hpd validate ended with 2"):
        planned(catalog)


def test_the_report_is_skipped_where_there_is_none(catalog: ModuleType, hpd: FakeHpd) -> None:
    report = catalog.dag.tasks["report"]
    with pytest.raises(AirflowSkipException, match="parameter report"):
        report.execute(context(catalog))
    hpd.orders(report=(0, {}))
    report.execute(context(catalog, report="/r"))
    assert hpd.calls()[-1][0] == "report"


def test_airflow_is_pinned_and_installed_again_where_a_pin_changes(repository: Path, tmp_path: Path) -> None:
    pins = repository / "jobs/airflow/constraints.txt"
    lines = [line for line in pins.read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w-]+==[\w.]+", line) for line in lines) and len(lines) > 100
    [version] = [line.partition("==")[2] for line in lines if line.startswith("apache-airflow==")]
    assert f"tested with {version}" in (repository / "docs/airflow.md").read_text()

    program = tmp_path / "build/airflow/bin/airflow"
    for path in (tmp_path / "Makefile", tmp_path / "jobs/airflow/constraints.txt", program):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (1000, 1000))
    shutil.copyfile(repository / "Makefile", tmp_path / "Makefile")

    def up_to_date() -> bool:
        command = ["make", "--question", program.relative_to(tmp_path)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode in (0, 1), done.stderr
        return done.returncode == 0

    for changed in (tmp_path / "Makefile", tmp_path / "jobs/airflow/constraints.txt"):
        os.utime(program)
        assert up_to_date()
        os.utime(changed, (time.time() + 5, time.time() + 5))
        assert not up_to_date()
        os.utime(changed, (1000, 1000))
