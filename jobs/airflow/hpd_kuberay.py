"""An Airflow 3 DAG that runs the job as a KubeRay `RayJob`: a cluster of its own, gone when the job has ended.

Copy it into the DAG folder beside hpd_catalog.py, whose tasks it shares. Needs `kubectl` with rights to RayJobs and
ConfigMaps in one namespace, KubeRay 1.1 or newer there, and an image with this project installed. An example: the
manifest is tested, the DAG was run against no cluster.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, BaseOperator, Param
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from hpd_catalog import (
    RETRY_DELAY,
    TIMEOUT,
    HpdOperator,
    Params,
    PlanOperator,
    located,
    partition_of,
    plan_command,
    verify_command,
)

FOLDER = "/etc/hpd"
#: What may stand in the command line of the job: KubeRay hands it to a shell.
_PLAIN = re.compile(r"[\w./:=@%+,*{}-]+")
COMPLETE = "Complete"
_POLL_SECONDS = 20.0
_GONE_SECONDS = 120


def job_name(output: str, partition: str) -> str:
    """A name that Kubernetes takes, the same for the same output and partition."""
    # The digest tells outputs apart whose names are alike; Kubernetes adds suffixes of its own to a short name.
    digest = hashlib.sha256(f"{output} {partition}".encode()).hexdigest()[:8]
    return f"hpd-{re.sub(r'[^a-z0-9-]+', '-', partition.lower())[:24].strip('-')}-{digest}"


def has_ended(status: str | None) -> bool:
    """Whether this `jobDeploymentStatus` is a last one: Complete, Failed or ValidationFailed."""
    return status is not None and (status == COMPLETE or status.endswith("Failed"))


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


class RayJobOperator(BaseOperator):
    """Applies the manifest and waits for the job; killed, it deletes the job and with it the cluster."""

    def __init__(self, **others: Any) -> None:
        super().__init__(**others)
        self._running: tuple[str, ...] = ()

    def execute(self, context: Any) -> Any:
        params, partition = context["params"], partition_of(context)
        files = {"job.yaml": Path(params["config"]).read_text(encoding="utf-8")}
        if params.get("schema"):
            files["schemas.yaml"] = Path(params["schema"]).read_text(encoding="utf-8")
        made = manifest(params, partition, files)
        name = made["items"][1]["metadata"]["name"]
        at = ("--namespace", str(params["namespace"]))
        if has_ended(self._status(name, at)):  # of an earlier try; a running one is attached to
            self._kubectl("delete", "rayjob", name, *at, f"--timeout={_GONE_SECONDS}s")
        self._running = ("delete", "rayjob", name, *at, "--wait=false")
        self._kubectl("apply", "-f", "-", *at, stdin=json.dumps(made))
        before = None
        while True:
            status = self._status(name, at)
            if status is None:
                raise AirflowException(f"RayJob {name} was deleted while it ran; what it committed stays")
            if status != before:
                self.log.info("RayJob %s: %s", name, status or "not begun")
                before = status
            if has_ended(status):
                break
            time.sleep(_POLL_SECONDS)
        if status != COMPLETE:
            raise AirflowException(f"RayJob {name} ended as {status}; what it committed stays")
        # Whether the output is whole is for `verify` to say.

    def on_kill(self) -> None:
        if self._running:
            subprocess.Popen(["kubectl", *self._running], start_new_session=True)

    def _status(self, name: str, at: tuple[str, ...]) -> str | None:
        """Empty before KubeRay has looked at the job; None where there is no such job."""
        path = "jsonpath={.kind} {.status.jobDeploymentStatus}"
        kind, _, status = self._kubectl("get", "rayjob", name, *at, "--ignore-not-found", "-o", path).partition(" ")
        return status.strip() if kind else None

    def _kubectl(self, *words: str, stdin: str | None = None) -> str:
        done = subprocess.run(["kubectl", *words], input=stdin, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise AirflowException(f"kubectl {words[0]} ended with {done.returncode}: {done.stderr.strip()}")
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
