"""S3 behind the door to files: s3fs with bounded tries and times, and what its refusals mean.

Who retries what (s3fs 2026.9 on botocore 1.43), so that nothing here has to:
- botocore sends a request again where no answer came, or 500, 502, 503, 504 or 429 did, with random waits of up to 1,
  2, 4, 8 s. Its newer mode "standard" has a quota of retries for all requests of a client: behind a store that
  throttles for a minute there soon are none, and a batch job would rather wait.
- s3fs runs a whole call again after connections that broke and SlowDown, and where the body of an answer ends early,
  which botocore never sees. Around reads it does so twice, one inside the other.
So a call that is refused every time ends after TRIES requests (500, no connection), twice as many (SlowDown), at most
four times as many (a read that is never answered): after 15 s, 30 s, six minutes at most. A body that comes byte by
byte is asked for twice, five minutes each (`pipeline.bounded_s3fs`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsspec import AbstractFileSystem

from hpd_core.passing import codes

TRIES = 5
_CLIENT = {"retries": {"mode": "legacy", "total_max_attempts": TRIES}}

_EXISTS = frozenset(["PreconditionFailed", "412"])
#: Answers to a conditional write whose earlier try, perhaps one with a lost answer, may have succeeded.
_PERHAPS_EXISTS = frozenset(["ConditionalRequestConflict", "OperationAborted", "409", "NoSuchUpload"])


def filesystem(given: Mapping[str, Any]) -> AbstractFileSystem:
    """The filesystem of the storage options `given`, with our options where they say nothing.

    One request at a time inside a call: an upload that fails leaves no part under way behind its abort, and a read
    whose body ends early is tried again.
    """
    from pipeline.bounded_s3fs import BoundedS3  # brings s3fs in, half a second that local files need not wait for

    client = _CLIENT | dict(given.get("config_kwargs") or {})
    ours = {"use_listings_cache": False, "max_concurrency": 1}
    return BoundedS3(**ours | dict(given) | {"config_kwargs": client})


def is_s3(fs: AbstractFileSystem) -> bool:
    return "s3" in fs.protocol


def exists(error: BaseException) -> bool:
    """Whether a conditional write was refused because the object is there."""
    return bool(_EXISTS & set(codes(error)))


def perhaps_exists(error: BaseException) -> bool:
    """Whether the object of a conditional write may be there after this error."""
    return bool(_PERHAPS_EXISTS & set(codes(error)))


def is_missing_bucket(error: BaseException) -> bool:
    return "NoSuchBucket" in codes(error)
