"""A proxy in front of an S3 server that makes faults: a request is passed on byte for byte, Host included, so that its
signature stays valid, and its answer refused, delayed, cut or lost as a test asks."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from urllib.parse import unquote

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

#: Headers that belong to one connection, not to the message; the proxy has its own.
_HOP = ("connection", "keep-alive", "transfer-encoding", "expect")


class Kind(StrEnum):
    """What happens to a request. Of the first three the server never learns; the others it answers in full."""

    ERROR = "500"
    SLOW_DOWN = "503"
    RESET = "reset"  # the connection ends without an answer
    DELAY = "delay"  # the answer comes later than the client waits
    TRUNCATED = "truncated"  # the answer ends in the middle of its body
    LOST = "lost"  # the server has done it, the answer never comes
    TRICKLE = "trickle"  # the body of the answer comes byte by byte, each sooner than the client stops waiting

    @property
    def reaches_server(self) -> bool:
        return self not in (Kind.ERROR, Kind.SLOW_DOWN, Kind.RESET)


@dataclass
class Fault:
    """operation: S3's name, such as GetObject. key: pattern of `bucket/key`, for lists of `bucket/prefix`.

    times: so many requests, None for all of them. every: only each so manieth that matches. seconds: of a delay.
    """

    kind: Kind
    operation: str = "*"
    key: str = "*"
    times: int | None = None
    every: int = 1
    seconds: float = 2.0
    struck: int = 0
    _matched: int = 0

    def strikes(self, operation: str, key: str) -> bool:
        """Whether this request is hit, and counts it."""
        if not fnmatchcase(operation, self.operation) or not fnmatchcase(key, self.key):
            return False
        self._matched += 1
        if self._matched % self.every or (self.times is not None and self.struck >= self.times):
            return False
        self.struck += 1
        return True


class Proxy:
    """endpoint: its own URL. Since `forget`, by operation: seen, requests; sent, bytes of the store's answers; asked,
    headers of the requests, in lower case."""

    def __init__(self, upstream: str) -> None:
        self.endpoint = ""
        self.forget()
        self._upstream = upstream

    def add(self, fault: Fault) -> Fault:
        self.faults.append(fault)
        return fault

    def forget(self) -> None:
        """No faults, nothing counted."""
        self.faults: list[Fault] = []
        self.seen: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.asked: defaultdict[str, list[dict[str, str]]] = defaultdict(list)

    async def serve(self, listening: asyncio.Future[int], stop: asyncio.Event) -> None:
        timeout = aiohttp.ClientTimeout(total=60)
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:
            self._session = session
            runner = web.ServerRunner(web.Server(self._handle), shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            listening.set_result(runner.addresses[0][1])
            await stop.wait()
            await runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        operation, key = _operation(request)
        self.seen[operation] += 1
        self.asked[operation].append({name.lower(): value for name, value in request.headers.items()})
        fault = next((f for f in self.faults if f.strikes(operation, key)), None)
        if "Expect" in request.headers:  # the door waits for no go-ahead: see pipeline.bounded_s3fs
            return _refusal(request, 417, "ExpectationFailed", "This proxy gives no go-ahead.")
        body = await request.content.read()  # `request.read` has a limit
        kind = fault.kind if fault else None
        if kind is Kind.ERROR:
            return _refusal(request, 500, "InternalError", "We encountered an internal error. Please try again.")
        if kind is Kind.SLOW_DOWN:
            return _refusal(request, 503, "SlowDown", "Please reduce your request rate.")
        if kind is Kind.RESET:
            return _reset(request)
        status, headers, answer = await self._forward(request, body)
        self.sent[operation] += len(answer)
        if kind is Kind.LOST:
            return _reset(request)
        if fault and kind is Kind.DELAY:
            await asyncio.sleep(fault.seconds)
        if kind is Kind.TRUNCATED:
            return await _truncated(request, status, headers, answer)
        if kind is Kind.TRICKLE:
            return await _trickled(request, status, headers, answer)
        response = web.Response(status=status, headers=headers, body=answer)
        if request.method == "HEAD":
            response.headers["Content-Length"] = headers.get("Content-Length", "0")
        return response

    async def _forward(self, request: web.BaseRequest, body: bytes) -> tuple[int, CIMultiDict[str], bytes]:
        headers = CIMultiDict((k, v) for k, v in request.headers.items() if k.lower() not in _HOP)
        headers["Content-Length"] = str(len(body))
        url = URL(self._upstream + request.raw_path, encoded=True)
        skip = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
        async with self._session.request(
            request.method, url, headers=headers, data=body, skip_auto_headers=skip, allow_redirects=False
        ) as answer:
            kept = CIMultiDict((k, v) for k, v in answer.headers.items() if k.lower() not in _HOP)
            return answer.status, kept, await answer.read()


def _operation(request: web.BaseRequest) -> tuple[str, str]:
    """S3's name of what is asked, and `bucket/key` or `bucket/prefix`."""
    path, query, method = unquote(request.raw_path.partition("?")[0]).lstrip("/"), request.query, request.method
    if "/" not in path.rstrip("/"):
        lists = method == "GET" and "uploads" not in query
        name = "ListObjectsV2" if lists else {"GET": "ListMultipartUploads"}.get(method, f"{method.title()}Bucket")
        return name, f"{path.rstrip('/')}/{query.get('prefix', '')}"
    if "uploads" in query:
        return "CreateMultipartUpload", path
    if "uploadId" in query:
        name = {"PUT": "UploadPart", "POST": "CompleteMultipartUpload", "DELETE": "AbortMultipartUpload"}[method]
        return name, path
    return f"{method.title()}Object", path


