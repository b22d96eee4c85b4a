"""What is submitted and under which id; attaching, following and stopping. Knows no Ray: see `Cluster`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Protocol, TypeVar

from hpd_core.spec import fingerprint
from pipeline.job import JobError, JobSpec

#: What the cluster runs, in the folder that `jobs.cluster.package` builds.
CONFIG_IN_PACKAGE = "job/job.yaml"
ENTRYPOINT = f"python -m jobs.extract --config {CONFIG_IN_PACKAGE}"
#: Metadata of a job on the cluster: its output, and a digest of all its settings.
OUTPUT_KEY, SETTINGS_KEY = "hpd_output", "hpd_settings"
#: The sections of a configuration that decide which rows an output has. Of the others a rerun may have new values.
_DECIDING = ("text", "model", "prompt", "decode", "confidence")
#: A cluster that does not answer is asked again for so long, and a stopped job waited for.
PATIENCE_SECONDS, STOP_SECONDS = 300.0, 60.0
#: A job that the cluster may still be taking is looked for so long: Ray itself waits 10 s for an agent.
APPEAR_SECONDS = 15.0
#: A cluster in trouble is asked again for so long, so many seconds apart, before anything is followed.
TROUBLE_SECONDS, TROUBLE_PAUSE = 60.0, 2.0
#: The log is read whole each time: a long one is asked for less often than the state, and costs no more than this. One
#: that is not handed out is asked for again after `TROUBLE_SECONDS`, and for so many more when its job has ended.
LOG_BYTES_PER_SECOND, LAST_LOG_SECONDS = 100_000, 120.0


class ClusterError(JobError):
    """A cluster that refuses, or is no Ray cluster; the message names its address."""


class ClusterUnavailableError(ClusterError):
    """A cluster that does not answer: the same may succeed later."""


class ClusterTroubledError(ClusterUnavailableError):
    """A cluster that answers, and says that it has trouble of its own: so Ray's does while a job of it is stopping."""


class State(StrEnum):
    """Ray's own words."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"

    @property
    def ended(self) -> bool:
        return self not in (State.PENDING, State.RUNNING)


@dataclass(frozen=True, slots=True)
class RemoteJob:
    """A job as the cluster knows it. exit_code: of its driver, None where it has not ended by itself."""

    id: str
    state: State
    message: str = ""
    exit_code: int | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


class Cluster(Protocol):
    """The five things that are asked of a cluster. All raise `ClusterError`, each within a bounded time."""

    @property
    def address(self) -> str: ...

    def jobs(self) -> Sequence[RemoteJob]:
        """All that were ever submitted, as far as the cluster remembers."""
        ...

    def job(self, id: str) -> RemoteJob | None: ...

    def submit(self, id: str, submission: Submission) -> bool:
        """False where the cluster has a job of this id already."""
        ...

    def log(self, id: str) -> str:
        """All that the job has written so far; empty where it has not begun."""
        ...

    def stop(self, id: str) -> bool:
        """False where there is nothing to stop: not yet, or no longer."""
        ...


@dataclass(frozen=True, slots=True)
class Submission:
    """One job of a user: the same output and the same deciding settings are the same job.

    mark: fingerprint of both. settings: digest of all settings, to tell whether a running job has these. folder: what
    is uploaded as its working directory. env: variables for its processes; anybody who sees the cluster sees them.
    """

    mark: str
    output: str
    settings: str
    folder: str
    env: Mapping[str, str] = field(default_factory=dict)

    def id(self, attempt: int) -> str:
        return f"hpd-{self.mark}-{attempt}"

    def attempt(self, id: str) -> int:
        """Number of the attempt that has this id; 0 where it is another job's."""
        before, _, number = id.rpartition("-")
        return int(number) if before == f"hpd-{self.mark}" and number.isdigit() else 0

    @property
    def metadata(self) -> dict[str, str]:
        return {OUTPUT_KEY: self.output, SETTINGS_KEY: self.settings}


def submission_of(job: JobSpec, folder: str, env: Mapping[str, str]) -> Submission:
    """`job` with absolute paths. Storage options are in neither fingerprint."""
    facts = {name: value for name, value in job.config.items() if name in _DECIDING}
    facts |= {"reader": job.reader.facts(), "columns": asdict(job.output_options)}
    facts |= {"inputs": list(job.inputs), "output": job.output, "limit": job.limit}
    # Not the paths as they were typed: they depend on the current folder.
    others = {name: job.config[name] for name in ("pool", "units", "run", "limits", "price")}
    everything: dict[str, Any] = {"facts": facts, "others": others, "env": sorted(env.items())}
    return Submission(fingerprint(facts), job.output, fingerprint(everything), folder, dict(env))


