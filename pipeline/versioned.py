"""An object read together with its version, and replaced only while it still has that version: compare and swap.

S3 has it built in (`If-Match`). Locally a lock on the folder stands between comparing and renaming; where the
filesystem has no locks, and in stores without conditions, two writers that compare within the same milliseconds both
succeed, and the later one stays.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem

from pipeline import s3
from pipeline.storage import Storage, explained

#: Who holds the lock does so for milliseconds; one that was suspended meanwhile may not stop everybody else.
_LOCK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Version:
    """Content of an object. tag: of this very version, unlike that of any other content."""

    data: bytes
    tag: str


def read_version(storage: Storage, uri: str) -> Version | None:
    """The object as it is now, None where there is none. Raises `StorageError`."""
    with explained(uri):
        fs, path = storage.at(uri)
        tag = None
        if s3.is_s3(fs):
            # The tag first: one that is older than the content makes the swap fail, a newer one would let it pass.
            try:
                tag = str(fs.info(path)["ETag"])
            except FileNotFoundError as e:
                if s3.is_missing_bucket(e):
                    raise
                return None
    data = storage.read(uri)
    return None if data is None else Version(data, tag or _tag(data))


def swap(storage: Storage, uri: str, data: bytes, tag: str) -> bool:
    """Writes the object whole over the version `tag`; False where another one is there, or none.

    False may also mean that this very call has written it, and that the store's answer was lost. Raises `StorageError`.
    """
    with explained(uri):
        fs, path = storage.at(uri)
        if s3.is_s3(fs):
            try:
                fs.pipe_file(path, data, IfMatch=tag)
            except FileNotFoundError as e:
                if s3.is_missing_bucket(e):
                    raise
                return False
            except OSError as e:
                if s3.exists(e) or s3.perhaps_exists(e):
                    return False
                raise
            return True
        with _locked(Path(path).parent) if isinstance(fs, LocalFileSystem) else nullcontext():
            there = storage.read(uri)
            if there is None or _tag(there) != tag:
                return False
            storage.replace(uri, data)
            return True


def _tag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time in `folder`, where its filesystem has locks. A killed process holds none."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        yield
        return
    try:
        end = time.monotonic() + _LOCK_SECONDS
        while time.monotonic() < end:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:  # no locks here
                break
        yield
    finally:
        os.close(handle)
