"""An Airflow trigger that waits for a job on a Ray cluster: hours of waiting hold no worker.

Copy this file into Airflow's plugins folder, where triggerer and workers both find it; the triggerer never looks into a
DAG folder. hpd_catalog.py goes without it too, and waits in the worker then. Takes Airflow and the standard library.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from airflow.triggers.base import BaseTrigger, TriggerEvent

#: Ray's words for a job that has ended.
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
#: Ours for why nobody waits any longer: the cluster has forgotten the job, does not answer, or refuses to.
GONE, SILENT, REFUSED, TIMED_OUT = "GONE", "SILENT", "REFUSED", "TIMED_OUT"
#: Seconds for one answer, and for which a cluster that gives none is asked again.
ANSWER_SECONDS, PATIENCE_SECONDS = 10.0, 300.0


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


class RayJobTrigger(BaseTrigger):
    """Fires once, with {job, address, state}: one of `ENDED`, `GONE`, `SILENT`, `REFUSED`, `TIMED_OUT`.

    address: of the cluster's dashboard. job: its submission id. every: seconds between looks. until: `time.time()` at
    which the wait is over. A token is taken from RAY_AUTH_TOKEN of the triggerer.
    """

    def __init__(self, *, address: str, job: str, every: float, until: float) -> None:
        super().__init__()
        self.address, self.job, self.every, self.until = address, job, every, until

    def serialize(self) -> tuple[str, dict[str, Any]]:
        facts = {"address": self.address, "job": self.job, "every": self.every, "until": self.until}
        return "hpd_ray_trigger.RayJobTrigger", facts

    async def run(self) -> AsyncIterator[TriggerEvent]:
        state = await self._last()
        yield TriggerEvent({"job": self.job, "address": self.address, "state": state})

    async def on_kill(self) -> None:
        """Somebody marked the deferred task or cleared it (Airflow 3.3 and later call this); not at a restart."""
        await asyncio.to_thread(stop_job, self.address, self.job)
        self.log.info("asked %s to stop job %s", self.address, self.job)

    async def _last(self) -> str:
        before, answered = "", time.monotonic()
        while True:
            try:
                state = await asyncio.to_thread(job_state, self.address, self.job)  # urllib knows no asyncio
                answered = time.monotonic()
                if state is None:
                    return GONE
                if state != before:
                    self.log.info("job %s: %s", self.job, state)
                    before = state
                if state in ENDED:
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


def _ask(address: str, job: str, question: str = "", method: str = "GET") -> Any:
    """The answer of Ray's job API, None where it knows no such job."""
    token = os.environ.get("RAY_AUTH_TOKEN")
    request = Request(
        f"{address.rstrip('/')}/api/jobs/{quote(job, safe='')}{question}",
        method=method,
        headers={"Authorization": f"Bearer {token}"} if token else {},
    )
    try:
        with urlopen(request, timeout=ANSWER_SECONDS) as answer:
            return json.load(answer)
    except HTTPError as error:
        if error.code == 404:
            return None
        if error.code == 429 or error.code >= 500:
            raise RaySilentError(f"the Ray cluster at {address} is in trouble: HTTP {error.code}") from error
        raise RayRefusedError(f"the Ray cluster at {address} refuses: HTTP {error.code}") from error
    except ValueError as error:
        raise RayRefusedError(f"{address}: not what a Ray job server answers") from error
    except (OSError, http.client.HTTPException) as error:
        raise RaySilentError(f"the Ray cluster at {address} does not answer: {error}") from error
