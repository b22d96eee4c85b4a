"""An Airflow 3 DAG: plan, extract, verify and report one partition of a catalog on a Ray cluster.

Copy this file into the DAG folder and hpd_ray_trigger.py into the plugins folder (without it the task extract waits in
a worker). Airflow's environment needs nothing else: no Ray provider, no ray, no torch, nothing of this project. Each
task runs the command `hpd` of another environment. Variables that it reads when it is parsed:

HPD_COMMAND           path of `hpd`; `hpd` of PATH without it
HPD_TIMEOUT_HOURS     longest extraction, 24 without it
HPD_RETRY_SECONDS     wait before the first retry, 300 without it

docs/airflow.md says what the parameters mean and what happens when a task is killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, BaseOperator, Param
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException, TaskDeferralError

try:
    import hpd_ray_trigger as waiting
except ImportError:
    waiting = None

COMMAND = os.environ.get("HPD_COMMAND", "hpd")
TIMEOUT = timedelta(hours=float(os.environ.get("HPD_TIMEOUT_HOURS", "24")))
RETRY_DELAY = timedelta(seconds=float(os.environ.get("HPD_RETRY_SECONDS", "300")))
#: Exit codes of `hpd` that say the same however often it is tried: configuration or input, too many rows in error,
#: damaged. All others (incomplete, unreachable, killed) are worth a retry, which goes on from what is committed.
FINAL = (2, 3, 5)

Params = Mapping[str, Any]


def located(params: Params, partition: str) -> dict[str, str]:
    """Input and output of one partition: `{partition}` in them is its date. Raises `AirflowFailException`."""
    found = {}
    for name in ("input", "output"):
        text = str(params[name])
        if not text.strip():
            raise AirflowFailException(f"parameter {name}: is empty")
        found[name] = text.replace("{partition}", partition)
    return found


def job_options(params: Params, partition: str) -> list[str]:
    """What `hpd validate`, `plan` and `submit` are told about the job."""
    places = located(params, partition)
    options = ["--config", str(params["config"]), "--input", places["input"], "--output", places["output"]]
    if params.get("schema"):
        options += ["--set", f"schemas.file={json.dumps(str(params['schema']))}"]
    if params.get("limit"):
        options += ["--limit", str(params["limit"])]
    for override in params.get("set") or ():
        options += ["--set", override]
    return options


def validate_command(params: Params, partition: str) -> list[str]:
    # The pool need not fit the machine of Airflow: it is not where the job runs.
    return [COMMAND, "validate", *job_options(params, partition), "--set", "run.ray_address=auto", "--json"]


def plan_command(params: Params, partition: str) -> list[str]:
    command = [COMMAND, "plan", *job_options(params, partition), "--set", "run.ray_address=auto", "--json"]
    if params.get("rows_per_second"):
        command += ["--throughput", str(params["rows_per_second"])]
    return command


def submit_command(params: Params, partition: str) -> list[str]:
    """Submits, and waits for nothing."""
    command = [COMMAND, "submit", *job_options(params, partition), "--address", str(params["address"])]
    return [*command, "--stop-on-interrupt", "--json"]


def follow_command(params: Params, partition: str, job: str | None = None) -> list[str]:
    """Submits or attaches, and ends as the job does; of a `job` that was submitted already, whether it runs or not."""
    command = [*submit_command(params, partition), "--follow", "--every", str(params["poll_seconds"])]
    return [*command, "--attach", job] if job else command


def verify_command(params: Params, partition: str) -> list[str]:
    command = [COMMAND, "verify", located(params, partition)["output"], "--config", str(params["config"])]
    if params.get("verify_sample"):
        command += ["--sample", str(params["verify_sample"])]
    for override in params.get("set") or ():
        command += ["--set", override]
    return [*command, "--json"]


def report_command(params: Params, partition: str) -> list[str]:
    folder = str(params["report"]).replace("{partition}", partition)
    command = [COMMAND, "report", located(params, partition)["output"], "--config", str(params["config"])]
    for override in params.get("set") or ():
        command += ["--set", override]
    return [*command, "--documents", str(params["documents"]), "--output", folder]


def cost(planned: Mapping[str, Any], params: Params) -> float | None:
    """Dollars of what is left to do, the upper end where `hpd plan` gives an interval: its dollars, or its hours at the
    parameter dollars_per_hour where the configuration has no price; None where neither has."""
    hours, dollars = (_upper_end(planned, name) for name in ("hours", "dollars"))
    if planned["dollars_per_hour"]:  # without a price everything seems free
        return dollars
    price = params.get("dollars_per_hour")
    return hours * price if price else None


def _upper_end(planned: Mapping[str, Any], name: str) -> float:
    high = planned[f"{name}_high"]
    return float(planned[name] if high is None else high)


def check_budget(dollars: float | None, budget: float | None) -> None:
    """Raises `AirflowFailException` where the estimate is above the budget, or there is a budget and no price."""
    if budget is None:
        return
    if dollars is None:
        raise AirflowFailException(
            f"budget_dollars is {budget:g}, and there is no price to estimate with: set `price` in the "
            "configuration, or the parameter dollars_per_hour"
        )
    if dollars > budget:
        raise AirflowFailException(f"estimated at {dollars:.2f} dollars, above budget_dollars {budget:g}: not started")


def partition_of(context: Mapping[str, Any]) -> str:
    """The parameter, else the date of the run's data interval, or of its start where it has none."""
    given = context["params"].get("partition")
    when = context.get("logical_date") or context["dag_run"].run_after
    return str(given) if given else when.strftime("%Y-%m-%d")


