"""An Airflow 3 DAG: plan, extract, verify and report one partition of a catalog on a Ray cluster.

Copy this file, hpd_tasks.py and hpd_commands.py into the DAG folder, and hpd_ray_trigger.py into the plugins folder
(without it the task extract waits in a worker). Airflow's environment needs nothing else: no Ray provider, no ray, no
torch, nothing of this project. Each task runs the command `hpd` of another environment. Variables that are read when
the DAG is parsed:

HPD_COMMAND           path of `hpd`; `hpd` of PATH without it
HPD_TIMEOUT_HOURS     longest extraction, 24 without it
HPD_RETRY_SECONDS     wait before the first retry, 300 without it

docs/airflow.md says what the parameters mean and what happens when a task is killed.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param
from hpd_commands import plan_command, report_command, verify_command
from hpd_tasks import RETRY_DELAY, TIMEOUT, ExtractOperator, HpdOperator, PlanOperator, ReportOperator

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
