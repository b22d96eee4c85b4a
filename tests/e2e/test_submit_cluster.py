"""`hpd submit` and plain `ray job submit` against a real Ray cluster and S3 server. 11 minutes on two busy cores."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.e2e.remote_job import catalog, job_file, listing, stored, target, tiny
from tests.e2e.world import BIN, DASHBOARD, World, inner
from tests.faults.server import SECRETS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def config(cluster_with_s3: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return job_file(cluster_with_s3, tiny(tmp_path_factory.mktemp("remote")))


def submit(world: World, config: Path, source: str, name: str, *more: str) -> list[str]:
    words = ["submit", "--config", config, "--input", source, "--output", target(name), "--address", DASHBOARD]
    return world.hpd(*words, "--every", "1", *more)


def facts(done: subprocess.CompletedProcess) -> dict:
    return json.loads(done.stdout.splitlines()[-1])


def test_success_its_log_and_a_second_time(cluster_with_s3: World, config: Path) -> None:
    world = cluster_with_s3
    source = catalog(world, "good", 200)
    done = world.run(submit(world, config, source, "good", "--follow", "--json"))
    assert done.returncode == 0, done.stderr[-3000:]
    told = facts(done)
    assert (told["attempt"], told["state"], told["rows_in"], told["rows_error"]) == (1, "SUCCEEDED", 200, 0)
    assert "200/200 rows" in done.stderr and "values found" in done.stderr  # the job's own log
    assert "complete: 200 rows, 0 in error" in done.stderr and "of at most 100 MiB" in done.stderr
    assert not any(secret in done.stdout + done.stderr for secret in SECRETS)
    verified = world.run(world.hpd("verify", target("good"), "--config", config))
    assert verified.returncode == 0, verified.stderr
    # What Ray tells everybody has no key of the store.
    shown = world.run([BIN / "ray", "job", "list", "--address", DASHBOARD])
    assert told["submission_id"] in shown.stdout and not any(secret in shown.stdout for secret in SECRETS)

    again = world.run(submit(world, config, source, "good", "--follow", "--json"))
    assert again.returncode == 0, again.stderr[-3000:]
    assert facts(again)["attempt"] == 2 and "nothing was left to do" in again.stderr


def test_a_unit_that_cannot_be_read_and_an_input_that_is_not_there(cluster_with_s3: World, config: Path) -> None:
    world = cluster_with_s3
    done = world.run(submit(world, config, catalog(world, "broken", 200, broken=True), "broken", "--follow", "--json"))
    assert done.returncode == 4, done.stderr[-3000:]
    assert facts(done)["driver_exit_code"] == 4 and not facts(done)["complete"]
    assert "part-1.parquet" in done.stderr and "_SUCCESS" not in stored(world, "broken")

    done = world.run(submit(world, config, "s3://catalog/no-such/", "nothing", "--follow", "--json"))
    assert done.returncode == 2, done.stderr[-3000:]
    assert "s3://catalog/no-such: does not exist" in done.stderr


def test_stop_then_continue_then_the_same_again_while_it_runs(cluster_with_s3: World, config: Path) -> None:
    world = cluster_with_s3
    source = catalog(world, "long", 4000)
    client = world.start(submit(world, config, source, "long", "--follow", "--stop-on-interrupt", "--json"))
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(iter(client.stderr.readline, "")))  # type: ignore[union-attr]
    reader.start()
    end = time.monotonic() + 300
    while time.monotonic() < end and not any(re.match(r"[1-9][\d,]*/4,?000 rows", line) for line in lines):
        assert client.poll() is None, "".join(lines)
        time.sleep(0.2)
    os.kill(inner(client), signal.SIGTERM)
    assert client.wait(timeout=120) == 4
    reader.join(30)
    said = "".join(lines)
    assert "stopping the job" in said and ": STOPPED" in said, said
    assert "_SUCCESS" not in stored(world, "long")
    committed = sum(path.startswith("data/") for path in stored(world, "long"))
    assert 0 < committed < 80

    first = world.run(submit(world, config, source, "long", "--json"))
    assert first.returncode == 0 and facts(first)["attempt"] == 2 and not facts(first)["attached"]
    second = world.run(submit(world, config, source, "long", "--follow", "--json"))
    assert second.returncode == 0, second.stderr[-3000:]
    assert facts(second)["attached"] and facts(second)["submission_id"] == facts(first)["submission_id"]
    assert listing(world, "long")["rows_in"] == 4000 and len(listing(world, "long")["objects"]) == 80
    assert world.run(world.hpd("verify", target("long"), "--config", config)).returncode == 0


def test_a_cluster_that_is_not_there_and_one_that_the_environment_names(cluster_with_s3: World, config: Path) -> None:
    world = cluster_with_s3
    command = submit(world, config, "s3://catalog/x/", "x")
    command[command.index(DASHBOARD)] = "http://127.0.0.1:9"
    done = world.run(command)
    assert done.returncode == 4 and "http://127.0.0.1:9 cannot be reached" in done.stderr
    elsewhere = dict(world.environment) | {"RAY_ADDRESS": "http://127.0.0.1:9"}
    done = world.run(submit(world, config, "s3://catalog/x/", "x"), env=elsewhere)
    assert done.returncode == 4 and f"wins over --address {DASHBOARD}" in done.stderr


def test_plain_ray_job_submit(cluster_with_s3: World, config: Path, repository: Path) -> None:
    """As docs/cluster.md has it. The configuration lies where the nodes see it."""
    world = cluster_with_s3
    source = catalog(world, "plain", 100)
    command = [BIN / "ray", "job", "submit", "--address", DASHBOARD, "--working-dir", repository, "--"]
    command += ["python", "-m", "jobs.extract", "--config", config, "--set", "run.ray_address=auto"]
    done = world.run([*command, "--input", source, "--output", target("plain")])
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert listing(world, "plain")["rows_in"] == 100
