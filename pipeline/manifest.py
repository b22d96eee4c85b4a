"""The bookkeeping of an output folder: where things lie, one record per committed unit, the list of a finished job.

<output>/data/<object>.parquet            rows of one unit
<output>/_manifest/units/<object>.json    its record; a data object without one does not count
<output>/_manifest/job.json               the objects that make up the finished output
<output>/_manifest/lease.json             who writes the output at this moment (pipeline.lease)
<output>/run.json, metrics.json, _SUCCESS
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from pipeline.metrics import Metrics, total
from pipeline.storage import Storage, StorageError
from pipeline.units import Unit

#: Records of the units, and the list that a finished job leaves, below the output.
UNITS, JOB = "_manifest/units", "_manifest/job.json"
_THREADS = 16


@dataclass(frozen=True, slots=True)
class UnitRecord:
    """Manifest of one committed unit. object: name of the data object without suffix; size, sha256: of its content."""

    unit: Unit
    object: str
    fingerprint: str
    size: int
    sha256: str
    metrics: Metrics

    def as_dict(self) -> dict[str, Any]:
        return {
            "unit": json.loads(self.unit.to_json()),
            "object": self.object,
            "fingerprint": self.fingerprint,
            "size": self.size,
            "sha256": self.sha256,
            "metrics": self.metrics.as_dict(),
        }

    def to_json(self) -> str:
        return json.dumps(self.as_dict())

    @classmethod
    def from_json(cls, text: str | bytes) -> UnitRecord:
        facts = json.loads(text)
        parts = {"unit": Unit.from_json(json.dumps(facts["unit"])), "metrics": Metrics.from_dict(facts["metrics"])}
        return cls(**facts | parts)


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

    def record_names(self) -> set[str]:
        """Names of the objects that have a record."""
        return _stems(self.storage.names(self.path(UNITS)), ".json")

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
        raw = self.storage.read(self.record(name))
        try:
            return None if raw is None else UnitRecord.from_json(raw)
        except (ValueError, KeyError, TypeError) as e:
            raise StorageError(f"{self.record(name)}: not a unit manifest ({e})") from e

    def read_records(self, known: Iterable[UnitRecord] = ()) -> list[UnitRecord]:
        """All committed units, by object name; those `known` are not read again. A record whose data object is gone
        does not count."""
        names, there = self._objects()
        with ThreadPoolExecutor(_THREADS) as threads:
            records = {r.object: r for r in known if r.object in names & there}
            new = threads.map(self.read_record, sorted((names & there) - set(records)))
            records |= {r.object: r for r in new if r is not None}
        return [records[name] for name in sorted(records)]

    def forget_lost(self) -> None:
        """Removes the records whose data object is gone, so that their units can be committed again."""
        names, there = self._objects()
        for name in names - there:
            self.storage.delete(self.record(name))

    def _objects(self) -> tuple[set[str], set[str]]:
        """Names of objects that have a record, and, where there are any, of those that have data."""
        names = self.record_names()
        return names, _stems(self.storage.names(self.path("data")), ".parquet") if names else set()

    def committed(self) -> list[UnitRecord]:
        """The units that make up the output, by object name: those that the finished job lists, or, where it is not
        finished, those of `read_records`."""
        if not self.is_finished():
            return self.read_records()
        listing = self.read_json(JOB) or {}
        try:
            parts = [{k: v for k, v in facts.items() if k != "data"} for facts in listing["objects"]]
            return sorted((UnitRecord.from_json(json.dumps(part)) for part in parts), key=lambda r: r.object)
        except (ValueError, KeyError, TypeError) as e:
            raise StorageError(f"{self.path(JOB)}: not the list of a finished job ({e!r})") from e

    def check_writable(self) -> None:
        """Raises `StorageError` where a local folder of the output cannot be written or made. Writes nothing."""
        for uri in (self.uri, self.path("data"), self.path("_manifest"), self.path(UNITS)):
            self.storage.check_writable(uri)

    def is_begun(self) -> bool:
        """Whether any unit was ever committed."""
        return bool(self.record_names())

    def data_files(self) -> list[str]:
        """URIs of the Parquet files under data/, whoever wrote them."""
        return [self.data(name) for name in sorted(_stems(self.storage.names(self.path("data")), ".parquet"))]

    def strays(self, kept: Iterable[UnitRecord]) -> list[str]:
        """URIs of data objects and records that are not `kept`: readers that glob the folder must not find them."""
        listed = {record.object for record in kept}
        data = _stems(self.storage.names(self.path("data")), ".parquet")
        records = self.record_names()
        # The record goes first: without it the data object counts for nothing.
        return [self.record(n) for n in sorted(records - listed)] + [self.data(n) for n in sorted(data - listed)]

    def is_finished(self) -> bool:
        return self.storage.read(self.path("_SUCCESS")) is not None

    def reopen(self) -> None:
        """Takes the mark of success away, before anything that makes the output incomplete is done."""
        self.storage.delete(self.path("_SUCCESS"))

    def finish(
        self,
        kept: Sequence[UnitRecord],
        dropped: Sequence[UnitRecord],
        notes: Mapping[str, Any],
        confirm: Callable[[], None] = lambda: None,
    ) -> None:
        """Lists the output, removes what is not listed, marks success: in this order, so that a kill in between leaves
        an output that a rerun finishes. confirm: called before each of the three; raises where the output is another
        driver's by now."""
        metrics = total(record.metrics for record in kept)
        listing = {
            "objects": [r.as_dict() | {"data": f"data/{r.object}.parquet"} for r in kept],
            "dropped": [str(r.unit) for r in dropped],
            "rows_in": metrics.rows_in,
            "rows_ok": metrics.rows_ok,
            "rows_error": metrics.rows_error,
        }
        confirm()
        self.write_json(JOB, {**listing, **notes})
        confirm()
        for uri in self.strays(kept):
            self.storage.delete(uri)
        confirm()
        self.storage.replace(self.path("_SUCCESS"), b"")


def _pretty(facts: Mapping[str, Any]) -> bytes:
    return json.dumps(facts, indent=2, ensure_ascii=False).encode()


def _stems(names: Iterable[str], suffix: str) -> set[str]:
    return {name.removesuffix(suffix) for name in names if name.endswith(suffix) and not name.startswith(".")}
