"""Local files behind the door of `pipeline.storage`: created whole or not at all, and one name for one path."""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pipeline.globs import is_pattern

#: What a filesystem without hard links answers to one.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
#: Between a claim and its rename lie milliseconds: who has not renamed after so many seconds was killed in between.
_CLAIM_SECONDS = 10.0


def walked(path: str) -> str:
    """An absolute path without `.`, `..` and empty steps, as the operating system walks it: `..` behind a symbolic link
    leads out of the link's target. No other link is followed: what is called `current` keeps that name wherever it
    points. A pattern with `..` behind a wildcard stays as it is."""
    steps = path.split("/")
    if not {".", ".."} & set(steps) and "//" not in path:
        return path
    done: list[str] = []
    for step in steps:
        if step in ("", "."):
            continue
        if step != "..":
            done.append(step)
            continue
        if any(is_pattern(before) for before in done):
            return path
        here = "/" + "/".join(done)
        if os.path.islink(here):
            done = [part for part in os.path.realpath(here).split("/") if part]
        done = done[:-1]
    return "/" + "/".join(done) + "/" * (path.endswith("/") and bool(done))


def create(path: Path, data: bytes | Callable[[IO[bytes]], object]) -> bool:
    """Writes a new file whole, from bytes or by a function; False where one of that name exists."""
    with temporary_file(path, data) as temporary:
        try:
            os.link(temporary, path)  # fails where the name exists, unlike a rename
        except FileExistsError:
            return False
        except OSError as e:
            if e.errno not in _NO_LINKS:
                raise
            return _claim(path, temporary)
    return True


def _claim(path: Path, temporary: Path) -> bool:
    """`create` without hard links: whoever creates the claim beside `path` may rename `temporary` to it.

    The name holds a whole object or nothing, also when this process is killed. A claim whose owner was killed is taken
    over; of two that take over at once the later rename stays.
    """
    claim = path.with_name(f".{path.name}.claim")
    try:
        os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        end = time.monotonic() + _CLAIM_SECONDS
        while not path.exists() and claim.exists() and time.monotonic() < end:
            time.sleep(0.02)
        if path.exists():
            return False
    try:
        if path.exists():
            return False
        os.replace(temporary, path)
        return True
    finally:
        claim.unlink(missing_ok=True)


@contextmanager
def temporary_file(path: Path, data: bytes | Callable[[IO[bytes]], object]) -> Iterator[Path]:
    """`data`, or what it writes, on disk under a hidden name beside `path`, gone afterwards whatever happens."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}.tmp"
    try:
        with open(temporary, "xb") as f:
            if callable(data):
                data(f)
            else:
                f.write(data)
            f.flush()
            os.fsync(f.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
