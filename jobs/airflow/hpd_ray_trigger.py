"""Airflow triggers that wait for a job on a Ray cluster or a RayJob on Kubernetes: hours of waiting hold no worker.

Copy this file into Airflow's plugins folder, where triggerer and workers both find it; the triggerer never looks into a
DAG folder. The DAGs go without it too, and wait in the worker then. Takes Airflow and the standard library; of RayJobs
also `kubectl` where the triggerer runs.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener, urlopen

from airflow.triggers.base import BaseTrigger, TriggerEvent

#: Ray's words for a job that has ended.
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
#: Ours for why nobody waits any longer: the cluster has forgotten the job, does not answer, or refuses to.
GONE, SILENT, REFUSED, TIMED_OUT = "GONE", "SILENT", "REFUSED", "TIMED_OUT"
#: Seconds for one answer, and for which a cluster that gives none is asked again; kubectl may have to log in first.
ANSWER_SECONDS, PATIENCE_SECONDS = 10.0, 300.0
KUBECTL_SECONDS = 60.0


class RaySilentError(Exception):
    """Nobody answers, or somebody who says that he has trouble of his own. The same may succeed later."""


class RayRefusedError(Exception):
    """The cluster wants a token, or is no Ray cluster."""


def job_state(address: str, job: str) -> str | None:
    """Ray's word for the state of a job, None where there is none. Raises `RaySilentError`, `RayRefusedError`."""
    facts = _ask(address, job)
    return None if facts is None else str(facts.get("status"))


def stop_job(address: str, job: str) -> None:
    """Asks the cluster to stop a job; what it has committed stays. Raises as `job_state` does."""
    _ask(address, job, "/stop", method="POST")


def triggerer_runs() -> bool:
    """Whether Airflow's API server says that a triggerer is alive; False where it cannot be asked."""
    from airflow.sdk.configuration import conf

    base = conf.get("api", "base_url", fallback="") or "/"
    base = f"http://localhost:8080{base}" if base.startswith("/") else base
    server = conf.get("core", "execution_api_server_url", fallback="") or f"{base.rstrip('/')}/execution/"
    try:
        url = f"{server.rstrip('/').removesuffix('/execution')}/api/v2/monitor/health"
        with urlopen(url, timeout=ANSWER_SECONDS) as answer:
            return bool(json.load(answer)["triggerer"]["status"] == "healthy")
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
        return False


