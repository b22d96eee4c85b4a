"""The operators of the DAGs: each runs one command `hpd`, of which hpd_commands.py has the words.

Copy this file into the DAG folder, beside hpd_commands.py. It holds no DAG, because Airflow counts a DAG for each file
that imports it.
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

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException, TaskDeferralError
from hpd_commands import (
    Params,
    check_cost,
    cost,
    follow_command,
    partition_of,
    plan_command,
    report_command,
    submit_command,
    validate_command,
)

try:
    import hpd_ray_trigger as waiting
except ImportError:
    waiting = None

TIMEOUT = timedelta(hours=float(os.environ.get("HPD_TIMEOUT_HOURS", "24")))
RETRY_DELAY = timedelta(seconds=float(os.environ.get("HPD_RETRY_SECONDS", "300")))
#: Exit codes of `hpd` that say the same however often it is tried: configuration or input, too many rows in error,
#: damaged. All others (incomplete, unreachable, killed) are worth a retry, which goes on from what is committed.
FINAL = (2, 3, 5)


def shown(command: Sequence[str]) -> str:
    """A command line for the log. Of `--set KEY=VALUE` it has the key only: the value may be the secret of a store."""
    pairs = zip(("", *command), command, strict=False)
    return " ".join(f"{word.partition('=')[0]}=…" if before == "--set" else word for before, word in pairs)


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
        self.log.info("running %s", shown(command))
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
        check_cost(dollars, params)
        return {name: facts[name] for name in ("files", "units", "rows", "rows_left")} | {"dollars": dollars}


class ReportOperator(HpdOperator):
    """Skipped where no folder is given."""

    def execute(self, context: Any) -> Any:
        params = context["params"]
        if not params.get("report"):
            raise AirflowSkipException("no folder for a report: parameter report")
        return self.run_hpd(report_command(params, partition_of(context)))
