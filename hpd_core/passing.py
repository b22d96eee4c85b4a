"""Which errors of a store, or of the way to it, may pass by themselves: told by their names and the codes they carry,
since every client has classes of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

#: Codes of S3's answers, and of HTTP: the store's own fault, or one on the way. The same request may succeed later.
_CODES = frozenset(
    [
        "InternalError",
        "ServiceUnavailable",
        "SlowDown",
        "RequestTimeout",
        "Throttling",
        "429",
        "500",
        "502",
        "503",
        "504",
    ]
)
#: Exceptions of botocore, aiohttp, httpx and Python by name: where they are defined is theirs to change.
_NO_ANSWER = frozenset(
    [
        "ConnectionError",
        "TimeoutError",
        "HTTPClientError",
        "ClientConnectionError",
        "ClientPayloadError",
        "IncompleteRead",
        "ResponseParserError",
        "TransportError",
    ]
)
#: Those that are of these kinds and will be repeated: a certificate nobody trusts, a hub that is not to be asked.
_REPEATED = frozenset(["SSLError", "OfflineModeIsEnabled"])


def is_passing(error: BaseException) -> bool:
    """Whether the store, or the way to it, failed for a time, unlike a refusal that will be repeated."""
    kinds = {kind.__name__ for e in _chain(error) for kind in type(e).__mro__}
    return bool(_CODES & {*codes(error), *_statuses(error)}) or bool(_NO_ANSWER & kinds and not _REPEATED & kinds)


def codes(error: BaseException) -> list[str]:
    """S3's codes in an error and what caused it."""
    responses = (getattr(e, "response", None) for e in _chain(error))
    return [str(r.get("Error", {}).get("Code", "")) for r in responses if isinstance(r, Mapping)]


def _statuses(error: BaseException) -> list[str]:
    """HTTP's, as aiohttp (`status`), gcsfs (`code`) and the hub (`response`) keep them."""
    places = ((e, "status") for e in _chain(error)), ((e, "code") for e in _chain(error))
    answers = ((getattr(e, "response", None), "status_code") for e in _chain(error))
    return [str(getattr(where, name, "")) for place in (*places, answers) for where, name in place]


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what caused it. s3fs raises Python's errors from botocore's, which know the code."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__
