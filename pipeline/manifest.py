"""The bookkeeping of an output folder: where things lie, one record per committed unit, the list of a finished job.

<output>/data/<file>.parquet                rows of one unit, or of many after `hpd compact`
<output>/_manifest/units/<object>.json      record of one unit; a data file without a record does not count
<output>/_manifest/segments/<name>.parquet  records of a thousand units, whose own manifests are then removed
<output>/_manifest/job.json                 the units that make up the finished output, or the segments that hold them
<output>/_symlink_format_manifest/          the data files that job.json lists: see pipeline.symlinks
<output>/_manifest/lease.json                who writes the output at this moment: see pipeline.lease
<output>/run.json, metrics.json, _SUCCESS

Where one object has several records, one in a file of `hpd compact` that job.json lists goes first, then the unit's own
manifest, then a segment that job.json names, then any other segment. A record whose data file is gone does not count.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from pipeline import symlinks
from pipeline.metrics import total
from pipeline.record import SEGMENT_UNITS, Segment, UnitRecord, segments
from pipeline.storage import Storage, StorageError, StoreUnavailableError

#: Records of the units, and the list that a finished job leaves, below the output.
UNITS, SEGMENTS, JOB = "_manifest/units", "_manifest/segments", "_manifest/job.json"
_THREADS = 16
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True, slots=True)
class OutputFolder:
    """Names in the output folder at `uri`."""

    uri: str
    storage: Storage

    def path(self, name: str) -> str:
        return f"{self.uri.rstrip('/')}/{name}"

    def data(self, name: str) -> str:
        return self.path(f"data/{name}.parquet")

    def record(self, name: str) -> str:
        return self.path(f"{UNITS}/{name}.json")

    def segment(self, name: str) -> str:
        return self.path(f"{SEGMENTS}/{name}.parquet")

    def record_names(self) -> set[str]:
        """Names of the objects that have a manifest of their own."""
        return _stems(self.storage.names(self.path(UNITS)), ".json")

    def segment_names(self) -> set[str]:
        return _stems(self.storage.names(self.path(SEGMENTS)), ".parquet")

    def read_json(self, name: str) -> dict[str, Any] | None:
        """A bookkeeping file, None where there is none; raises `StorageError` where it is not JSON."""
        raw = self.storage.read(self.path(name))
        if raw is None:
            return None
        try:
            return dict(json.loads(raw))
        except ValueError as e:
            raise StorageError(f"{self.path(name)}: not a JSON object ({e})") from e

    def write_json(self, name: str, facts: Mapping[str, Any]) -> None:
        self.storage.replace(self.path(name), _pretty(facts))

    def read_record(self, name: str) -> UnitRecord | None:
        """The manifest of an object's own, None where there is none: a segment may hold it."""
        raw = self.storage.read(self.record(name))
        try:
            return None if raw is None else UnitRecord.from_json(raw)
        except _UNREADABLE as e:
            raise StorageError(f"{self.record(name)}: not a unit manifest ({e})") from e

    def read_segment(self, name: str) -> Segment | None:
        return self._segment(name, self.storage.read(self.segment(name)))

    def _segment(self, name: str, raw: bytes | None) -> Segment | None:
        try:
            return None if raw is None else Segment.from_parquet(name, raw)
        except _UNREADABLE as e:
            raise StorageError(f"{self.segment(name)}: not a segment of unit manifests ({e})") from e

    def read_records(
        self, known: Iterable[UnitRecord] = (), held: dict[str, Segment] | None = None
    ) -> list[UnitRecord]:
        """All committed units, by object name; those `known` are not read again. A record whose data file is gone does
        not count.

        held: segments that were read before, by name; those that are read are added. A segment never changes.
        """
        names, parts = self.record_names(), self.segment_names()
        there = self.data_names() if names or parts else set()
        records = {r.object: r for r in known if r.data in there}
        named = self._named() & parts if parts else set()
        with ThreadPoolExecutor(_THREADS) as threads:
            rest: dict[str, UnitRecord] = {}
            order = [*sorted(named), *sorted(parts - named)]
            for segment in self._segments(order, {} if held is None else held, threads):
                for record in segment.records:
                    if record.data not in there:
                        continue
                    if record.is_merged:  # goes before one that was known before the files were merged
                        if segment.name in named:
                            records[record.object] = record
                    elif record.object not in records:
                        rest.setdefault(record.object, record)
            own = threads.map(self.read_record, sorted((names & self._objects(there)) - set(records)))
            records |= {r.object: r for r in own if r is not None and r.data in there}
        records = rest | records
        return [records[name] for name in sorted(records)]

    def all_records(self) -> Iterator[UnitRecord]:
        """Every record that is there, some twice, also those whose data file is gone."""
        yield from filter(None, map(self.read_record, sorted(self.record_names())))
        for segment in filter(None, map(self.read_segment, sorted(self.segment_names()))):
            yield from segment.records

    def _segments(
        self, names: Sequence[str], held: dict[str, Segment], threads: ThreadPoolExecutor
    ) -> Iterator[Segment]:
        """Segments of these names that are there, in their order; those that are not `held` are read, and are then."""
        unread = [name for name in names if name not in held]
        # Read side by side, and made records one after the other: those of all segments at once are large.
        raws = zip(unread, threads.map(self.storage.read, map(self.segment, unread)), strict=True)
        for name in names:
            if name not in held:
                segment = self._segment(*next(raws))
                if segment is None:
                    continue
                held[name] = segment
            yield held[name]

    def _named(self) -> set[str]:
        """Names of the segments that job.json lists."""
        listing = self.read_json(JOB) or {}
        try:
            return {part["name"] for part in listing.get("segments", ())}
        except (KeyError, TypeError) as e:
            raise StorageError(f"{self.path(JOB)}: not the list of a finished job ({e!r})") from e

    def forget_lost(self, held: Mapping[str, Segment] | None = None) -> None:
        """Removes the records whose data file is gone, so that their units can be committed again. held: segments that
        were read before, by name."""
        names, parts = self.record_names(), self.segment_names()
        there = self.data_names() if names or parts else set()
        for name in sorted(names - self._objects(there)):
            self.storage.delete(self.record(name))
        for name in sorted(parts):
            segment = (held or {}).get(name) or self.read_segment(name)
            kept = [r for r in segment.records if r.data in there] if segment else []
            if segment and len(kept) < len(segment.records):
                self._replace_segment(segment, kept)

    def _replace_segment(self, segment: Segment, kept: Sequence[UnitRecord]) -> None:
        """Puts what is `kept` of a segment in its place; of an output that is not finished."""
        new = [self.write_segment(part) for part in segments(kept)]
        listing = self.read_json(JOB)
        if listing is not None and segment.name in self._named():
            parts = [part for old in listing["segments"] for part in (new if old["name"] == segment.name else [old])]
            self.write_json(JOB, listing | {"segments": parts})
        self.storage.delete(self.segment(segment.name))

    def data_names(self) -> set[str]:
        """Names of the Parquet files below data/, whoever wrote them, without suffix; not those that readers skip."""
        return {name.removesuffix(".parquet") for name in self.storage.sizes(self.path("data")) if _is_read(name)}

    def _objects(self, files: Iterable[str]) -> set[str]:
        """The objects that files of their own names belong to, whatever folder these lie in."""
        return {name.rpartition("/")[2] for name in files}

    def write_segment(self, segment: Segment) -> dict[str, Any]:
        """Creates a segment; returns its entry in job.json. Raises `StorageError` where others have its name."""
        data = segment.to_parquet()
        if not self.storage.create(self.segment(segment.name), data):
            data = self.storage.read(self.segment(segment.name)) or b""
            there = self._segment(segment.name, data)
            if there is None or [r.as_dict() for r in there.records] != [r.as_dict() for r in segment.records]:
                raise StorageError(f"{self.segment(segment.name)}: is there with other records")
        return {"name": segment.name, "units": len(segment.records), "sha256": hashlib.sha256(data).hexdigest()}

    def committed(self) -> list[UnitRecord]:
        """The units that make up the output, by object name: those that the finished job lists, or, where it is not
        finished, those of `read_records`."""
        if not self.is_finished():
            return self.read_records()
        return sorted(self.listed(self.read_json(JOB) or {}), key=lambda r: r.object)

    def listed(self, listing: Mapping[str, Any]) -> list[UnitRecord]:
        """The units that job.json lists, in its order. Raises `StorageError` where that cannot be read."""
        try:
            if "segments" in listing:
                return [r for part in listing["segments"] for r in self._listed_segment(part["name"])]
            parts = [{k: v for k, v in facts.items() if k != "data"} for facts in listing["objects"]]
            return [UnitRecord.from_dict(part) for part in parts]
        except _UNREADABLE as e:
            raise StorageError(f"{self.path(JOB)}: not the list of a finished job ({e!r})") from e

    def _listed_segment(self, name: str) -> tuple[UnitRecord, ...]:
        segment = self.read_segment(name)
        if segment is None:
            raise StorageError(f"{self.segment(name)}: is missing, and {JOB} names it")
        return segment.records

    def check_writable(self) -> None:
        """Raises `StorageError` where a local folder of the output cannot be written or made. Writes nothing."""
        for uri in (self.uri, self.path("data"), self.path("_manifest"), self.path(UNITS), self.path(SEGMENTS)):
            self.storage.check_writable(uri)

    def is_begun(self) -> bool:
        """Whether any unit was ever committed."""
        return bool(self.record_names() or self.segment_names())

    def data_files(self) -> list[str]:
        """URIs of the Parquet files below data/, whoever wrote them."""
        return [self.data(name) for name in sorted(self.data_names())]

    def _stray_records(self, kept: Iterable[UnitRecord], named: Collection[str]) -> list[str]:
        own = set() if named else {r.object for r in kept}
        parts = [self.segment(name) for name in sorted(self.segment_names() - set(named))]
        return [*(self.record(name) for name in sorted(self.record_names() - own)), *parts]

    def _stray_data(self, kept: Iterable[UnitRecord]) -> list[str]:
        return [self.data(name) for name in sorted(self.data_names() - {r.data for r in kept})]

    def remove(self, uris: Iterable[str]) -> None:
        """Removes objects, many at once."""
        with ThreadPoolExecutor(_THREADS) as threads:
            for _ in threads.map(self.storage.delete, uris):
                pass

    def is_finished(self) -> bool:
        return self.storage.read(self.path("_SUCCESS")) is not None

    def reopen(self) -> None:
        """Takes the mark of success away, before anything that makes the output incomplete is done."""
        self.storage.delete(self.path("_SUCCESS"))

    def finish(
        self,
        kept: Sequence[UnitRecord],
        notes: Mapping[str, Any],
        confirm: Callable[[], None] = lambda: None,
    ) -> None:
        """Lists the output, removes what is not listed, marks success: in this order, so that a kill in between leaves
        an output that a rerun finishes. confirm: called before each of the three; raises where the output is another
        driver's by now. Raises `StoreUnavailableError` where a file is gone that was listed."""
        metrics = total(record.metrics for record in kept)
        rows = {"rows_in": metrics.rows_in, "rows_ok": metrics.rows_ok, "rows_error": metrics.rows_error}
        self.list_units(kept, {**rows, **notes}, confirm)
        confirm()
        if gone := {r.data for r in kept} - self.data_names():
            raise StoreUnavailableError(f"{self.data(min(gone))}: was removed while the job ended: run it again")
        self.storage.replace(self.path("_SUCCESS"), b"")

    def list_units(
        self, kept: Sequence[UnitRecord], notes: Mapping[str, Any], confirm: Callable[[], None] = lambda: None
    ) -> None:
        """Makes `kept` the units that job.json lists, with one write, and removes what is not listed then; `confirm` as
        for `finish`.

        A few are listed in job.json itself and keep manifests of their own; many, and those in files that hold more
        than one unit, are listed by segments.
        """
        few = len(kept) <= SEGMENT_UNITS and not any(r.is_merged for r in kept)
        named: list[str] = []
        if few and {r.object for r in kept} <= self.record_names():
            listing: dict[str, Any] = {
                "objects": [r.as_dict() | {"data": f"data/{r.data}.parquet"} for r in kept],
            }
        else:
            listing = {"segments": [self.write_segment(part) for part in segments(kept)]}
            named = [part["name"] for part in listing["segments"]]
        confirm()
        self.write_json(JOB, {**listing, **notes})
        symlinks.write(self.uri, self.storage, symlinks.texts((r.data for r in kept), self.path("data/")))
        # Listed before the lease is confirmed: what a driver writes that takes over later is not among them.
        records, data = self._stray_records(kept, named), self._stray_data(kept)
        confirm()
        # The records go first: without one a data file counts for nothing.
        self.remove(records)
        self.remove(data)


def _is_read(name: str) -> bool:
    return name.endswith(".parquet") and not any(part.startswith((".", "_")) for part in name.split("/"))


def _pretty(facts: Mapping[str, Any]) -> bytes:
    return json.dumps(facts, indent=2, ensure_ascii=False).encode()


def _stems(names: Iterable[str], suffix: str) -> set[str]:
    return {name.removesuffix(suffix) for name in names if name.endswith(suffix) and not name.startswith(".")}
