"""s3fs with an end to every call. Why it needs one: pipeline.s3."""

from __future__ import annotations

import asyncio
from typing import Any

from botocore.handlers import add_expect_header
from s3fs import S3FileSystem

#: Of one call with all its tries; 64 MiB need 64 at a megabyte a second.
CALL_SECONDS = 300.0


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
                return await super()._call_s3(method, *args, **kwargs)
        except TimeoutError as e:  # fsspec takes the words away from one of these
            raise ConnectionError(f"{method} was not done after {CALL_SECONDS:g} s") from e
