"""Writing to stores that are filesystems, such as HDFS: under a hidden name first, then renamed, so that a name holds a
whole object or none, also when the writer is killed.

Object stores do that by themselves, and know conditions; fsspec's own `pipe_file` does neither.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import IO

from fsspec import AbstractFileSystem


def is_filesystem(fs: AbstractFileSystem) -> bool:
    """Whether a reader may see half of what is being written: where fsspec writes an object through an open file."""
    return getattr(fs.pipe_file, "__func__", None) is AbstractFileSystem.pipe_file


def create(fs: AbstractFileSystem, path: str, write: Callable[[IO[bytes]], object]) -> bool:
    """A new file whole, filled by `write`; False where one of that name exists. Of two who find none at the same moment
    the later one stays."""
    if fs.exists(path):
        return False
    replace(fs, path, write)
    return True


def replace(fs: AbstractFileSystem, path: str, write: Callable[[IO[bytes]], object]) -> None:
    """A file whole over whatever was there."""
    folder, _, name = path.rpartition("/")
    fs.makedirs(folder, exist_ok=True)
    temporary = f"{folder}/.{name}.{secrets.token_hex(4)}.tmp"
    try:
        with fs.open(temporary, "wb") as file:
            write(file)
        fs.mv(temporary, path)
    except BaseException:
        with suppress(Exception):  # what went wrong before is what people must know
            fs.rm_file(temporary)
        raise
