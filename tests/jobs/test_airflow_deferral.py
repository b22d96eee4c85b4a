"""Waiting for a job in Airflow's triggerer: what the trigger asks a cluster, and what the task makes of its event."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import ModuleType
from typing import Any

import pytest

from tests.jobs.fake_airflow import AirflowException, AirflowFailException, TaskDeferred, context
from tests.jobs.fake_programs import FakeHpd

JOB = "hpd-feed-1"


@dataclass
class JobServer:
    """A job server whose job goes through `states`, the last one for ever; a number is an HTTP status in their place.
    Also Airflow's health. elsewhere: where a redirect leads. asked: what it was asked, with the token that came
    along."""

    states: list[str | int] = field(default_factory=list)
    triggerer: str | None = "healthy"
    elsewhere: str = ""
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    port: int = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answer(self, method: str, path: str, token: str | None) -> tuple[int, Any]:
        self.asked.append((method, path, token))
        if path == "/api/v2/monitor/health":
            return 200, {"triggerer": {"status": self.triggerer}}
        if path != f"/api/jobs/{JOB}":
            return 200, {"stopped": True}
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return (state, None) if isinstance(state, int) else (200, {"status": state})


@contextmanager
def serving() -> Iterator[JobServer]:
    made = JobServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, facts = made.answer(self.command, self.path, self.headers["Authorization"])
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", made.elsewhere)
            self.end_headers()
            self.wfile.write(json.dumps(facts).encode())

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None: ...

    http = HTTPServer(("127.0.0.1", 0), Handler)
    made.port = http.server_port
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield made
    http.shutdown()


@pytest.fixture
def server() -> Iterator[JobServer]:
    with serving() as made:
        yield made


def fired(module: ModuleType, address: str, seconds: float = 60.0) -> list[dict[str, str]]:
    """Payloads of the events of a trigger, made again of what it would be stored as."""
    made = module.RayJobTrigger(address=address, job=JOB, every=0.01, until=time.time() + seconds)
    path, facts = made.serialize()
    assert path == "hpd_ray_trigger.RayJobTrigger" and facts == json.loads(json.dumps(facts))
    trigger = module.RayJobTrigger(**facts)

    async def run() -> list[dict[str, str]]:
        return [event.payload async for event in trigger.run()]

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("states", "state"),
    [
        (["PENDING", "RUNNING", "RUNNING", "SUCCEEDED"], "SUCCEEDED"),
        (["RUNNING", 500, 503, "RUNNING", "STOPPED"], "STOPPED"),
        (["RUNNING", "FAILED"], "FAILED"),
        (["RUNNING", 404], "GONE"),
        (["RUNNING", 401], "REFUSED"),
    ],
)
def test_the_trigger_fires_once_when_the_job_has_ended(
    tasks: ModuleType,
    server: JobServer,
    monkeypatch: pytest.MonkeyPatch,
    states: list[str | int],
    state: str,
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    server.states = list(states)
    assert fired(tasks.waiting, server.address) == [{"job": JOB, "address": server.address, "state": state}]
    assert server.asked == [("GET", f"/api/jobs/{JOB}", "Bearer secret")] * len(states)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_the_token_follows_no_redirect(
    tasks: ModuleType, server: JobServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    """As of a dashboard behind a proxy that wants a login first."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    with serving() as login:
        login.states = ["SUCCEEDED"]
        server.states, server.elsewhere = [status], f"{login.address}/api/jobs/{JOB}?state=odd"
        assert [event["state"] for event in fired(tasks.waiting, server.address, seconds=1)] == ["REFUSED"]
        assert len(server.asked) == 1 and login.asked == []
        assert f"{server.address} sends to 127.0.0.1:{login.port}, where no token is taken" in caplog.text
        assert "state=odd" not in caplog.text


