"""A unit: the row range of one input file that is read, decoded and committed whole.

Its identity is where the rows come from (URI, version of the object, row range), never a business id of the catalog.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

_OBJECT_NAME = re.compile(r"[\w.-]+-[0-9a-f]{8}-\d{12,}-\d{12,}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class InputFile:
    """One version of one input object.

    version: etag where the store has one, else the time of the last change.
    """

    uri: str
    size: int
    version: str


class RowGroup(NamedTuple):
    rows: int
    bytes: int  # uncompressed


@dataclass(frozen=True, slots=True)
class Unit:
    """Rows [start, stop) of a file. `start == stop` only for a file without rows.

    bytes: uncompressed size as the footer gives it; an estimate that plays no part in the identity.
    poison: why the row of a one-row unit must not be decoded again; empty for all other units.
    """

    file: InputFile
    start: int
    stop: int
    bytes: int = 0
    poison: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise ValueError(f"unit rows [{self.start}, {self.stop}) of {self.file.uri}: not a range")
        if self.poison and self.rows != 1:
            raise ValueError(f"a poisoned unit has one row, not {self.rows}")

    @property
    def rows(self) -> int:
        return self.stop - self.start

    @property
    def key(self) -> tuple[str, str, int, int]:
        """Identity: (URI, version, start, stop)."""
        return (self.file.uri, self.file.version, self.start, self.stop)

    @property
    def name(self) -> str:
        """Readable and unique per URI and row range; names of one file sort in row order."""
        stem = re.sub(r"[^A-Za-z0-9._-]+", "_", posixpath.basename(self.file.uri).removesuffix(".parquet"))[:60]
        stem = stem.lstrip("._") or "file"  # readers, ours too, pass over names that begin with these
        return f"{stem}-{_digest(self.file.uri, 8)}-{self.start:012d}-{self.stop:012d}"

    def object_name(self, fingerprint: str) -> str:
        """Name of the committed object, without suffix: another version or fingerprint gives another name."""
        return f"{self.name}-{_digest(f'{self.file.version} {self.file.size} {fingerprint}', 12)}"

    def within(self, start: int, stop: int) -> Unit:
        """The same file narrowed to rows [start, stop)."""
        share = (stop - start) / self.rows if self.rows else 1.0
        return replace(self, start=start, stop=stop, bytes=int(self.bytes * share), poison="")

    def cut_at(self, edges: Iterable[int]) -> list[Unit]:
        """The parts between rows of the file, in order; `edges` outside the unit cut nothing."""
        inner = sorted(edge for edge in set(edges) if self.start < edge < self.stop)
        return [self.within(a, b) for a, b in itertools.pairwise([self.start, *inner, self.stop])]

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Unit:
        facts = json.loads(text)
        return cls(**facts | {"file": InputFile(**facts["file"])})

    def __str__(self) -> str:
        return f"rows {self.start}..{self.stop} of {self.file.uri}"


def is_object_name(name: str) -> bool:
    """Whether it is one that `Unit.object_name` gives."""
    return _OBJECT_NAME.fullmatch(name) is not None


def cut(file: InputFile, row_groups: Sequence[RowGroup], *, max_rows: int, max_bytes: int) -> list[Unit]:
    """Units of a file, in row order: whole row groups while they fit the caps, even slices of one that does not.

    A file without rows gives one empty unit, so that it is accounted for.
    """
    units: list[Unit] = []
    start = rows = size = 0

    def flush() -> None:
        nonlocal start, rows, size
        if rows:
            units.append(Unit(file, start, start + rows, size))
        start, rows, size = start + rows, 0, 0

    for group in row_groups:
        if rows + group.rows > max_rows or size + group.bytes > max_bytes:
            flush()
        if group.rows > max_rows or group.bytes > max_bytes:
            for slice_rows in _even_slices(group, max_rows, max_bytes):
                rows, size = slice_rows, group.bytes * slice_rows // group.rows
                flush()
        else:
            rows, size = rows + group.rows, size + group.bytes
    flush()
    return units or [Unit(file, 0, 0)]


def _even_slices(group: RowGroup, max_rows: int, max_bytes: int) -> Iterable[int]:
    """Row counts of equal slices (to one row) that keep a row group's slices under both caps; one row at least each."""
    pieces = min(group.rows, max(-(-group.rows // max_rows), -(-group.bytes // max_bytes)))
    edges = [group.rows * i // pieces for i in range(pieces + 1)] if pieces else []
    return [b - a for a, b in itertools.pairwise(edges)]


def first_rows(units: Iterable[Unit], limit: int | None) -> list[Unit]:
    """The units that hold the first `limit` rows, the last one narrowed to fit."""
    if limit is None:
        return list(units)
    kept: list[Unit] = []
    for unit in units:
        if limit <= 0:
            break
        kept.append(unit.within(unit.start, min(unit.stop, unit.start + limit)) if unit.rows > limit else unit)
        limit -= unit.rows
    return kept


def uncovered(unit: Unit, ranges: Iterable[tuple[int, int]]) -> list[Unit]:
    """What is left of `unit` when the committed row `ranges` of its file are taken out; an empty unit is left whole
    until an equal empty range is committed."""
    ranges = sorted(ranges)
    if not unit.rows:
        return [] if (unit.start, unit.stop) in ranges else [unit]
    left, at = [], unit.start
    for start, stop in ranges:
        if start >= unit.stop:
            break
        if start > at:
            left.append(unit.within(at, start))
        at = max(at, stop)
    if at < unit.stop:
        left.append(unit.within(at, unit.stop))
    # A unit nothing was taken from keeps its own size estimate.
    return [unit] if len(left) == 1 and left[0].rows == unit.rows else left


def _digest(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]