class HpdOperator(BaseOperator):
    """Runs `hpd` and returns the JSON object that it ends with. Killed, it ends the command by SIGTERM.

    command: (parameters, partition) -> argument list; no shell sees it.
    """

    def __init__(self, *, command: Callable[[Params, str], list[str]], **others: Any) -> None:
        super().__init__(**others)
        self.command = command
        self._process: subprocess.Popen[str] | None = None

    def execute(self, context: Any) -> Any:
        return self.run_hpd(self.command(context["params"], partition_of(context)))

    def on_kill(self) -> None:
        """SIGTERM to the command, once, which stops its job; Airflow itself waits a few seconds only, so this does not.

        A task that takes too long comes here twice: by Airflow, and by the error that it raises in `execute`.
        """
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)

    def run_hpd(self, command: Sequence[str]) -> dict[str, Any]:
        self.log.info("running %s", " ".join(command))
        with self._started(command) as process:
            assert process.stdout is not None and process.stderr is not None
            relay = threading.Thread(target=self._relay, args=(process.stderr,), daemon=True)
            relay.start()
            lines = process.stdout.read().splitlines()
            code = process.wait()
            relay.join(timeout=10)
        if code in FINAL:
            raise AirflowFailException(f"hpd {command[1]} ended with {code}; a retry would too, see the log above")
        if code != 0:
            raise AirflowException(f"hpd {command[1]} ended with {code}")
        return json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}

    @contextmanager
    def _started(self, command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
        """A process group of its own: when Airflow kills the task for good, the command still ends its job in order."""
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._process = process
        try:
            yield process
        except BaseException:
            self.on_kill()
            raise

    def _relay(self, lines: Any) -> None:
        for line in lines:
            self.log.info(line.rstrip())


class ExtractOperator(HpdOperator):
    """Runs the job: waits for it in the triggerer where one runs, else in the worker."""

    def __init__(self, **others: Any) -> None:
        super().__init__(command=follow_command, **others)

    def execute(self, context: Any) -> Any:
        params, partition = context["params"], partition_of(context)
        if not may_defer(params.get("deferrable")):
            self.log.info("waiting in the worker: a look at the job every %s s", params["poll_seconds"])
            return self.run_hpd(follow_command(params, partition))
        job = self.run_hpd(submit_command(params, partition))
        trigger = waiting.RayJobTrigger(
            address=job["address"],
            job=job["submission_id"],
            every=float(params["poll_seconds"]),
            until=time.time() + TIMEOUT.total_seconds(),
        )
        # Later than the trigger's own end, which stops the job: for where no triggerer is left to see that.
        self.defer(trigger=trigger, method_name="ended", timeout=TIMEOUT + timedelta(hours=1))

    def ended(self, context: Any, event: Mapping[str, str]) -> Any:
        """The trigger fired. The verdict is the manifest's, which `hpd` reads."""
        params, partition = context["params"], partition_of(context)
        if event["state"] == waiting.TIMED_OUT:
            try:
                waiting.stop_job(event["address"], event["job"])
            except (waiting.RaySilentError, waiting.RayRefusedError) as error:
                self.log.warning("job %s may go on: %s", event["job"], error)
            raise AirflowException(f"job {event['job']} took longer than {TIMEOUT}; what it committed stays")
        return self.run_hpd(follow_command(params, partition, event["job"]))

    def resume_execution(self, next_method: str, next_kwargs: Any, context: Any) -> Any:
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralError as error:
            # The trigger failed, as where the triggerer does not find its module. The job goes on: attach to it.
            self.log.warning("the triggerer could not wait for the job (%s); waiting in the worker", error)
            return self.run_hpd(follow_command(context["params"], partition_of(context)))


def may_defer(wanted: bool | None) -> bool:
    """Whether to wait in the triggerer. wanted: None leaves it to whether one runs."""
    if wanted and waiting is None:
        raise AirflowFailException("deferrable needs hpd_ray_trigger.py in Airflow's plugins folder")
    return bool(waiting is not None and (waiting.triggerer_runs() if wanted is None else wanted))


class PlanOperator(HpdOperator):
    """Checks the job and its cost before anything is started."""

    def execute(self, context: Any) -> Any:
        params, partition = context["params"], partition_of(context)
        facts = self.run_hpd(validate_command(params, partition))
        dollars: float | None = 0.0
        if facts["rows_left"]:
            dollars = cost(self.run_hpd(plan_command(params, partition)), params)
        estimate = "cost unknown" if dollars is None else f"about {dollars:.2f} dollars"
        counts = f"{facts['rows']:,} rows in {facts['files']:,} files, {facts['units']:,} units"
        self.log.info("%s; %s rows left to do, %s", counts, f"{facts['rows_left']:,}", estimate)
        check_budget(dollars, params.get("budget_dollars"))
        return {name: facts[name] for name in ("files", "units", "rows", "rows_left")} | {"dollars": dollars}


class ReportOperator(HpdOperator):
    """Skipped where no folder is given."""

    def execute(self, context: Any) -> Any:
        params = context["params"]
        if not params.get("report"):
            raise AirflowSkipException("no folder for a report: parameter report")
        return self.run_hpd(report_command(params, partition_of(context)))


PARAMS = {
    "config": Param("/opt/hpd/job.yaml", type="string", description="YAML of the job, on the worker of Airflow."),
    "input": Param(
        "s3://bucket/catalog/date={partition}/",
        type="string",
        description="Folder, glob or file; {partition} is the date of the run.",
    ),
    "output": Param(
        "s3://bucket/enriched/date={partition}/", type="string", description="An own folder per partition."
    ),
    "partition": Param(None, type=["null", "string"], description="In place of the date of the run."),
    "schema": Param(None, type=["null", "string"], description="Schema file in place of the configuration's."),
    "address": Param("http://127.0.0.1:8265", type="string", description="Dashboard of the Ray cluster."),
    "budget_dollars": Param(None, type=["null", "number"], description="Do not start what is estimated above."),
    "rows_per_second": Param(
        None, type=["null", "number"], exclusiveMinimum=0, description="Of the whole job, for `hpd plan`."
    ),
    "dollars_per_hour": Param(
        None,
        type=["null", "number"],
        exclusiveMinimum=0,
        description="Of all machines, where the configuration has no price.",
    ),
    "poll_seconds": Param(30, type="number", minimum=0.5, description="Between looks at the job."),
    "deferrable": Param(
        None,
        type=["null", "boolean"],
        description="Wait in the triggerer and hold no worker; without a word where a triggerer runs.",
    ),
    "limit": Param(None, type=["null", "integer"], minimum=1, description="Only the first so many rows."),
    "verify_sample": Param(None, type=["null", "integer"], minimum=1, description="Open only so many data files."),
    "report": Param(None, type=["null", "string"], description="Folder of the report; none without it."),
    "documents": Param(1_000_000, type="number", description="Corpus size that the report extrapolates to."),
    "set": Param([], type="array", items={"type": "string"}, description="key.key=value over the configuration."),
}

with DAG(
    dag_id="hpd_catalog",
    description="Attributes of a product catalog, by Hyper-Parallel Decoding on Ray",
    schedule=None,
    catchup=False,
    # One run at a time: a cluster is sized for one. Two runs of one partition would attach to one job.
    max_active_runs=1,
    params=PARAMS,
    default_args={"retries": 3, "retry_delay": RETRY_DELAY, "retry_exponential_backoff": True},
    tags=["hpd"],
) as dag:
    plan = PlanOperator(task_id="plan", command=plan_command, execution_timeout=timedelta(hours=1))
    extract = ExtractOperator(task_id="extract", execution_timeout=TIMEOUT)
    verify = HpdOperator(task_id="verify", command=verify_command, execution_timeout=timedelta(hours=6))
    report = ReportOperator(task_id="report", command=report_command, execution_timeout=timedelta(hours=1))
    plan >> extract >> verify >> report
