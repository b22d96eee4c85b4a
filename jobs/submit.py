"""`hpd submit`: the main job on a Ray cluster that is there already."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from jobs.cluster.address import chosen
from jobs.cluster.package import LIMIT_BYTES, build, located
from jobs.cluster.submission import (
    SETTINGS_KEY,
    Cluster,
    ClusterUnavailableError,
    RemoteJob,
    State,
    Submission,
    follow,
    insist,
    known,
    place,
    stop,
    submission_of,
)
from jobs.cluster.verdict import finished, judge
from jobs.console import Exit, Output, TerminatedError, command, output, run_alone, say, terminable
from jobs.options import AsJson, ConfigFile, Inputs, Limit, OutputFolder, Overrides
from pipeline.compose import compose
from pipeline.config import JobConfig, config_tree, load_config
from pipeline.job import JobError, JobSpec
from pipeline.manifest import OutputFolder as Folder
from pipeline.storage import Storage


@command
def submit(
    config: ConfigFile,
    address: Annotated[
        str | None, typer.Option("--address", "-a", help="Dashboard of the cluster's head node, http://HEAD:8265.")
    ] = None,
    input: Inputs = None,
    output_folder: OutputFolder = None,
    limit: Limit = None,
    set_: Overrides = None,
    follow_: Annotated[
        bool, typer.Option("--follow", "-f", help="Show the job's log and end as the job ends, by its manifest.")
    ] = False,
    stop_: Annotated[bool, typer.Option("--stop-on-interrupt", help="Ctrl-C and SIGTERM stop the job too.")] = False,
    attach: Annotated[
        str | None,
        typer.Option("--attach", metavar="ID", help="With --follow: submit nothing, and follow the job of this id."),
    ] = None,
    every: Annotated[float, typer.Option("--every", min=0.5, help="Seconds between looks at the job.")] = 5.0,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME=VALUE", help="Variable for the job's processes; no place for secrets."),
    ] = None,
    json_: AsJson = False,
) -> None:
    """Run the main job on a Ray cluster. A job that runs already is attached to; one that ended is continued.

    Exit codes with --follow are those of `hpd extract`, by the manifest of the output: 0 complete, 2 configuration or
    input, 3 more rows in error than allowed, 4 incomplete. Also 4: a cluster that does not answer, and SIGTERM. Without
    --follow: 0 when the job is submitted. With --attach a job that has ended already is not continued, only judged.
    """
    if attach is not None and not follow_:
        raise typer.BadParameter("--attach without --follow does nothing")
    where, notice = chosen(address, os.environ)
    variables = environment(env or ())
    settings = load_config(config, set_ or ())
    job = located(compose(settings, config, inputs=input or (), output=output_folder, limit=limit))
    if notice:
        say(notice)
    for path in [path for path in (*job.inputs, job.output) if "://" not in path]:
        say(f"{path} is a local path: the cluster's nodes must have the same folder there")
    with terminable(), tempfile.TemporaryDirectory(prefix="hpd-submit-") as folder, output(json_) as out:
        submission = submission_of(job, folder, variables)
        if attach is None:
            package = build(Path(folder), config_tree(config, set_ or ()), settings, job, config)
            size = f"{package.bytes / 2**20:.1f} of at most {LIMIT_BYTES / 2**20:.0f} MiB"
            say(f"package: {package.files} files, {size}")
        try:
            from jobs.cluster.ray_jobs import RayJobs  # seconds, which wrong options need not wait for

            cluster = insist(lambda: RayJobs(where), say)
            run(cluster, submission, job, settings, out, watch=follow_, stop_too=stop_, every=every, attach=attach)
        except ClusterUnavailableError as error:
            say(f"error: {error}")
            raise typer.Exit(Exit.INCOMPLETE) from error


def run(
    cluster: Cluster,
    submission: Submission,
    job: JobSpec,
    settings: JobConfig,
    out: Output,
    *,
    watch: bool,
    stop_too: bool,
    every: float,
    attach: str | None = None,
) -> None:
    """Submits or attaches, follows where `watch` is set, and ends by `typer.Exit` where the job is not complete.

    attach: id of the only job to follow; nothing is submitted.
    """
    folder = Folder(job.output, Storage(job.output_storage))
    before = finished(folder)  # also: can this machine read the output, by which it is to judge?
    placing = attach is None  # until the cluster has answered, it may have taken the job or be about to
    try:
        if attach is None:
            remote, attached = insist(lambda: place(cluster, submission), say)
        else:
            there = insist(lambda: known(cluster, attach, submission), say)
            remote, attached = there or RemoteJob(attach, State.PENDING), True
        placing = False
        say(f"{'attached to' if attached else 'submitted'} job {remote.id} at {cluster.address}")
        if attached and remote.metadata.get(SETTINGS_KEY, submission.settings) != submission.settings:
            say("it was submitted with other settings of pool, units, run, limits, price or --env, and keeps them")
        facts: dict[str, Any] = {
            "submission_id": remote.id,
            "attempt": submission.attempt(remote.id),
            "attached": attached,
            "address": cluster.address,
            "output": job.output,
        }
        if not watch:
            out.finish(facts | {"state": str(remote.state)})
            out.console.print(remote.id, highlight=False, soft_wrap=True)
            return
        ended = follow(cluster, remote.id, write=lambda text: _write(out, text), say=say, every=every)
    except (KeyboardInterrupt, TerminatedError):
        _interrupted(cluster, submission, stop_too, placing)
        raise
    verdict = judge(job, settings.limits, before, finished(folder), ended)
    out.finish(
        facts
        | {
            "state": str(ended.state) if ended else None,
            "driver_exit_code": ended.exit_code if ended else None,
            "complete": verdict.rows_in is not None,
            "rows_in": verdict.rows_in,
            "rows_error": verdict.rows_error,
            "reason": verdict.reason,
        }
    )
    say(verdict.reason)
    if verdict.exit is not Exit.COMPLETE:
        raise typer.Exit(verdict.exit)


def _write(out: Output, text: str) -> None:
    out.console.print(text, end="", markup=False, highlight=False, soft_wrap=True)


def _interrupted(cluster: Cluster, submission: Submission, stop_too: bool, placing: bool) -> None:
    if not stop_too:
        say("the job goes on; the same command attaches to it again")
        return
    say("stopping the job")
    try:
        stopped = stop(cluster, submission, say, begun=placing)
        for job in stopped:
            say(f"job {job.id}: {job.state}")
        if not stopped:
            say("no attempt of it runs there")
    except ClusterUnavailableError as error:
        say(f"{error}; the job may go on: `ray job list --address {cluster.address}` names it, `ray job stop` stops it")


def environment(words: Sequence[str]) -> dict[str, str]:
    """{name: value} of `NAME=VALUE`. Raises `JobError`."""
    pairs = [word.partition("=") for word in words]
    for word, (name, equals, _) in zip(words, pairs, strict=True):
        if not equals or not name.isidentifier():
            raise JobError(f"--env {word.partition('=')[0]}: must be written NAME=VALUE")
    return {name: value for name, _, value in pairs}


if __name__ == "__main__":
    run_alone(submit)