def test_the_wait_is_bounded_with_a_job_that_runs_and_with_a_cluster_that_is_silent(
    tasks: ModuleType,
    server: JobServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.states = ["RUNNING"]
    [event] = fired(tasks.waiting, server.address, seconds=0.2)
    assert event["state"] == "TIMED_OUT" and len(server.asked) > 2
    monkeypatch.setattr(tasks.waiting, "PATIENCE_SECONDS", 0.1)
    server.states = [500]
    assert fired(tasks.waiting, server.address)[0]["state"] == "SILENT"
    assert fired(tasks.waiting, "http://127.0.0.1:1")[0]["state"] == "SILENT"


def test_killing_the_deferred_task_stops_the_job(tasks: ModuleType, server: JobServer) -> None:
    trigger = tasks.waiting.RayJobTrigger(address=server.address, job=JOB, every=1, until=0)
    asyncio.run(trigger.on_kill())
    assert server.asked == [("POST", f"/api/jobs/{JOB}/stop", None)]


def deferred(catalog: ModuleType, hpd: FakeHpd, server: JobServer) -> tuple[Any, TaskDeferred]:
    """The task extract and how it deferred itself."""
    hpd.orders(submit=(0, {"submission_id": JOB, "address": server.address}))
    task = catalog.dag.tasks["extract"]
    with pytest.raises(TaskDeferred) as caught:
        task.execute(context(catalog, deferrable=True, poll_seconds=2))
    return task, caught.value


def test_the_task_submits_defers_and_is_judged_by_the_manifest(
    catalog: ModuleType,
    hpd: FakeHpd,
    server: JobServer,
) -> None:
    task, wait = deferred(catalog, hpd, server)
    assert "--follow" not in hpd.calls()[-1] and "--stop-on-interrupt" in hpd.calls()[-1]
    trigger = wait.trigger
    assert (trigger.address, trigger.job, trigger.every) == (server.address, JOB, 2.0)
    assert 23.9 * 3600 < trigger.until - time.time() <= 24 * 3600 < wait.timeout.total_seconds()
    hpd.orders(submit=(0, {"complete": True}))
    for state in ("SUCCEEDED", "FAILED", "GONE", "SILENT", "REFUSED"):
        event = {"job": JOB, "address": server.address, "state": state}
        assert task.resume_execution(wait.method_name, {"event": event}, context(catalog)) == {"complete": True}
        assert hpd.calls()[-1][-2:] == ["--attach", JOB] and "--follow" in hpd.calls()[-1]
    hpd.orders(submit=(3, {}))
    with pytest.raises(AirflowFailException, match="ended with 3"):
        task.resume_execution(wait.method_name, {"event": event}, context(catalog))


def test_a_job_that_takes_too_long_is_stopped(catalog: ModuleType, hpd: FakeHpd, server: JobServer) -> None:
    task, wait = deferred(catalog, hpd, server)
    event = {"job": JOB, "address": server.address, "state": "TIMED_OUT"}
    for address, asked in ((server.address, [("POST", f"/api/jobs/{JOB}/stop", None)]), ("http://127.0.0.1:1", [])):
        server.asked.clear()
        with pytest.raises(AirflowException, match=f"{JOB} took longer than 1 day, 0:00:00; what it committed stays"):
            task.resume_execution(wait.method_name, {"event": event | {"address": address}}, context(catalog))
        assert server.asked == asked


def test_a_triggerer_that_does_not_find_the_trigger_leaves_the_wait_to_the_worker(
    catalog: ModuleType,
    hpd: FakeHpd,
    server: JobServer,
) -> None:
    task, _ = deferred(catalog, hpd, server)
    hpd.orders(submit=(0, {"complete": True}))
    failed = {"error": "Trigger failure", "traceback": ["No module named 'hpd_ray_trigger'"]}
    assert task.resume_execution("__fail__", failed, context(catalog)) == {"complete": True}
    assert "--follow" in hpd.calls()[-1] and "--attach" not in hpd.calls()[-1]  # the same job, which it attaches to


def test_the_wait_is_in_the_triggerer_where_one_runs(
    tasks: ModuleType,
    server: JobServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from airflow.sdk.configuration import conf

    conf.values = {("core", "execution_api_server_url"): f"{server.address}/execution/"}
    for status, there in (("healthy", True), ("unhealthy", False), (None, False)):
        server.triggerer = status
        assert tasks.may_defer(None) is there
    assert tasks.may_defer(True) is True and tasks.may_defer(False) is False
    conf.values = {("api", "base_url"): server.address}
    server.triggerer = "healthy"
    assert tasks.may_defer(None) is True
    conf.values = {("api", "base_url"): "http://127.0.0.1:1"}
    assert tasks.may_defer(None) is False
    monkeypatch.setattr(tasks, "waiting", None)
    assert tasks.may_defer(None) is False
    with pytest.raises(AirflowFailException, match=r"hpd_ray_trigger\.py in Airflow's plugins folder"):
        tasks.may_defer(True)
