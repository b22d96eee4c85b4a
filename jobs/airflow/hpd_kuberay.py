"""An Airflow 3 DAG that runs the job as a KubeRay `RayJob`: a cluster of its own, gone when the job has ended.

Copy it, hpd_tasks.py and hpd_commands.py into the DAG folder. Needs `kubectl` with rights to RayJobs and ConfigMaps in
one namespace, KubeRay 1.1 or newer there, and an image with this project installed. It waits as hpd_catalog.py does: in
the triggerer where one runs (which needs `kubectl` as well), else in the worker. An example: its manifest is tested,
the DAG with a stand-in for `kubectl`; it was run against no Kubernetes.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, BaseOperator, Param
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferralError
from hpd_commands import Params, located, partition_of, plan_command, verify_command
from hpd_tasks import FINAL, RETRY_DELAY, TIMEOUT, HpdOperator, PlanOperator, may_defer, waiting

FOLDER = "/etc/hpd"
#: What may stand in the command line of the job: KubeRay hands it to a shell.
_PLAIN = re.compile(r"[\w./:=@%+,*{}-]+")
#: KubeRay's last states of a job, and the one that is a success.
COMPLETE, ENDED = "Complete", r"Complete|\w*Failed"
#: How Ray's message about a driver that failed begins; KubeRay hands it on, and has no field for the code.
_DRIVER_FAILED = re.compile(r"Job entrypoint command failed with exit code (\d+)")
_POLL_SECONDS = 20.0
#: For one look, and for which looks may fail one after another: those of the trigger, which may not be there.
_LOOK_SECONDS, PATIENCE_SECONDS = 60.0, 300.0
_GONE_SECONDS = 120


def job_name(output: str, partition: str) -> str:
    """A name that Kubernetes takes, the same for the same output and partition."""
    # The digest tells outputs apart whose names are alike; Kubernetes adds suffixes of its own to a short name.
    digest = hashlib.sha256(f"{output} {partition}".encode()).hexdigest()[:8]
    return f"hpd-{re.sub(r'[^a-z0-9-]+', '-', partition.lower())[:24].strip('-')}-{digest}"


def has_ended(status: str | None) -> bool:
    """Whether this `jobDeploymentStatus` is a last one: Complete, Failed or ValidationFailed."""
    return status is not None and re.fullmatch(ENDED, status) is not None


def look_words(name: str, namespace: str, path: str = "{.kind} {.status.jobDeploymentStatus}") -> list[str]:
    """For `kubectl`: prints the kind of the RayJob and its status, or what else the `path` names, nothing where there
    is no such job."""
    return ["get", "rayjob", name, "--namespace", namespace, "--ignore-not-found", "-o", f"jsonpath={path}"]


def stop_words(name: str, namespace: str) -> list[str]:
    """For `kubectl`: deletes the RayJob, and with it its cluster."""
    return ["delete", "rayjob", name, "--namespace", namespace, "--ignore-not-found", "--wait=false"]


def entrypoint(params: Params, partition: str) -> str:
    """The command line of the driver. Raises `AirflowFailException` for what a shell would read as more than a word."""
    words = ["python", "-m", "jobs.extract", "--config", f"{FOLDER}/job.yaml", "--set", "run.ray_address=auto"]
    places = located(params, partition)
    words += ["--input", places["input"], "--output", places["output"]]
    if params.get("schema"):
        words += ["--set", "schemas.file=schemas.yaml"]
    for word in words:
        if not _PLAIN.fullmatch(word):
            raise AirflowFailException(f"{word!r} does not go into the command line of a RayJob; rename it")
    return " ".join(words)


def manifest(params: Params, partition: str, files: Mapping[str, str]) -> dict[str, Any]:
    """A ConfigMap with the `files` of the job and the RayJob that reads them, as one Kubernetes list."""
    name = job_name(str(params["output"]), partition)
    about = {"name": name, "namespace": params["namespace"], "labels": {"app": "hpd"}}
    job = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": about,
        "spec": {
            "entrypoint": entrypoint(params, partition),
            "submissionMode": "K8sJobMode",
            # A driver that died is started again by Airflow's retry, and goes on from what is committed. KubeRay cannot
            # tell it from one that refused its job, and would start clusters for that too.
            "backoffLimit": 0,
            "activeDeadlineSeconds": int(TIMEOUT.total_seconds()),
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 3600,
            "rayClusterSpec": {
                "rayVersion": params["ray_version"],
                "headGroupSpec": {
                    # Reading, tokenising and committing; the actors' machines do nothing else.
                    "rayStartParams": {"num-gpus": "0"},
                    "template": _pod("ray-head", params, name, cpus=params["head_cpus"], memory="16Gi", gpus=0),
                },
                "workerGroupSpecs": [
                    {
                        "groupName": "decode",
                        # All of them from the start: a job is refused whose pool does not fit what is there.
                        "replicas": params["workers"],
                        "minReplicas": params["workers"],
                        "maxReplicas": params["workers"],
                        "rayStartParams": {},
                        "template": _pod("ray-worker", params, name, cpus=params["worker_cpus"], memory="64Gi", gpus=1),
                    }
                ],
            },
        },
    }
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": dict(files)}
    return {"apiVersion": "v1", "kind": "List", "items": [config, job]}


def _pod(container: str, params: Params, name: str, *, cpus: int, memory: str, gpus: int) -> dict[str, Any]:
    resources = {"cpu": str(cpus), "memory": memory} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    made: dict[str, Any] = {
        "name": container,
        "image": params["image"],
        # Equal, so that Ray counts what the container really has.
        "resources": {"requests": resources, "limits": resources},
        "volumeMounts": [{"name": "job", "mountPath": FOLDER, "readOnly": True}],
    }
    if params.get("secret"):
        made["envFrom"] = [{"secretRef": {"name": params["secret"]}}]
    spec: dict[str, Any] = {"containers": [made], "volumes": [{"name": "job", "configMap": {"name": name}}]}
    if gpus:
        spec["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    return {"spec": spec}


class KubectlError(AirflowException):
    """kubectl failed, or gave no answer in time. The same may succeed later."""


class RayJobOperator(BaseOperator):
    """Applies the manifest and waits for the job; killed, it deletes the job and with it the cluster."""

    def __init__(self, **others: Any) -> None:
        super().__init__(**others)
        self._running: list[str] = []

    def execute(self, context: Any) -> Any:
        params, partition = context["params"], partition_of(context)
        name, namespace = self._applied(params, partition)
        if not may_defer(params.get("deferrable")):
            return self._wait(name, namespace)
        trigger = waiting.KubernetesTrigger(
            look=look_words(name, namespace),
            stop=stop_words(name, namespace),
            ended=ENDED,
            every=_POLL_SECONDS,
            until=time.time() + TIMEOUT.total_seconds(),
        )
        # Later than the trigger's own end, as in hpd_tasks.py.
        self.defer(trigger=trigger, method_name="ended", timeout=TIMEOUT + timedelta(hours=1))

    def ended(self, context: Any, event: Mapping[str, str]) -> Any:
        """The trigger fired."""
        name, namespace = self._named(context)
        state = event["state"]
        if state in (waiting.SILENT, waiting.REFUSED):
            self.log.warning("the triggerer cannot see the job (%s); waiting in the worker", state)
            return self._wait(name, namespace)
        if state == waiting.TIMED_OUT:
            try:
                self._kubectl(*stop_words(name, namespace))
            except KubectlError as error:
                self.log.warning("RayJob %s may go on: %s", name, error)
            raise AirflowException(f"RayJob {name} took longer than {TIMEOUT}; what it committed stays")
        return self._judge(name, namespace, None if state == waiting.GONE else state)

    def resume_execution(self, next_method: str, next_kwargs: Any, context: Any) -> Any:
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralError as error:
            # As where the triggerer does not find its module. The job goes on.
            self.log.warning("the triggerer could not wait for the job (%s); waiting in the worker", error)
            return self._wait(*self._named(context))

    def on_kill(self) -> None:
        if self._running:
            subprocess.Popen(["kubectl", *self._running], start_new_session=True)

    def _named(self, context: Any) -> tuple[str, str]:
        """(name, namespace) of the job."""
        params = context["params"]
        return job_name(str(params["output"]), partition_of(context)), str(params["namespace"])

    def _applied(self, params: Params, partition: str) -> tuple[str, str]:
        """(name, namespace) of the job, which runs or is about to."""
        files = {"job.yaml": Path(params["config"]).read_text(encoding="utf-8")}
        if params.get("schema"):
            files["schemas.yaml"] = Path(params["schema"]).read_text(encoding="utf-8")
        made = manifest(params, partition, files)
        name, namespace = made["items"][1]["metadata"]["name"], str(params["namespace"])
        at = ("--namespace", namespace)
        if has_ended(self._status(name, namespace)):  # of an earlier try; a running one is attached to
            self._kubectl("delete", "rayjob", name, *at, f"--timeout={_GONE_SECONDS}s")
        self._running = stop_words(name, namespace)
        self._kubectl("apply", "-f", "-", *at, stdin=json.dumps(made))
        return name, namespace

    def _wait(self, name: str, namespace: str) -> None:
        """Raises `KubectlError` where no look succeeds for `PATIENCE_SECONDS`; the job goes on then."""
        self._running = stop_words(name, namespace)
        before, answered = None, time.monotonic()
        while True:
            try:
                status = self._status(name, namespace)
            except KubectlError as error:
                if time.monotonic() - answered > PATIENCE_SECONDS:
                    raise
                self.log.warning("%s; the job may go on, asking again", error)
            else:
                answered = time.monotonic()
                if status is None or has_ended(status):
                    return self._judge(name, namespace, status)
                if status != before:
                    self.log.info("RayJob %s: %s", name, status or "not begun")
                    before = status
            time.sleep(_POLL_SECONDS)

    def _judge(self, name: str, namespace: str, status: str | None) -> None:
        """Whether the output is whole is for `verify` to say. A driver's code that is `FINAL` fails the task for good:
        each try starts a cluster."""
        self._running = []
        if status is None:
            raise AirflowException(f"RayJob {name} was deleted while it ran; what it committed stays")
        self.log.info("RayJob %s: %s", name, status)
        if status != COMPLETE:
            code = self._exit_code(name, namespace)
            if code in FINAL:
                raise AirflowFailException(f"RayJob {name}: its driver ended with {code}; a retry would too")
            raise AirflowException(f"RayJob {name} ended as {status}; what it committed stays")

    def _exit_code(self, name: str, namespace: str) -> int | None:
        """Of the driver of a RayJob that failed; None where nobody says, as when its submitter failed."""
        try:
            told = self._kubectl(*look_words(name, namespace, "{.status.message}"), seconds=_LOOK_SECONDS)
        except KubectlError as error:
            self.log.warning("nobody knows why RayJob %s failed: %s", name, error)
            return None
        found = _DRIVER_FAILED.match(told)
        return int(found[1]) if found else None

    def _status(self, name: str, namespace: str) -> str | None:
        """Empty before KubeRay has looked at the job; None where there is no such job."""
        kind, _, status = self._kubectl(*look_words(name, namespace), seconds=_LOOK_SECONDS).partition(" ")
        return status.strip() if kind else None

    def _kubectl(self, *words: str, stdin: str | None = None, seconds: float = 300.0) -> str:
        try:
            done = subprocess.run(["kubectl", *words], input=stdin, capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise KubectlError(f"kubectl {words[0]} gave no answer for {seconds:g} s") from error
        if done.returncode:
            raise KubectlError(f"kubectl {words[0]} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout


PARAMS = {
    "config": Param("/opt/hpd/job.yaml", type="string", description="YAML of the job, on the worker of Airflow."),
    "input": Param("s3://bucket/catalog/date={partition}/", type="string"),
    "output": Param("s3://bucket/enriched/date={partition}/", type="string"),
    "partition": Param(None, type=["null", "string"]),
    "schema": Param(None, type=["null", "string"], description="Schema file in place of the configuration's."),
    "budget_dollars": Param(None, type=["null", "number"]),
    "rows_per_second": Param(None, type=["null", "number"], exclusiveMinimum=0),
    "dollars_per_hour": Param(None, type=["null", "number"], exclusiveMinimum=0),
    "deferrable": Param(
        None,
        type=["null", "boolean"],
        description="Wait in the triggerer and hold no worker; without a word where a triggerer runs.",
    ),
    "namespace": Param("default", type="string"),
    "image": Param("registry.example.org/hpd:latest", type="string", description="Has this project and its packages."),
    "ray_version": Param("2.60.0", type="string", description="That of the image."),
    "workers": Param(4, type="integer", minimum=1, description="Machines with one GPU each."),
    "worker_cpus": Param(8, type="integer", minimum=1),
    "head_cpus": Param(8, type="integer", minimum=1),
    "secret": Param(None, type=["null", "string"], description="Kubernetes secret whose keys become variables."),
}

with DAG(
    dag_id="hpd_kuberay",
    description="Attributes of a product catalog, in a Ray cluster of its own on Kubernetes",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    params=PARAMS,
    default_args={"retries": 3, "retry_delay": RETRY_DELAY, "retry_exponential_backoff": True},
    tags=["hpd"],
) as dag:
    plan = PlanOperator(task_id="plan", command=plan_command)
    extract = RayJobOperator(task_id="extract", execution_timeout=TIMEOUT)
    verify = HpdOperator(task_id="verify", command=verify_command)
    plan >> extract >> verify
