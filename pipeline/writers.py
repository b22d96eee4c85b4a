"""How an object gets its name: whole or not at all, and where that is asked, only if no other has it.

Object stores do that by themselves, under a condition. Filesystems get the object under a hidden name first, and a link
or a rename then; which of fsspec's renames can be trusted with that has to be known, see `_RENAMING`.
"""

from __future__ import annotations

import errno
import os
import secrets
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from hpd_core.folders import unwritable
from pipeline import local_files, s3
from pipeline.job import JobError

#: One PUT below this many bytes; s3fs sends larger objects in parts of half of it, still created under a condition.
ONE_PUT = 64 * 2**20
_ABSENT = (errno.ENOENT, errno.ENOTDIR)

#: The bytes of an object, or what writes them to an open file where they are too many for memory.
Content = bytes | Callable[[IO[bytes]], object]
#: What a store tells about an object: `name`, `size`, `type` and more.
Info = Mapping[str, Any]


def info_of(fs: AbstractFileSystem, path: str) -> Info | None:
    """Facts of the file or folder of that name, None where there is none."""
    try:
        return cast("Info", fs.info(path))
    except OSError as e:
        if isinstance(e, FileNotFoundError) or e.errno in _ABSENT:
            return None
        raise


def is_there(fs: AbstractFileSystem, path: str) -> bool:
    """Raises what a store answers in place of yes or no, where fsspec's own `exists` mostly says no."""
    return info_of(fs, path) is not None


@dataclass(frozen=True)
class Writer(ABC):
    """Objects of one filesystem, by path. Methods raise what the filesystem does, FileNotFoundError among it."""

    fs: AbstractFileSystem

    def check(self, path: str) -> None:
        """Raises OSError with the reason where it is known beforehand that nothing can be written there, JobError where
        that is so of the whole filesystem. Writes nothing."""
        return

    def read(self, path: str) -> bytes:
        """The whole object, old or new where it is being replaced."""
        return cast("bytes", self.fs.cat_file(path))

    @abstractmethod
    def create(self, path: str, content: Content) -> bool:
        """A new object; False where one of that name exists."""

    @abstractmethod
    def replace(self, path: str, data: bytes) -> None:
        """An object over whatever was there."""

    def delete(self, path: str) -> None:
        self.fs.rm_file(path)


class LocalWriter(Writer):
    """A hard link fails where the name exists, and a rename replaces what has it."""

    def check(self, path: str) -> None:
        if reason := unwritable(Path(path)):
            raise OSError(reason)

    def create(self, path: str, content: Content) -> bool:
        return local_files.create(Path(path), content)

    def replace(self, path: str, data: bytes) -> None:
        with local_files.temporary_file(Path(path), data) as temporary:
            os.replace(temporary, path)


