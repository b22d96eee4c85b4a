"""The DAG that runs the job as a RayJob on Kubernetes: its manifest, and what the task makes of `kubectl`'s answers."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from jobs.cli import app
from tests.jobs.fake_airflow import AirflowException, AirflowFailException, TaskDeferred, context
from tests.jobs.fake_programs import FakeKubectl


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
    applied; what it prints afterwards is empty. Raises what the task does."""
    (folder / "job.yaml").write_text("text: {template: x}\n")
    asked, told = [], iter(states)

    def kubectl(*words: str, **_: object) -> str:
        asked.append(words)
        return next(told, "") if words[0] == "get" else ""

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


@pytest.mark.parametrize(
    ("message", "final"),
    [
        ("Job entrypoint command failed with exit code 2, last available logs (truncated to 20,000 chars):", True),
        ("Job entrypoint command failed with exit code 3. No logs available.", True),
        ("Job entrypoint command failed with exit code 4, last available logs (truncated to 20,000 chars):", False),
        ("Job entrypoint command failed with exit code 23. No logs available.", False),
        ("Job submission has failed. Reason: BackoffLimitExceeded", False),
        ("some driver said: Job entrypoint command failed with exit code 2", False),
        ("", False),
        ("1", False),  # kubectl's own
    ],
)
def test_a_driver_that_refused_its_job_starts_no_further_cluster(
    kuberay: ModuleType, kubectl: FakeKubectl, tmp_path: Path, message: str, final: bool
) -> None:
    task, about, wait = applied(kuberay, kubectl, tmp_path)
    kubectl.states(message)
    with pytest.raises(AirflowException) as caught:
        task.resume_execution(wait.method_name, {"event": {"state": "Failed"}}, about)
    assert isinstance(caught.value, AirflowFailException) is final  # which Airflow does not try again
    [asked] = kubectl.asked()
    assert asked[:2] == ["get", "rayjob"] and asked[-1] == "jsonpath={.status.message}"


def applied(kuberay: ModuleType, kubectl: FakeKubectl, folder: Path) -> tuple[Any, dict[str, Any], TaskDeferred]:
    """The task extract of the other DAG, its context, and how it deferred itself."""
    (folder / "job.yaml").write_text("text: {template: x}\n")
    about = context(kuberay, config=str(folder / "job.yaml"), deferrable=True)
    task = kuberay.dag.tasks["extract"]
    kubectl.states("")
    with pytest.raises(TaskDeferred) as caught:
        task.execute(about)
    assert [words[0] for words in kubectl.asked()] == ["get", "apply"]
    return task, about, caught.value


def woken(module: ModuleType, wait: TaskDeferred, seconds: float = 60.0) -> str:
    """State that the trigger of a RayJob fires with, made again of what it would be stored as."""
    path, facts = wait.trigger.serialize()
    assert path == "hpd_ray_trigger.KubernetesTrigger" and facts == json.loads(json.dumps(facts))
    trigger = module.waiting.KubernetesTrigger(**facts | {"every": 0.01, "until": time.time() + seconds})

    async def run() -> list[Any]:
        return [event.payload async for event in trigger.run()]

    [payload] = asyncio.run(run())
    return str(payload["state"])


@pytest.mark.parametrize(
    ("states", "state", "error"),
    [
        (["RayJob ", "RayJob Running", "RayJob Complete"], "Complete", None),
        (["RayJob Running", "1", "RayJob Complete"], "Complete", None),
        (["RayJob Running", "RayJob Failed"], "Failed", "ended as Failed"),
        (["RayJob ValidationFailed"], "ValidationFailed", "ended as ValidationFailed"),
        (["RayJob Running", ""], "GONE", "was deleted while it ran"),
    ],
)
def test_a_rayjob_is_waited_for_in_the_triggerer(
    kuberay: ModuleType,
    kubectl: FakeKubectl,
    tmp_path: Path,
    states: list[str],
    state: str,
    error: str | None,
) -> None:
    task, about, wait = applied(kuberay, kubectl, tmp_path)
    assert 23.9 * 3600 < wait.trigger.until - time.time() <= 24 * 3600 < wait.timeout.total_seconds()
    kubectl.states(*states)
    assert woken(kuberay, wait) == state
    assert [words[:2] for words in kubectl.asked()] == [["get", "rayjob"]] * len(states)
    event = {"event": {"state": state}}
    if error is None:
        assert task.resume_execution(wait.method_name, event, about) is None
    else:
        with pytest.raises(AirflowException, match=rf"RayJob hpd-2026-11-30-\w+ {error}"):
            task.resume_execution(wait.method_name, event, about)


def test_a_rayjob_that_the_triggerer_cannot_see_is_waited_for_in_the_worker(
    kuberay: ModuleType,
    kubectl: FakeKubectl,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kuberay, "_POLL_SECONDS", 0.01)
    task, about, wait = applied(kuberay, kubectl, tmp_path)
    monkeypatch.setattr(kuberay.waiting, "PATIENCE_SECONDS", 0.1)
    kubectl.states("1")
    assert woken(kuberay, wait) == "SILENT"
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("PATH", str(tmp_path / "empty"))
        assert woken(kuberay, wait) == "REFUSED"
    for method, facts in (
        (wait.method_name, {"event": {"state": "SILENT"}}),
        (wait.method_name, {"event": {"state": "REFUSED"}}),
        ("__fail__", {"error": "No module named 'hpd_ray_trigger'"}),
    ):
        kubectl.states("RayJob Running", "RayJob Complete")
        task.resume_execution(method, facts, about)
        assert [words[0] for words in kubectl.asked()] == ["get", "get"]  # nothing is applied again


