"""Ray's job server as a `Cluster`. Imports Ray (seconds) when it connects, and starts none."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from jobs.cluster.submission import (
    ENTRYPOINT,
    ClusterError,
    ClusterTroubledError,
    ClusterUnavailableError,
    RemoteJob,
    State,
    Submission,
)

#: Seconds for a connection, and for each silence of an answer; an upload is answered after it was stored.
TIMEOUTS, UPLOAD_TIMEOUTS = (10.0, 60.0), (10.0, 300.0)
#: Loggers of Ray that tell of each upload, and that the adapter of the default model is large.
_TALKATIVE = (
    "ray.dashboard.modules.dashboard_sdk",
    "ray.dashboard.modules.job.sdk",
    "ray._private.runtime_env.packaging",
)
#: Statuses of a server that has trouble of its own, as gateways and Ray have: 500 is also its "No available agent to
#: submit job, please try again later".
_TOO_MANY_REQUESTS, _SERVER_ERRORS = 429, range(500, 600)


class RayJobs:
    """The job server at an HTTP address, reached when it is made. Raises `ClusterError`."""

    def __init__(self, address: str, timeouts: tuple[float, float] = TIMEOUTS) -> None:
        self.address = address
        with self._explained():
            self._client = _client(address, timeouts)

    def jobs(self) -> Sequence[RemoteJob]:
        with self._explained():
            return [_remote(details) for details in self._client.list_jobs() if details.submission_id]

    def job(self, id: str) -> RemoteJob | None:
        with self._explained():
            return self._unless_unknown(lambda: _remote(self._client.get_job_info(id)))

    def submit(self, id: str, submission: Submission) -> bool:
        runtime = {"working_dir": submission.folder, "env_vars": {"PYTHONUNBUFFERED": "1", **submission.env}}
        with self._explained():
            try:
                self._client.submit_job(
                    entrypoint=ENTRYPOINT, submission_id=id, runtime_env=runtime, metadata=submission.metadata
                )
            except RuntimeError:
                # Ray says in words only that an id is taken.
                if self.job(id) is None:
                    raise
                return False
            return True

    def log(self, id: str) -> str:
        with self._explained():
            try:
                return str(self._client.get_job_logs(id) or "")
            except RuntimeError:
                return ""  # not begun, or its node is gone: the state tells, and the log is no part of the verdict

    def stop(self, id: str) -> bool:
        with self._explained():
            return bool(self._unless_unknown(lambda: self._client.stop_job(id)))

    @staticmethod
    def _unless_unknown(ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except RuntimeError as error:
            if _status(error) == 404:
                return None
            raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """What Ray and requests raise, as `ClusterError` that names the address."""
        import requests
        from ray.exceptions import AuthenticationError

        try:
            yield
        except ClusterError:
            raise
        except (ConnectionError, requests.ConnectionError, requests.Timeout) as error:
            reason = "no answer in time" if isinstance(error, requests.Timeout) else "nobody answers"
            raise ClusterUnavailableError(f"the Ray cluster at {self.address} cannot be reached: {reason}") from error
        except AuthenticationError as error:
            raise ClusterError(f"the Ray cluster at {self.address} wants a token: {error}") from error
        except (RuntimeError, ValueError, requests.RequestException) as error:
            status = _status(error)
            if status == _TOO_MANY_REQUESTS or status in _SERVER_ERRORS:
                trouble = f"the Ray cluster at {self.address} is in trouble: {_short(error)}"
                raise ClusterTroubledError(trouble) from error
            raise ClusterError(f"{self.address}: not what a Ray job server answers: {_short(error)}") from error


def _client(address: str, timeouts: tuple[float, float]) -> Any:
    from ray.job_submission import JobSubmissionClient

    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.ERROR)

    class Bounded(JobSubmissionClient):
        """Ray's requests have no timeout: a server that accepts and stays silent would be waited for for ever."""

        def _do_request(self, method: str, endpoint: str, **kwargs: Any) -> Any:
            wait = UPLOAD_TIMEOUTS if method == "PUT" else timeouts
            return super()._do_request(method, endpoint, **{"timeout": wait} | kwargs)

    return Bounded(address)


def _remote(details: Any) -> RemoteJob:
    message = (details.message or "").partition(", last available logs")[0]  # they are shown anyway
    return RemoteJob(
        id=details.submission_id or "",
        state=State(str(details.status)),
        message=" ".join(message.split())[:500],
        exit_code=details.driver_exit_code,
        metadata=details.metadata or {},
    )


def _status(error: Exception) -> int | None:
    found = re.search(r"status code (\d{3})|^(\d{3}) (?:Server|Client) Error", str(error))
    return int(found[1] or found[2]) if found else None


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{lines[0]} … {lines[-1]}"[:500] if len(lines) > 1 else lines[0][:500]
