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
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import typer

from jobs.cli import app
from tests.jobs import fake_airflow
from tests.jobs.fake_airflow import AirflowException, AirflowFailException, AirflowSkipException

#: A command `hpd` that does as the file `orders.json` beside it says, {command: [exit code, object]}, and writes down
#: how it was called. `wait`: until SIGTERM; it writes down each, and when it has ended its job half a second later.
FAKE = """#!{python}
import json, pathlib, signal, sys, time
here = pathlib.Path(__file__).parent
with open(here / "calls", "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + chr(10))
def ended(*_):
    with open(here / "terminated", "a") as signals:
        signals.write("x")
    time.sleep(0.5)
    (here / "ended").touch()
    sys.exit(4)
signal.signal(signal.SIGTERM, ended)
orders = json.loads((here / "orders.json").read_text())
if sys.argv[1] not in orders:
    sys.exit(2)
code, facts = orders[sys.argv[1]]
print("some progress", file=sys.stderr)
if code == "wait":
    (here / "waiting").touch()
    time.sleep(60)
print("something else on stdout")
print(json.dumps(facts))
sys.exit(code)
"""
VALIDATED = {"files": 2, "units": 4, "rows": 3600, "rows_left": 3600}


class FakeHpd:
    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "hpd"
        self.path.write_text(FAKE.format(python=sys.executable))
        self.path.chmod(0o755)
        self.orders()

    def orders(self, **commands: tuple[Any, dict]) -> None:
        (self.folder / "orders.json").write_text(json.dumps(commands))

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]

    def wait_for(self, name: str) -> None:
        deadline = time.monotonic() + 60
        while not (self.folder / name).exists():
            assert time.monotonic() < deadline, name
            time.sleep(0.05)


@pytest.fixture
def hpd(tmp_path: Path) -> FakeHpd:
    return FakeHpd(tmp_path)