def test_a_rayjob_that_takes_too_long_or_is_killed_is_deleted(
    kuberay: ModuleType,
    kubectl: FakeKubectl,
    tmp_path: Path,
) -> None:
    task, about, wait = applied(kuberay, kubectl, tmp_path)
    name = kuberay.job_name(about["params"]["output"], "2026-11-30")
    kubectl.states("RayJob Running")
    assert woken(kuberay, wait, seconds=0.2) == "TIMED_OUT"
    kubectl.states("RayJob Running")
    with pytest.raises(AirflowException, match=f"RayJob {name} took longer than 1 day, 0:00:00; what it committed"):
        task.resume_execution(wait.method_name, {"event": {"state": "TIMED_OUT"}}, about)
    asyncio.run(wait.trigger.on_kill())
    assert [words[:3] for words in kubectl.asked()] == [["delete", "rayjob", name]] * 2


def test_a_rayjob_is_waited_for_in_the_worker_where_nobody_else_does(
    kuberay: ModuleType,
    kubectl: FakeKubectl,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kuberay, "_POLL_SECONDS", 0.01)
    (tmp_path / "job.yaml").write_text("text: {template: x}\n")
    kubectl.states("", "RayJob Running", "RayJob Complete")
    kuberay.dag.tasks["extract"].execute(context(kuberay, config=str(tmp_path / "job.yaml"), deferrable=False))
    assert [words[0] for words in kubectl.asked()] == ["get", "apply", "get", "get"]


def test_a_look_that_fails_is_repeated_in_the_worker_too(
    kuberay: ModuleType,
    kubectl: FakeKubectl,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(kuberay, "_POLL_SECONDS", 0.01)
    task, about, wait = applied(kuberay, kubectl, tmp_path)
    kubectl.states("1", "RayJob Running", "1", "1", "RayJob Complete")
    task.resume_execution(wait.method_name, {"event": {"state": "SILENT"}}, about)
    assert len(kubectl.asked()) == 5 and caplog.text.count("ended with 1: no answer 1; the job may go on") == 3

    monkeypatch.setattr(kuberay, "PATIENCE_SECONDS", 0.1)
    kubectl.states("1")
    with pytest.raises(AirflowException, match="kubectl get ended with 1: no answer 1"):
        task.resume_execution(wait.method_name, {"event": {"state": "SILENT"}}, about)


def test_a_kubectl_that_hangs_is_one_that_failed(
    kuberay: ModuleType,
    kubectl: FakeKubectl,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(kuberay, "_POLL_SECONDS", 0.01)
    task, about, wait = applied(kuberay, kubectl, tmp_path)
    answers = iter([None, "RayJob Running", None, "RayJob Complete"])
    waited = []

    def run(command: list[str], *, timeout: float, **_: object) -> subprocess.CompletedProcess[str]:
        waited.append(timeout)
        answer = next(answers, None)
        if answer is None:
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, 0, answer, "")

    monkeypatch.setattr(kuberay.subprocess, "run", run)
    task.resume_execution(wait.method_name, {"event": {"state": "SILENT"}}, about)
    # A look that hangs must leave room for another within the patience.
    assert waited == [60.0] * 4 and max(waited) < kuberay.PATIENCE_SECONDS
    with pytest.raises(AirflowException, match="took longer than"):
        task.resume_execution(wait.method_name, {"event": {"state": "TIMED_OUT"}}, about)
    assert "may go on: kubectl delete gave no answer for 300 s" in caplog.text


@pytest.mark.parametrize("script", ["exec sleep 20", "sleep 20 & sleep 20"], ids=["alone", "with a login helper"])
def test_the_trigger_leaves_no_kubectl_behind_that_hangs(
    kuberay: ModuleType, kubectl: FakeKubectl, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    (kubectl.folder / "kubectl").write_text(f"#!/bin/sh\n{script}\n")
    monkeypatch.setattr(kuberay.waiting, "KUBECTL_SECONDS", 0.3)
    start, started = asyncio.create_subprocess_exec, []

    async def noted(*words: str, **others: Any) -> asyncio.subprocess.Process:
        started.append(await start(*words, **others))
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)

    async def hangs() -> None:
        with pytest.raises(kuberay.waiting.RaySilentError, match=r"gave no answer for 0\.3 s"):
            await kuberay.waiting._kubectl(["get"])
        assert started[-1].returncode == -signal.SIGKILL  # waited for: no zombie
        cancelled = asyncio.create_task(kuberay.waiting._kubectl(["get"]))
        while len(started) < 2:
            await asyncio.sleep(0.01)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert await started[-1].wait() == -signal.SIGKILL

    before = time.monotonic()
    asyncio.run(hangs())
    assert time.monotonic() - before < 15
