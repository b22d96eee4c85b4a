"""s3fs with an end to every call. Why it needs one: pipeline.s3."""

from __future__ import annotations

import asyncio
from typing import Any

from botocore.exceptions import HTTPClientError
from botocore.handlers import add_expect_header
from s3fs import S3FileSystem

#: Of one call with all its tries, and then of reading the body of its answer; 64 MiB need 64 at a megabyte a second.
CALL_SECONDS = 300.0


class _BoundedBody:
    """The body of an answer, each read of which ends: the client's own limit begins anew with every byte that comes.
    s3fs asks nothing else of a body."""

    def __init__(self, body: Any) -> None:
        self._body = body

    async def read(self, amount: int | None = None) -> Any:
        """Raises an error behind which s3fs asks again, as behind a body that ends early."""
        try:
            async with asyncio.timeout(CALL_SECONDS) as limit:
                return await self._body.read(amount)
        except TimeoutError as e:
            if not limit.expired():
                raise
            raise HTTPClientError(error=f"an answer was not there whole after {CALL_SECONDS:g} s") from e

    def close(self) -> None:
        self._body.close()


class BoundedS3(S3FileSystem):
    #: s3fs's own tries, five by default, multiply with botocore's.
    retries = 2
    _settled: Any = None

    async def set_session(self, *args: Any, **kwargs: Any) -> Any:
        client = await super().set_session(*args, **kwargs)
        if client is not self._settled:
            # With `Expect: 100-continue` an upload waits for a go-ahead, and no time limit covers that wait.
            client.meta.events.unregister("before-call.s3", add_expect_header)
            self._settled = client
        return client

    async def _call_s3(self, method: str, *args: Any, **kwargs: Any) -> Any:
        # The client's limits are on connecting and on waiting for an answer, not on a peer that takes no more bytes.
        try:
            async with asyncio.timeout(CALL_SECONDS):
                answer = await super()._call_s3(method, *args, **kwargs)
        except TimeoutError as e:  # fsspec takes the words away from one of these
            raise ConnectionError(f"{method} was not done after {CALL_SECONDS:g} s") from e
        # s3fs reads it after this call, where nothing else bounds it.
        return answer | {"Body": _BoundedBody(answer["Body"])} if method == "get_object" else answer