@pytest.fixture
def catalog(hpd: FakeHpd, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    for name, module in fake_airflow.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("HPD_COMMAND", str(hpd.path))
    monkeypatch.setenv("HPD_RETRY_SECONDS", "7")
    fake_airflow.load("hpd_ray_trigger")
    yield fake_airflow.load("hpd_catalog")
    for name in ("hpd_catalog", "hpd_ray_trigger"):
        sys.modules.pop(name)


@pytest.fixture
def kuberay(catalog: ModuleType) -> Iterator[ModuleType]:
    yield fake_airflow.load("hpd_kuberay")
    sys.modules.pop("hpd_kuberay")


def context(module: ModuleType, **params: Any) -> dict[str, Any]:
    """Of a task that waits in the worker, unless `deferrable` is given."""
    return {
        "params": module.dag.defaults | {"deferrable": False} | params,
        "logical_date": datetime(2026, 11, 30),
        "dag_run": None,
    }


def test_parsing_takes_airflow_and_the_standard_library_alone(repository: Path) -> None:
    script = """
import sys
from importlib.abc import MetaPathFinder
class Blocked(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        top = name.partition(".")[0]
        ours = ("tests", "airflow", "hpd_catalog", "hpd_kuberay")
        if top not in sys.stdlib_module_names and top not in ours:
            raise ImportError(f"{name} is not to be imported")
sys.meta_path.insert(0, Blocked())
from tests.jobs import fake_airflow
sys.modules.update(fake_airflow.modules())
for name in ("hpd_catalog", "hpd_kuberay"):
    assert list(fake_airflow.load(name).dag.tasks)
assert sys.modules["hpd_catalog"].waiting is None  # goes without
fake_airflow.load("hpd_ray_trigger")
assert fake_airflow.load("hpd_catalog").waiting is not None
print("parsed")
"""
    done = subprocess.run([sys.executable, "-S", "-c", script], cwd=repository, capture_output=True, text=True)
    assert done.stdout == "parsed\n", done.stderr


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


def test_the_command_lines_are_options_of_the_command(catalog: ModuleType) -> None:
    params = catalog.dag.defaults | {
        "schema": "/a b/schemas.yaml",
        "limit": 5,
        "set": ["pool.max_size=4"],
        "verify_sample": 3,
        "rows_per_second": 20.5,
        "report": "/reports/{partition}",
    }
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    made = {
        "validate": catalog.validate_command(params, "2026-11-30"),
        "submit": catalog.follow_command(params, "2026-11-30"),
        "verify": catalog.verify_command(params, "2026-11-30"),
        "plan": catalog.plan_command(params, "2026-11-30"),
        "report": catalog.report_command(params, "2026-11-30"),
    }
    for name, line in made.items():
        assert line[0].endswith("/hpd") and line[1] == name and "{partition}" not in " ".join(line)
        commands[name].make_context(name, line[2:])  # raises where an option does not exist
    job = ["--config", "/opt/hpd/job.yaml", "--input", "s3://bucket/catalog/date=2026-11-30/"]
    job += ["--output", "s3://bucket/enriched/date=2026-11-30/", "--set", 'schemas.file="/a b/schemas.yaml"']
    job += ["--limit", "5", "--set", "pool.max_size=4"]
    alone = [*job, "--address", "http://127.0.0.1:8265", "--stop-on-interrupt", "--json"]
    assert made["submit"][2:] == [*alone, "--follow", "--every", "30"]
    assert catalog.submit_command(params, "2026-11-30")[2:] == alone
    attached = catalog.follow_command(params, "2026-11-30", "hpd-feed-1")
    assert attached == [*made["submit"], "--attach", "hpd-feed-1"]
    commands["submit"].make_context("submit", attached[2:])
    assert made["validate"][2:] == [*job, "--set", "run.ray_address=auto", "--json"]
    assert made["plan"][2:] == [*job, "--set", "run.ray_address=auto", "--json", "--throughput", "20.5"]
    assert made["verify"][2] == "s3://bucket/enriched/date=2026-11-30/" and "--sample" in made["verify"]
    about = ["--config", "/opt/hpd/job.yaml", "--set", "pool.max_size=4"]
    assert made["report"][3:] == [*about, "--documents", "1000000", "--output", "/reports/2026-11-30"]


def test_the_partition_is_the_parameter_or_the_date_of_the_run(catalog: ModuleType) -> None:
    assert catalog.partition_of(context(catalog)) == "2026-11-30"
    assert catalog.partition_of(context(catalog, partition="week-48")) == "week-48"
    manual = context(catalog) | {"logical_date": None, "dag_run": SimpleNamespace(run_after=datetime(2026, 12, 1))}
    assert catalog.partition_of(manual) == "2026-12-01"
    with pytest.raises(AirflowFailException, match="parameter output: is empty"):
        catalog.located({"input": "x", "output": " "}, "p")


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


def test_the_rayjob_reads_the_job_from_its_config_map(kuberay: ModuleType) -> None:
    files = {"job.yaml": "text: {template: x}\n", "schemas.yaml": "a: {attributes: [Brand]}\n"}
    params = kuberay.dag.defaults | {"schema": "/s.yaml", "workers": 3, "secret": "s3-keys"}
    made = json.loads(json.dumps(kuberay.manifest(params, "2026-11-30", files)))  # kubectl reads it as JSON
    config, job = made["items"]
    assert (config["kind"], config["data"]) == ("ConfigMap", files)
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert config["metadata"] == job["metadata"]
    name = job["metadata"]["name"]
    assert name.startswith("hpd-2026-11-30-") and len(name) <= 47 and name == name.lower()
    assert job["spec"]["entrypoint"] == (
        "python -m jobs.extract --config /etc/hpd/job.yaml --set run.ray_address=auto --input "
        "s3://bucket/catalog/date=2026-11-30/ --output s3://bucket/enriched/date=2026-11-30/ "
        "--set schemas.file=schemas.yaml"
    )
    assert job["spec"]["backoffLimit"] == 0  # Airflow tries again, and KubeRay does not
    assert job["spec"]["shutdownAfterJobFinishes"] is True and job["spec"]["activeDeadlineSeconds"] == 24 * 3600
    cluster = job["spec"]["rayClusterSpec"]
    [group] = cluster["workerGroupSpecs"]
    assert group["replicas"] == group["minReplicas"] == group["maxReplicas"] == 3
    for template, gpus in ((cluster["headGroupSpec"]["template"], None), (group["template"], "1")):
        [container] = template["spec"]["containers"]
        assert container["volumeMounts"][0] == {"name": "job", "mountPath": "/etc/hpd", "readOnly": True}
        assert template["spec"]["volumes"] == [{"name": "job", "configMap": {"name": name}}]
        assert container["resources"]["limits"] == container["resources"]["requests"]
        assert container["resources"]["limits"].get("nvidia.com/gpu") == gpus
        assert container["envFrom"] == [{"secretRef": {"name": "s3-keys"}}]
    arguments = job["spec"]["entrypoint"].split()[3:]
    typer.main.get_command(app).commands["extract"].make_context("extract", arguments)  # type: ignore[attr-defined]


def test_rayjobs_of_other_outputs_have_other_names_and_nothing_is_read_by_a_shell(kuberay: ModuleType) -> None:
    names = [kuberay.job_name(f"s3://b/{where}", part) for where in ("x", "y") for part in ("2026-11-30", "W 48/ä")]
    assert len(set(names)) == 4 and all(name.replace("-", "").isalnum() and name.isascii() for name in names)
    for odd in ("s3://b/a b", "s3://b/$(x)", "s3://b/';x"):
        with pytest.raises(AirflowFailException, match="does not go into the command line"):
            kuberay.entrypoint(kuberay.dag.defaults | {"input": odd}, "p")


def extracted(kuberay: ModuleType, folder: Path, *states: str) -> list[tuple[str, ...]]:
    """What kubectl was asked while the RayJob went through `states`, each as kubectl prints it, the first before it is
    applied. Raises what the task does."""
    (folder / "job.yaml").write_text("text: {template: x}\n")
    asked, told = [], iter(states)

    def kubectl(*words: str, stdin: str | None = None) -> str:
        asked.append(words)
        return next(told) if words[0] == "get" else ""

    task = kuberay.dag.tasks["extract"]
    task._kubectl = kubectl
    task.execute(context(kuberay, config=str(folder / "job.yaml")))
    return asked


def test_a_rayjob_is_waited_for_until_it_has_ended(
    kuberay: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kuberay, "_POLL_SECONDS", 0.0)
    asked = extracted(kuberay, tmp_path, "", "RayJob ", "RayJob Running", "RayJob Running", "RayJob Complete")
    assert [words[0] for words in asked] == ["get", "apply", "get", "get", "get", "get"]
    for state in ("Complete", "Failed", "ValidationFailed"):  # of an earlier try
        asked = extracted(kuberay, tmp_path, f"RayJob {state}", "RayJob Complete")
        assert [words[0] for words in asked] == ["get", "delete", "apply", "get"]


@pytest.mark.parametrize(
    ("states", "why"),
    [
        (["", "RayJob Failed"], "ended as Failed"),
        (["", "RayJob ", "RayJob ValidationFailed"], "ended as ValidationFailed"),
        (["", "RayJob Running", ""], "was deleted while it ran"),
        (["RayJob Running", ""], "was deleted while it ran"),
        (["", "RayJob ", ""], "was deleted while it ran"),
    ],
)
def test_a_rayjob_that_failed_or_is_gone_fails_the_task(
    kuberay: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: list[str], why: str
) -> None:
    monkeypatch.setattr(kuberay, "_POLL_SECONDS", 0.0)
    with pytest.raises(AirflowException, match=rf"RayJob hpd-2026-11-30-\w+ {why}"):
        extracted(kuberay, tmp_path, *states)


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
