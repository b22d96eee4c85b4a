"""What the door to files sets on s3fs and reads from its errors: tries, time limits, error codes. Knows no object.

Who retries what (s3fs 2026.9 on botocore 1.43), so that nothing here has to:
- botocore sends a request again where no answer came, or 500, 502, 503, 504 or a throttling code did, with random waits
  of up to 1, 2, 4, 8 s. Its client has a quota of retries that successes fill again: behind a store that refuses
  everything the tries become fewer.
- s3fs runs a whole call again after connections that broke and SlowDown, and where the body of an answer ends early,
  which botocore never sees. Around reads it does so twice, one inside the other.
So a call that is refused every time ends after TRIES requests (500, no connection), twice as many (SlowDown), at most
four times as many (a read that is accepted and never answered): 15 s, 30 s, six minutes at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import fsspec

TRIES = 5
#: s3fs's own tries, five by default, multiply with botocore's.
_CALLS = 2
_CLIENT = {"retries": {"mode": "standard", "total_max_attempts": TRIES}}

#: The store's own fault, or one on the way: the same request may succeed later.
_PASSING = frozenset(
    ["InternalError", "ServiceUnavailable", "SlowDown", "RequestTimeout", "500", "502", "503", "504", "Throttling"]
)
#: Exceptions of botocore, aiohttp and Python by name: where they are defined is theirs to change.
_NO_ANSWER = frozenset(
    [
        "ConnectionError",
        "TimeoutError",
        "HTTPClientError",
        "ClientPayloadError",
        "IncompleteRead",
        "ResponseParserError",
    ]
)
_EXISTS = frozenset(["PreconditionFailed", "412"])
#: Answers to a conditional write whose earlier try, perhaps one with a lost answer, may have succeeded.
_PERHAPS_EXISTS = frozenset(["ConditionalRequestConflict", "OperationAborted", "409", "NoSuchUpload"])


def options(given: Mapping[str, Any]) -> dict[str, Any]:
    """s3fs's options: those `given`, and ours where they say nothing.

    One request at a time inside a call: an upload that fails leaves no part under way behind its abort, and a read
    whose body ends early is tried again.
    """
    client = _CLIENT | dict(given.get("config_kwargs") or {})
    return {"use_listings_cache": False, "max_concurrency": 1} | dict(given) | {"config_kwargs": client}


def settle(fs: fsspec.AbstractFileSystem) -> None:
    """Bounds s3fs's own tries, which are an attribute and no option."""
    fs.retries = _CALLS


def exists(error: BaseException) -> bool:
    """Whether a conditional write was refused because the object is there."""
    return bool(_EXISTS & set(_codes(error)))


def perhaps_exists(error: BaseException) -> bool:
    """Whether the object of a conditional write may be there after this error."""
    return bool(_PERHAPS_EXISTS & set(_codes(error)))


def is_missing_bucket(error: BaseException) -> bool:
    return "NoSuchBucket" in _codes(error)


def is_passing(error: BaseException) -> bool:
    """Whether the store, or the way to it, failed for a time, unlike a refusal that will be repeated."""
    kinds = {kind.__name__ for e in _chain(error) for kind in type(e).__mro__}
    return bool(_PASSING & set(_codes(error))) or ("SSLError" not in kinds and bool(_NO_ANSWER & kinds))


def _codes(error: BaseException) -> list[str]:
    responses = (getattr(e, "response", None) for e in _chain(error))
    return [str(r.get("Error", {}).get("Code", "")) for r in responses if isinstance(r, Mapping)]


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what caused it. s3fs raises Python's errors from botocore's, which know the code."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__