class ConditionalWriter(Writer):
    """Object stores: whole by themselves, and created under a condition."""

    def create(self, path: str, content: Content) -> bool:
        if isinstance(content, bytes):
            return self._created(path, lambda: self.fs.pipe_file(path, content, mode="create", **self._cut()))
        with tempfile.TemporaryDirectory(prefix="hpd-") as folder:
            with open(local := Path(folder, "object"), "xb") as file:
                content(file)
            return self._created(path, lambda: self.fs.put_file(str(local), path, mode="create", **self._cut()))

    def replace(self, path: str, data: bytes) -> None:
        self.fs.pipe_file(path, data, **self._cut())

    def _created(self, path: str, put: Callable[[], object]) -> bool:
        try:
            put()
        except FileExistsError:
            return False
        except OSError as e:
            if s3.exists(e) or (s3.perhaps_exists(e) and is_there(self.fs, path)):
                return False
            raise
        return True

    def _cut(self) -> dict[str, int]:
        """s3fs writes an object in one PUT below two chunks."""
        return {"chunksize": ONE_PUT // 2} if s3.is_s3(self.fs) else {}


class RenamingWriter(Writer):
    """A rename replaces what has the name, in one step: SFTP. Nothing is conditional: of two who create an object in
    the same moment the later one's stays."""

    def create(self, path: str, content: Content) -> bool:
        if self._is_taken(path):
            return False
        with self._written(path, content) as (temporary, size):
            self._rename(temporary, path, size)
        return True

    def replace(self, path: str, data: bytes) -> None:
        with self._written(path, data) as (temporary, size):
            self._rename(temporary, path, size)

    def _is_taken(self, path: str) -> bool:
        return is_there(self.fs, path)

    @contextmanager
    def _written(self, path: str, content: Content) -> Iterator[tuple[str, int]]:
        """(name, bytes) of `content` in a hidden file beside `path`, which is removed where the body fails."""
        folder, _, name = path.rpartition("/")
        self.fs.makedirs(folder, exist_ok=True)
        temporary = f"{folder}/.{name}.{secrets.token_hex(4)}.tmp"
        try:
            with self.fs.open(temporary, "wb") as file:
                if isinstance(content, bytes):
                    file.write(content)
                else:
                    content(file)
                size = file.tell()
            yield temporary, size
        except BaseException:
            with suppress(Exception):  # what went wrong before is what people must know
                self.fs.rm_file(temporary)
            raise

    def _rename(self, temporary: str, path: str, size: int) -> None:
        """Raises OSError where that has not happened: a refusal may be an answer that fsspec drops."""
        self.fs.mv(temporary, path)
        self.fs.invalidate_cache()
        found = self.fs.info(path)["size"]
        if found != size or is_there(self.fs, temporary):
            raise OSError(f"{temporary} of {size} bytes was not renamed: the name is that of {found} bytes")


class SteppingWriter(RenamingWriter):
    """A rename replaces nothing: HDFS, where pyarrow deletes the old file first. So the old one steps aside until the
    new one has its name, and is read there meanwhile: whoever is killed in between leaves the old object.

    Others than this program find no file of that name for that moment, or after such a kill until the next `replace`.
    """

    def read(self, path: str) -> bytes:
        for place in (path, _aside(path)):
            with suppress(FileNotFoundError):
                return super().read(place)
        return super().read(path)  # the new one got its name between the two looks, or there is none

    def replace(self, path: str, data: bytes) -> None:
        with self._written(path, data) as (temporary, size):
            if is_there(self.fs, path):
                self._remove(_aside(path))  # of one who was killed before the last step
                with suppress(FileNotFoundError):  # another one is a step ahead
                    self.fs.mv(path, _aside(path))
            self._rename(temporary, path, size)
        self._remove(_aside(path))

    def delete(self, path: str) -> None:
        self._remove(_aside(path))  # first, or a kill in between would bring back what it replaced
        super().delete(path)

    def _is_taken(self, path: str) -> bool:
        return super()._is_taken(path) or super()._is_taken(_aside(path))

    def _remove(self, path: str) -> None:
        if is_there(self.fs, path):
            with suppress(FileNotFoundError):
                self.fs.rm_file(path)


class NoWriter(Writer):
    """A filesystem whose rename nobody has looked at, which could lose or halve an object without a word: read only."""

    def check(self, path: str) -> None:
        raise JobError(
            f"{self.fs.unstrip_protocol(path)}: nothing is written to a store of this kind, whose renames are not "
            "known to be one step: take a local folder, an object store (s3, gs, abfs), hdfs or sftp for the output"
        )

    def create(self, path: str, content: Content) -> bool:
        self.check(path)
        return False

    def replace(self, path: str, data: bytes) -> None:
        self.check(path)

    def delete(self, path: str) -> None:
        self.check(path)


#: Filesystems that fsspec writes through an open file, by class or base class, whose `mv` is one rename of the server.
#: Not among them: webhdfs (a refusal is an answer that its `mv` drops), smb, ftp (servers differ), and all those that
#: take the `mv` of fsspec, which is a copy.
_RENAMING: dict[str, type[Writer]] = {
    "fsspec.implementations.arrow.ArrowFSWrapper": SteppingWriter,
    "fsspec.implementations.sftp.SFTPFileSystem": RenamingWriter,
}


def writer_of(fs: AbstractFileSystem) -> Writer:
    """The way to write to `fs`. The classes are known by name: their packages need not be there."""
    if isinstance(fs, LocalFileSystem):
        return LocalWriter(fs)
    if getattr(fs.pipe_file, "__func__", None) is not AbstractFileSystem.pipe_file:
        return ConditionalWriter(fs)
    names = (f"{base.__module__}.{base.__qualname__}" for base in type(fs).__mro__)
    return next((_RENAMING[name] for name in names if name in _RENAMING), NoWriter)(fs)


def _aside(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.before"