class NoRedirects(HTTPRedirectHandler):
    """Makes an error of a redirect: urllib would hand the token to whichever host it leads to."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Waiting(BaseTrigger):
    """Asks for the state of something every so many seconds, until it has ended or waiting for it makes no sense.

    every: seconds between looks. until: `time.time()` at which the wait is over.
    """

    def __init__(self, *, every: float, until: float) -> None:
        super().__init__()
        self.every, self.until = every, until

    async def state(self) -> str | None:
        """Its state now, empty before it has one; None where it is not there (any more). Raises `RaySilentError`,
        `RayRefusedError`."""
        raise NotImplementedError

    def has_ended(self, state: str) -> bool:
        raise NotImplementedError

    async def last_state(self) -> str:
        """The state that it ended in, else `GONE`, `SILENT`, `REFUSED` or `TIMED_OUT`."""
        before, answered = "", time.monotonic()
        while True:
            try:
                state = await self.state()
                answered = time.monotonic()
                if state is None:
                    return GONE
                if state != before:
                    self.log.info("the job: %s", state)
                    before = state
                if self.has_ended(state):
                    return state
            except RaySilentError as error:
                self.log.warning("%s; the job may go on, asking again", error)
                if time.monotonic() - answered > PATIENCE_SECONDS:
                    return SILENT
            except RayRefusedError as error:
                self.log.warning("%s", error)
                return REFUSED
            if time.time() > self.until:
                return TIMED_OUT
            await asyncio.sleep(self.every)


class RayJobTrigger(Waiting):
    """Fires once, with {job, address, state}: one of `ENDED`, `GONE`, `SILENT`, `REFUSED`, `TIMED_OUT`.

    address: of the cluster's dashboard. job: its submission id. A token is taken from RAY_AUTH_TOKEN of the triggerer.
    """

    def __init__(self, *, address: str, job: str, every: float, until: float) -> None:
        super().__init__(every=every, until=until)
        self.address, self.job = address, job

    def serialize(self) -> tuple[str, dict[str, Any]]:
        facts = {"address": self.address, "job": self.job, "every": self.every, "until": self.until}
        return "hpd_ray_trigger.RayJobTrigger", facts

    async def run(self) -> AsyncIterator[TriggerEvent]:
        state = await self.last_state()
        yield TriggerEvent({"job": self.job, "address": self.address, "state": state})

    async def on_kill(self) -> None:
        """Somebody marked the deferred task or cleared it (Airflow 3.3 and later call this); not at a restart."""
        await asyncio.to_thread(stop_job, self.address, self.job)
        self.log.info("asked %s to stop job %s", self.address, self.job)

    async def state(self) -> str | None:
        return await asyncio.to_thread(job_state, self.address, self.job)  # urllib knows no asyncio

    def has_ended(self, state: str) -> bool:
        return state in ENDED


class KubernetesTrigger(Waiting):
    """Fires once, with {state}: one that `ended` matches, `GONE`, `SILENT`, `REFUSED` or `TIMED_OUT`.

    look, stop: words for `kubectl`; `look` prints the kind of the job and its state, nothing where there is no such
    job. ended: a pattern of its last states.
    """

    def __init__(self, *, look: Sequence[str], stop: Sequence[str], ended: str, every: float, until: float) -> None:
        super().__init__(every=every, until=until)
        self.look, self.stop, self.ended = list(look), list(stop), ended

    def serialize(self) -> tuple[str, dict[str, Any]]:
        facts = {"look": self.look, "stop": self.stop, "ended": self.ended, "every": self.every, "until": self.until}
        return "hpd_ray_trigger.KubernetesTrigger", facts

    async def run(self) -> AsyncIterator[TriggerEvent]:
        yield TriggerEvent({"state": await self.last_state()})

    async def on_kill(self) -> None:
        """As of `RayJobTrigger`."""
        await _kubectl(self.stop)
        self.log.info("kubectl %s", " ".join(self.stop))

    async def state(self) -> str | None:
        kind, _, state = (await _kubectl(self.look)).partition(" ")
        return state.strip() if kind else None

    def has_ended(self, state: str) -> bool:
        return re.fullmatch(self.ended, state) is not None


async def _kubectl(words: Sequence[str]) -> str:
    """What kubectl prints. Raises `RaySilentError` where it fails, which may pass, `RayRefusedError` where there is
    none."""
    try:
        process = await asyncio.create_subprocess_exec(
            "kubectl",
            *words,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise RayRefusedError(f"no kubectl where the triggerer runs: {error}") from error
    try:
        out, err = await asyncio.wait_for(process.communicate(), KUBECTL_SECONDS)
    except TimeoutError as error:
        _kill(process)
        await process.wait()
        raise RaySilentError(f"kubectl {words[0]} gave no answer for {KUBECTL_SECONDS:g} s") from error
    finally:
        if process.returncode is None:  # the triggerer ends meanwhile, and waits for nothing
            _kill(process)
    if process.returncode:
        told = err.decode(errors="replace").strip()
        raise RaySilentError(f"kubectl {words[0]} ended with {process.returncode}: {told}")
    return out.decode(errors="replace")


def _kill(process: asyncio.subprocess.Process) -> None:
    """Its whole group: a login helper of kubectl's would hold the pipes, and asyncio waits for these too."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _ask(address: str, job: str, question: str = "", method: str = "GET") -> Any:
    """The answer of Ray's job API, None where it knows no such job."""
    token = os.environ.get("RAY_AUTH_TOKEN")
    request = Request(
        f"{address.rstrip('/')}/api/jobs/{quote(job, safe='')}{question}",
        method=method,
        headers={"Authorization": f"Bearer {token}"} if token else {},
    )
    try:
        with build_opener(NoRedirects).open(request, timeout=ANSWER_SECONDS) as answer:
            return json.load(answer)
    except HTTPError as error:
        if error.code == 404:
            return None
        if 300 <= error.code < 400:
            host = urlsplit(error.headers.get("Location", "")).netloc or "another page"
            raise RayRefusedError(f"{address} sends to {host}, where no token is taken") from error
        if error.code == 429 or error.code >= 500:
            raise RaySilentError(f"the Ray cluster at {address} is in trouble: HTTP {error.code}") from error
        raise RayRefusedError(f"the Ray cluster at {address} refuses: HTTP {error.code}") from error
    except ValueError as error:
        raise RayRefusedError(f"{address}: not what a Ray job server answers") from error
    except (OSError, http.client.HTTPException) as error:
        raise RaySilentError(f"the Ray cluster at {address} does not answer: {error}") from error