@dataclass(frozen=True, slots=True)
class Clock:
    """Time, so that tests need not wait."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


Answer = TypeVar("Answer")


def insist(
    ask: Callable[[], Answer],
    say: Callable[[str], None],
    *,
    passing: type[ClusterUnavailableError] = ClusterTroubledError,
    end: float | None = None,
    clock: Clock | None = None,
) -> Answer:
    """What `ask` gives, asked again while it raises `passing`. end: of the `clock`; `TROUBLE_SECONDS` from now where it
    is not given. Whatever is asked must be safe to ask twice."""
    clock = clock or Clock()
    end = clock.now() + TROUBLE_SECONDS if end is None else end
    while True:
        try:
            return ask()
        except passing as error:
            if clock.now() >= end:
                raise
            say(f"{error}; asking again")
            clock.sleep(TROUBLE_PAUSE)


def place(cluster: Cluster, submission: Submission) -> tuple[RemoteJob, bool]:
    """Submits the next attempt, or finds the one that has not ended; (it, whether it was there already).

    Raises `ClusterError` where another job, of other settings, is writing the same output.
    """
    jobs = [job for job in cluster.jobs() if job.id]
    for other in jobs:
        same = other.metadata.get(OUTPUT_KEY) == submission.output and not submission.attempt(other.id)
        if same and not other.state.ended:
            raise ClusterError(
                f"{cluster.address}: job {other.id} ({other.state}) writes {submission.output} with other settings; "
                f"let it end, or stop it: ray job stop --address {cluster.address} {other.id}"
            )
    attempts = sorted((job for job in jobs if submission.attempt(job.id)), key=lambda job: submission.attempt(job.id))
    if attempts and not attempts[-1].state.ended:
        return attempts[-1], True
    id = submission.id(submission.attempt(attempts[-1].id) + 1 if attempts else 1)
    mine = RemoteJob(id, State.PENDING, metadata=submission.metadata)
    if cluster.submit(id, submission):
        return mine, False
    # Who asked at the same moment, and was quicker, has submitted the same job.
    return cluster.job(id) or mine, True


def known(cluster: Cluster, id: str, submission: Submission) -> RemoteJob | None:
    """The job of this id, None where the cluster has forgotten it. Raises `ClusterError` where it is another's."""
    job = cluster.job(id)
    if job is not None and not submission.attempt(id):
        raise ClusterError(
            f"{cluster.address}: job {id} is of another job than this configuration, input and output: "
            f"it writes {job.metadata.get(OUTPUT_KEY, 'somewhere else')}"
        )
    return job


def follow(
    cluster: Cluster,
    id: str,
    *,
    write: Callable[[str], None],
    say: Callable[[str], None],
    every: float,
    clock: Clock | None = None,
) -> RemoteJob | None:
    """Waits for the end of a job and gives `write` its log as it grows; None where the cluster has forgotten it.

    every: seconds between looks at its state. Raises `ClusterUnavailableError` where nobody answered for
    `PATIENCE_SECONDS`.
    """
    clock = clock or Clock()
    shown, state, answered = 0, None, clock.now()
    log_due = answered
    while True:
        try:
            job = cluster.job(id)
        except ClusterUnavailableError as error:
            if clock.now() - answered > PATIENCE_SECONDS:
                raise
            say(f"{error}; the job may go on, asking again")
            clock.sleep(every)
            continue
        answered = clock.now()
        if job is None:
            return None
        if job.state is not state:
            state = job.state
            say(f"job {id}: {state}" + (f", {job.message}" if job.message else ""))
        if job.state.ended or clock.now() >= log_due:
            log = _log(cluster, job, say, clock)
            if log is not None and len(log) > shown:
                write(log[shown:])
                shown = len(log)
            log_due = clock.now() + (TROUBLE_SECONDS if log is None else shown / LOG_BYTES_PER_SECOND)
        if job.state.ended:
            return job
        clock.sleep(every)


def _log(cluster: Cluster, job: RemoteJob, say: Callable[[str], None], clock: Clock) -> str | None:
    """None where nobody hands it out, which says nothing of the job: its state was answered."""
    end = clock.now() + (LAST_LOG_SECONDS if job.state.ended else 0.0)
    try:
        return insist(partial(cluster.log, job.id), say, passing=ClusterUnavailableError, end=end, clock=clock)
    except ClusterUnavailableError as error:
        say(f"{error}; the end of its log is not shown" if job.state.ended else f"{error}; its log comes later")
        return None


def stop(
    cluster: Cluster,
    submission: Submission,
    say: Callable[[str], None],
    clock: Clock | None = None,
    *,
    begun: bool = False,
) -> list[RemoteJob]:
    """Stops each attempt that has not ended and waits for its end; how they ended, or stand after `STOP_SECONDS`.

    begun: a submission may be under way whose answer nobody waited for. Where no attempt runs, one is looked for over
    `APPEAR_SECONDS`. Raises `ClusterUnavailableError` where nobody answers for `STOP_SECONDS`.
    """
    clock = clock or Clock()
    end = clock.now() + STOP_SECONDS

    def asked(ask: Callable[[], Answer]) -> Answer:
        # A job that goes on costs money: silence is no reason to let it.
        return insist(ask, say, passing=ClusterUnavailableError, end=end, clock=clock)

    def unended() -> list[RemoteJob]:
        return [job for job in asked(cluster.jobs) if submission.attempt(job.id) and not job.state.ended]

    running, appears = unended(), clock.now() + APPEAR_SECONDS
    while begun and not running and clock.now() < appears:
        clock.sleep(1)
        running = unended()
    heard = {job.id: asked(partial(cluster.stop, job.id)) for job in running}
    ended: list[RemoteJob] = []
    for job in running:
        now = asked(partial(cluster.job, job.id))
        while now is not None and not now.state.ended and clock.now() < end:
            clock.sleep(1)
            # A job is listed before it has a process that could be told to stop.
            heard[job.id] = heard[job.id] or asked(partial(cluster.stop, job.id))
            now = asked(partial(cluster.job, job.id))
        ended.append(now or job)
    return ended
