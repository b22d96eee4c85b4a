"""The DAG by `airflow dags test`, in Airflow's own environment, against a real Ray cluster and S3 server: `make
airflow-test`, 4 to 5 minutes on two cores. HPD_AIRFLOW names the program `airflow`."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.remote_job import catalog, job_file, listing, stored, target, tiny
from tests.e2e.world import DASHBOARD, World
from tests.jobs.fake_programs import FakeHpd, FakeKubectl

AIRFLOW = os.environ.get("HPD_AIRFLOW", "")
#: As docs/airflow.md says.
DAG_FOLDER = (".airflowignore", "hpd_catalog.py", "hpd_commands.py", "hpd_kuberay.py", "hpd_tasks.py")
PLUGINS = ("hpd_ray_trigger.py",)
#: Prints {file: its DAGs} of the files that Airflow looks for DAGs in, with each read as by a process of its own.
FOUND = """
import json, sys
from pathlib import Path
from airflow.dag_processing.dagbag import BundleDagBag
from airflow.utils.file import list_py_file_paths
folder, found = Path(sys.argv[1]), {}
for path in map(Path, list_py_file_paths(folder)):
    for name in [name for name in sys.modules if name.startswith("hpd_")]:
        del sys.modules[name]
    bag = BundleDagBag(path, bundle_path=folder, bundle_name="dags")
    assert not bag.import_errors, bag.import_errors
    found[path.name] = sorted(bag.dags)
print(json.dumps(found))
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not AIRFLOW, reason="needs Airflow in an environment of its own: make airflow-test"),
]


def install(repository: Path, folder: Path) -> dict[str, str]:
    """Copies the files into an Airflow of its own. Variables for its program."""
    for names, place in ((DAG_FOLDER, "dags"), (PLUGINS, "plugins")):
        (folder / place).mkdir()
        for name in names:
            shutil.copy(repository / "jobs/airflow" / name, folder / place)
    return {
        "AIRFLOW_HOME": str(folder),
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "HPD_RETRY_SECONDS": "1",
    }


class Airflow:
    def __init__(self, world: World, repository: Path, folder: Path) -> None:
        self.world, self.folder = world, folder
        installed = install(repository, folder)
        self.config = job_file(world, tiny(folder))
        hpd = folder / "hpd"
        hpd.write_text(f'#!/bin/sh\ncd {repository} && exec {sys.executable} -m jobs.cli "$@"\n')
        hpd.chmod(0o755)
        program = Path(AIRFLOW).absolute()
        self.program = program
        path = f"{program.parent}:{os.environ['PATH']}"
        self.environment = dict(world.environment) | installed | {"PATH": path, "HPD_COMMAND": str(hpd)}
        done = world.run([program, "db", "migrate"], env=self.environment)
        assert done.returncode == 0, done.stderr[-3000:]

    def start(self, source: str, name: str, **params: object) -> subprocess.Popen[str]:
        params = {"config": str(self.config), "input": source, "output": target(name), "address": DASHBOARD} | params
        command = [self.program, "dags", "test", "hpd_catalog", "--conf", json.dumps({"poll_seconds": 1} | params)]
        return self.world.start(command, env=self.environment, stderr=subprocess.STDOUT)

    def run(self, source: str, name: str, **params: object) -> tuple[int, str]:
        process = self.start(source, name, **params)
        log, _ = process.communicate(timeout=900)
        return process.returncode, log


