"""The one door to files: local paths and every store fsspec knows, by URI.

What the commit needs of a store is `create`: write an object whole, or learn that it exists, with nothing in between.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any, cast

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from hpd_core.passing import is_passing
from pipeline import s3
from pipeline.job import JobError
from pipeline.listing import files_below, input_file, input_files
from pipeline.local_files import walked
from pipeline.units import InputFile
from pipeline.uris import named, secret_fault, shown
from pipeline.writers import writer_of

#: What a disk without room answers: there may be room later.
_FULL = (errno.ENOSPC, errno.EDQUOT)


class StorageError(OSError):
    """A store or file that cannot be used; the message names the URI and the reason, never a credential."""


class StoreUnavailableError(StorageError):
    """A store that gave no answer, or only excuses, to any try, or has no room: the same may succeed later."""


@dataclass(frozen=True)
class Storage:
    """Files reached with one set of fsspec options. Picklable; connects where it is used.

    options: keyword arguments of the fsspec filesystem; they may hold secrets and are kept out of `repr`.
    """

    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def at(self, uri: str) -> tuple[fsspec.AbstractFileSystem, str]:
        """The filesystem of `uri` and the path inside it."""
        scheme = uri.partition("://")[0] if "://" in uri else "file"
        if fault := secret_fault(uri):
            raise JobError(fault)
        try:
            if scheme in ("s3", "s3a"):
                fs = s3.filesystem(self.options)
                return fs, fs._strip_protocol(uri)
            options = {} if scheme == "file" else dict(self.options)
            fs, path = url_to_fs(uri, **options)
            return fs, walked(path) if isinstance(fs, LocalFileSystem) else path
        except (ValueError, ImportError, TypeError) as e:
            raise JobError(f"{shown(uri)}: {e}") from e

    def absolute(self, uri: str) -> str:
        """`uri` in the one form that identities use: a full URI, or an absolute path for local files, without `..`
        (see `local_files.walked`)."""
        fs, path = self.at(uri)
        path = path.rstrip("/") or path
        return path if isinstance(fs, LocalFileSystem) else named(fs, uri, path)

    def real(self, uri: str) -> str:
        """`absolute`, for local paths with symbolic links followed: two names of one place become one."""
        fs, path = self.at(uri)
        return os.path.realpath(path) if isinstance(fs, LocalFileSystem) else self.absolute(uri)

    def find(self, uri: str) -> list[InputFile]:
        """Files of an input: the file itself, the Parquet files below a folder, or what a pattern stands for, by name.

        Which files below a folder count: `globs.is_data`; what a pattern stands for: `globs`. Raises `JobError` where
        nothing is there.
        """
        with explained(uri):
            fs, path = self.at(uri)
            fs.invalidate_cache()
            return input_files(fs, uri, path)

    def stat(self, uri: str) -> InputFile:
        """The object as it is now; raises `FileNotFoundError`."""
        try:
            with explained(uri):
                fs, path = self.at(uri)
                fs.invalidate_cache()
                return input_file(fs, uri, fs.info(path))
        except StorageError as e:
            raise (e.__cause__ if isinstance(e.__cause__, FileNotFoundError) else e) from None

    def names(self, uri: str) -> list[str]:
        """Names of the files directly in a folder, sorted; none where it is not there. A missing bucket is an error."""
        with explained(uri):
            fs, path = self.at(uri)
            fs.invalidate_cache()
            try:
                infos = fs.ls(path, detail=True)
            except FileNotFoundError as e:
                if s3.is_missing_bucket(e):
                    raise
                return []
        path = path.rstrip("/")
        names = (i["name"].rstrip("/") for i in infos if i["type"] == "file")
        return sorted(name.rpartition("/")[2] for name in names if name != path)

    def sizes(self, uri: str) -> dict[str, int]:
        """{path below the folder: bytes} of every file below it, hidden ones too; none where it does not exist.

        A missing bucket is an error.
        """
        with explained(uri):
            fs, path = self.at(uri)
            fs.invalidate_cache()
            try:
                found = files_below(fs, path)
            except FileNotFoundError as e:
                if s3.is_missing_bucket(e):
                    raise
                found = {}
        prefix = path.rstrip("/") + "/"
        return {name.removeprefix(prefix): int(info["size"]) for name, info in found.items()}

    def open(self, uri: str, *, ahead: bool = True) -> IO[bytes]:
        """The object opened for reading with seeks. What fails, also in a later read, is the caller's to explain.

        ahead: False where the reader jumps about, as from column to column: s3fs would fetch 50 MiB at each jump.
        """
        fs, path = self.at(uri)
        exact = {"cache_type": "none"} if not ahead and s3.is_s3(fs) else {}
        return cast("IO[bytes]", fs.open(path, "rb", **exact))

    def read(self, uri: str) -> bytes | None:
        """Whole content, None where there is no such object. A missing bucket is an error."""
        with explained(uri):
            fs, path = self.at(uri)
            try:
                return writer_of(fs).read(path)
            except FileNotFoundError as e:
                if s3.is_missing_bucket(e):
                    raise
                return None

    def create(self, uri: str, data: bytes) -> bool:
        """Writes a new object whole; False where one of that name exists.

        False may also mean this very call: a store may have done what it was asked and its answer been lost, and then
        the next try finds the object there. Who must know compares what is there.
        """
        with explained(uri):
            fs, path = self.at(uri)
            return writer_of(fs).create(path, data)

    def create_file(self, uri: str, write: Callable[[IO[bytes]], None]) -> bool:
        """`create` for what is too large for memory: `write` fills a local file, which becomes the object."""
        with explained(uri):
            fs, path = self.at(uri)
            return writer_of(fs).create(path, write)

    def replace(self, uri: str, data: bytes) -> None:
        """Writes an object whole over whatever was there."""
        with explained(uri):
            fs, path = self.at(uri)
            writer_of(fs).replace(path, data)

    def delete(self, uri: str) -> None:
        """Removes an object; nothing happens where it is gone already."""
        with explained(uri):
            fs, path = self.at(uri)
            try:
                writer_of(fs).delete(path)
            except FileNotFoundError:
                return

    def check_writable(self, uri: str) -> None:
        """Raises `StorageError` where a local folder cannot be written, or made, and `JobError` for a kind of store
        that nothing is written to. Writes nothing: what other stores allow is known only when it is tried."""
        fs, path = self.at(uri)
        try:
            writer_of(fs).check(path)
        except OSError as e:
            raise StorageError(f"{path} cannot be written: {e}") from e


@contextmanager
def explained(uri: str) -> Iterator[None]:
    """Turns a store's error into a `StorageError` that names `uri`."""
    try:
        yield
    except (JobError, StorageError):
        raise
    except Exception as e:
        passing = is_passing(e) or (isinstance(e, OSError) and e.errno in _FULL)
        kind = StoreUnavailableError if passing else StorageError
        raise kind(f"{uri}: {type(e).__name__}: {e}") from e
