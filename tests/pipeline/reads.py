"""How much is read of the files of a store: bytes and requests, counted at its door."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import pytest

from pipeline.storage import Storage


@dataclass
class Reads:
    """fault: raised by the next read, once."""

    bytes: int = 0
    files: int = 0
    fault: Exception | None = None


class _Counted(io.RawIOBase):
    def __init__(self, file: IO[bytes], reads: Reads) -> None:
        self._file, self._reads = file, reads

    def read(self, size: int = -1) -> bytes:
        fault, self._reads.fault = self._reads.fault, None
        if fault is not None:
            raise fault
        data = self._file.read(size)
        self._reads.bytes += len(data)
        return data

    def seek(self, *to: int) -> int:
        return self._file.seek(*to)

    def tell(self) -> int:
        return self._file.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()


@contextmanager
def counted_reads() -> Iterator[Reads]:
    """Counts what this process reads through `Storage.open` while the body runs."""
    reads, open_ = Reads(), Storage.open

    def counted(self: Storage, uri: str, **how: Any) -> IO[bytes]:
        reads.files += 1
        return _Counted(open_(self, uri, **how), reads)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Storage, "open", counted)
        yield reads