def _refusal(request: web.BaseRequest, status: int, code: str, message: str) -> web.Response:
    text = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'
    return web.Response(status=status, text="" if request.method == "HEAD" else text, content_type="application/xml")


def _reset(request: web.BaseRequest) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)  # nobody reads it


async def _truncated(
    request: web.BaseRequest, status: int, headers: CIMultiDict[str], answer: bytes
) -> web.StreamResponse:
    """Half of the answer's body, then the end of the connection. An answer without a body announces one."""
    response = web.StreamResponse(status=status, headers=headers)
    response.content_length = len(answer) or 64
    response.force_close()
    await response.prepare(request)
    await response.write(answer[: len(answer) // 2])
    await asyncio.sleep(0)
    if request.transport is not None:
        request.transport.close()
    return response


async def _trickled(
    request: web.BaseRequest, status: int, headers: CIMultiDict[str], answer: bytes
) -> web.StreamResponse:
    """Ten bytes a second, until there are no more or nobody waits for them."""
    response = web.StreamResponse(status=status, headers=headers)
    response.content_length = len(answer)
    response.force_close()
    await response.prepare(request)
    with suppress(ConnectionError):
        for place in range(len(answer)):
            await response.write(answer[place : place + 1])
            await asyncio.sleep(0.1)
    return response


@contextmanager
def proxied(upstream: str) -> Iterator[Proxy]:
    """A proxy in a thread of its own, in front of the server at the URL `upstream`."""
    proxy = Proxy(upstream)
    loop = asyncio.new_event_loop()
    listening: asyncio.Future[int] = loop.create_future()
    stop = asyncio.Event()
    ready = threading.Event()

    def serve() -> None:
        listening.add_done_callback(lambda _: ready.set())
        loop.run_until_complete(proxy.serve(listening, stop))
        loop.close()

    thread = threading.Thread(target=serve, name="fault proxy", daemon=True)
    thread.start()
    if not ready.wait(30):
        raise RuntimeError("the fault proxy did not start")
    proxy.endpoint = f"http://127.0.0.1:{listening.result()}"
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
