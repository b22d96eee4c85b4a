"""What the tasks of the DAGs tell `hpd`, for which partition, and what the job may cost. No operator and no DAG.

Copy this file into the DAG folder, beside hpd_tasks.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

COMMAND = os.environ.get("HPD_COMMAND", "hpd")

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
    if params.get("dollars_per_hour"):  # as `cost` takes it: the configuration's own price wins
        command += ["--fallback-dollars-per-hour", str(params["dollars_per_hour"])]
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


def check_cost(dollars: float | None, params: Params) -> None:
    """Raises `AirflowFailException` where the estimate is above the budget, or there is no price and a budget or a
    report is asked for: `hpd report` would refuse after everything was paid."""
    budget, report = params.get("budget_dollars"), params.get("report") or None
    for name, given in (("budget_dollars", budget), ("report", report)):
        if dollars is None and given is not None:
            raise AirflowFailException(
                f"{name} is {given}, and there is no price to estimate with: set `price` in the configuration, or the "
                "parameter dollars_per_hour"
            )
    if dollars is not None and budget is not None and dollars > budget:
        raise AirflowFailException(f"estimated at {dollars:.2f} dollars, above budget_dollars {budget:g}: not started")


def partition_of(context: Mapping[str, Any]) -> str:
    """The parameter, else the date of the run's data interval, or of its start where it has none."""
    given = context["params"].get("partition")
    when = context.get("logical_date") or context["dag_run"].run_after
    return str(given) if given else when.strftime("%Y-%m-%d")
