"""The environment of a peer: a venv beside the current folder's own, made on request from a pinned file that ships."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from jobs.timing.engines import PEERS
from jobs.timing.process import EngineFailed

_HERE = Path(__file__).parent
#: Written last; holds the digest of what was installed.
_MARK = ".hpd-requirements"


def requirements(peer: str) -> Path:
    """The packages of a peer, all of them, pinned."""
    return _HERE / f"{peer}.txt"


def python_of(peer: str, folder: Path, say: Callable[[str], None]) -> Path:
    """The interpreter of `folder`/.venv-<peer>, installed where it is not or where the pins have changed.

    Takes minutes and gigabytes the first time. Raises EngineFailed with the reason, and the log that has the rest.
    """
    assert peer in PEERS
    place, pins = folder / f".venv-{peer}", requirements(peer)
    python, mark = place / "bin" / "python", place / _MARK
    digest = hashlib.sha256(pins.read_bytes()).hexdigest()
    if mark.is_file() and mark.read_text() == digest:
        return python
    say(f"installing {peer} into {place}: gigabytes, minutes")
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    steps = [
        [sys.executable, "-m", "venv", str(place)],
        [*pip, "install", "--no-deps", "--requirement", str(pins)],
    ]
    log = folder / f".venv-{peer}.log"
    try:
        with log.open("w") as out:
            for step in steps:
                subprocess.run(step, check=True, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        mark.write_text(digest)
    except (OSError, subprocess.CalledProcessError) as error:
        raise EngineFailed(f"cannot be installed: {_reason(log, error)} (see {log.name})") from error
    return python


def _reason(log: Path, error: Exception) -> str:
    """The last line in which pip says what is wrong."""
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    said = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return said[-1] if said else str(error)