@pytest.fixture(scope="module")
def airflow(cluster_with_s3: World, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Airflow:
    return Airflow(cluster_with_s3, repository, tmp_path_factory.mktemp("airflow"))


def test_a_budget_that_is_too_small_starts_nothing_and_one_that_is_not_does(airflow: Airflow) -> None:
    source = catalog(airflow.world, "date=2026-11-30", 200).replace("2026-11-30", "{partition}")
    rates = {"rows_per_second": 0.001, "dollars_per_hour": 1.0, "partition": "2026-11-30"}
    code, log = airflow.run(source, "priced", budget_dollars=1, **rates)
    assert code != 0 and "above budget_dollars 1: not started" in log, log[-3000:]
    assert not stored(airflow.world, "priced")

    reports = airflow.folder / "reports"
    about = {"report": str(reports / "{partition}"), "documents": 5e6}
    code, log = airflow.run(source, "priced", budget_dollars=1000, deferrable=True, **about, **rates)
    assert code == 0, log[-5000:]
    assert "[DAG TEST] Trigger completed" in log and "attached to job hpd-" in log
    assert listing(airflow.world, "priced")["rows_in"] == 200
    assert "about 55.56 dollars" in log and "complete: 200 rows" in log and "verified" in log
    # At the price that the budget was held against: the job has none.
    report = json.loads((reports / "2026-11-30/report.json").read_text())
    assert (report["documents"], report["measured"]["rows"]) == (5e6, 200)
    assert [row["dollars_per_hour"] for row in report["prices"]] == [1.0]


def test_a_unit_that_fails_fails_the_run_after_its_retries(airflow: Airflow) -> None:
    source = catalog(airflow.world, "broken-dag", 400, broken=True)
    code, log = airflow.run(source, "broken-dag", partition="x")
    assert code != 0 and "hpd submit ended with 4" in log, log[-3000:]
    attempts = set(re.findall(r"submitted job hpd-[0-9a-f]{16}-(\d+)", log))
    assert attempts == {"1", "2", "3", "4"}  # one, and three retries
    assert "_SUCCESS" not in stored(airflow.world, "broken-dag")


def test_a_retry_after_a_kill_attaches_to_the_job_that_went_on(airflow: Airflow) -> None:
    source = catalog(airflow.world, "killed-dag", 2000)
    process = airflow.start(source, "killed-dag", partition="x")
    lines: list[str] = []
    killed = False
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if not killed and re.search(r"(?<![\d,])[1-9][\d,]*/2,?000 rows", line):
            killed = True
            _kill_submit()
    assert process.wait(timeout=60) == 0 and killed, "".join(lines)[-5000:]
    log = "".join(lines)
    assert "hpd submit ended with -9" in log and "attached to job" in log
    assert listing(airflow.world, "killed-dag")["rows_in"] == 2000


def test_each_dag_is_found_in_one_file_and_its_modules_are_not_looked_at(repository: Path, tmp_path: Path) -> None:
    environment = dict(os.environ) | install(repository, tmp_path)
    command = [Path(AIRFLOW).absolute().parent / "python", "-c", FOUND, tmp_path / "dags"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"hpd_catalog.py": ["hpd_catalog"], "hpd_kuberay.py": ["hpd_kuberay"]}


def test_a_rayjob_is_waited_for_by_the_trigger(repository: Path, tmp_path: Path) -> None:
    """No Kubernetes: `kubectl` and `hpd` are stand-ins, Airflow is not."""
    installed = install(repository, tmp_path)
    copy = tmp_path / "dags/hpd_kuberay.py"
    slow = "\n_POLL_SECONDS = 20.0\n"
    assert copy.read_text().count(slow) == 1
    copy.write_text(copy.read_text().replace(slow, "\n_POLL_SECONDS = 1.0\n"))
    (tmp_path / "bin").mkdir()
    kubectl, hpd = FakeKubectl(tmp_path / "bin"), FakeHpd(tmp_path / "bin")
    kubectl.states("", "RayJob ", "RayJob Running", "RayJob Complete")
    costs = {"hours": 1, "hours_high": None, "dollars": 1, "dollars_high": None, "dollars_per_hour": 1}
    hpd.orders(validate=(0, {"files": 1, "units": 1, "rows": 9, "rows_left": 9}), plan=(0, costs), verify=(0, {}))
    (tmp_path / "job.yaml").write_text("text: {template: x}\n")
    program = Path(AIRFLOW).absolute()
    path = f"{tmp_path}/bin:{program.parent}:{os.environ['PATH']}"
    environment = dict(os.environ) | installed | {"PATH": path, "HPD_COMMAND": str(hpd.path)}
    params = {"config": str(tmp_path / "job.yaml"), "partition": "x", "deferrable": True}
    for words in (["db", "migrate"], ["dags", "test", "hpd_kuberay", "--conf", json.dumps(params)]):
        done = subprocess.run(
            [program, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert done.returncode == 0, done.stdout[-5000:]
    assert "[DAG TEST] Trigger completed" in done.stdout and ": Complete" in done.stdout
    assert [words[0] for words in kubectl.asked()] == ["get", "apply", "get", "get", "get"]
    assert [call[0] for call in hpd.calls()] == ["validate", "plan", "verify"]


def _kill_submit() -> None:
    """SIGKILL to the one client that follows this output."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        for entry in Path("/proc").iterdir():
            try:
                words = (
                    (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                    if entry.name.isdigit()
                    else []
                )
            except OSError:
                continue
            if "submit" in words and target("killed-dag") in words:
                os.kill(int(entry.name), signal.SIGKILL)
                return
    raise AssertionError("no client to kill")
