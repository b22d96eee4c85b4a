"""The record of one committed unit, and segments: Parquet files that hold a thousand of them."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.metrics import Metrics
from pipeline.units import InputFile, Unit, is_object_name

#: Records of one segment: 50,000 units are 50 objects to read.
SEGMENT_UNITS = 1000
#: In the names of data files that `hpd compact` wrote.
MERGED = "-merged-"
#: One row a record. Metrics stay JSON: their names grow with the versions of this program.
_SEGMENT = pa.schema(
    [
        ("object", pa.string()),
        ("file", pa.string()),
        ("row", pa.int64()),
        ("fingerprint", pa.string()),
        ("size", pa.int64()),
        ("sha256", pa.string()),
        ("uri", pa.string()),
        ("input_size", pa.int64()),
        ("version", pa.string()),
        ("start", pa.int64()),
        ("stop", pa.int64()),
        ("bytes", pa.int64()),
        ("poison", pa.string()),
        ("metrics", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class UnitRecord:
    """Manifest of one committed unit.

    object: name of the data object that it was committed as, without suffix. file: of the data file below data/ that
    holds its rows, empty where that has the object's name. row: where they begin in it. size, sha256: of the data file.
    """

    unit: Unit
    object: str
    fingerprint: str
    size: int
    sha256: str
    metrics: Metrics
    file: str = ""
    row: int = 0

    @property
    def data(self) -> str:
        """Name of the data file below data/, without suffix."""
        return self.file or self.object

    @property
    def is_merged(self) -> bool:
        """Whether its rows lie in a file that `hpd compact` wrote."""
        return self.data.rpartition("/")[2] != self.object

    def as_dict(self) -> dict[str, Any]:
        facts = {
            "unit": json.loads(self.unit.to_json()),
            "object": self.object,
            "fingerprint": self.fingerprint,
            "size": self.size,
            "sha256": self.sha256,
            "metrics": self.metrics.as_dict(),
        }
        return facts | ({"file": self.file} if self.file else {}) | ({"row": self.row} if self.row else {})

    def to_json(self) -> str:
        return json.dumps(self.as_dict())

    @classmethod
    def from_json(cls, text: str | bytes) -> UnitRecord:
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> UnitRecord:
        """Raises ValueError, KeyError or TypeError where they are no record."""
        parts = {"unit": Unit.from_json(json.dumps(facts["unit"])), "metrics": Metrics.from_dict(facts["metrics"])}
        return cls(**dict(facts) | parts)


@dataclass(frozen=True, slots=True)
class Segment:
    """Records as one Parquet object. name: of its content, so that equal records have one name whoever writes them."""

    name: str
    records: tuple[UnitRecord, ...]

    @classmethod
    def of(cls, records: Iterable[UnitRecord]) -> Segment:
        records = tuple(records)
        digest = hashlib.sha256("\n".join(record.to_json() for record in records).encode()).hexdigest()
        return cls(f"units-{len(records)}-{digest[:16]}", records)

    def to_parquet(self) -> bytes:
        rows = [
            {
                **{name: getattr(r, name) for name in ("object", "file", "row", "fingerprint", "size", "sha256")},
                **{name: getattr(r.unit, name) for name in ("start", "stop", "bytes", "poison")},
                "uri": r.unit.file.uri,
                "input_size": r.unit.file.size,
                "version": r.unit.file.version,
                "metrics": r.metrics.to_json(),
            }
            for r in self.records
        ]
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows, schema=_SEGMENT), sink, compression="zstd")
        return sink.getvalue()

    @classmethod
    def from_parquet(cls, name: str, data: bytes) -> Segment:
        """Raises ValueError (of which Arrow's are), KeyError or TypeError where `data` is no segment.

        Names of metrics and input files are held once, not once a record: 50,000 records stay in a driver's memory.
        """
        rows = pq.read_table(io.BytesIO(data)).to_pylist()
        metrics = json.loads(f"[{','.join(row.pop('metrics') for row in rows)}]")
        files: dict[tuple[str, int, str], InputFile] = {}
        marks: dict[str, str] = {}
        records = []
        for row, counted in zip(rows, metrics, strict=True):
            key = (row.pop("uri"), row.pop("input_size"), row.pop("version"))
            file = files.setdefault(key, InputFile(*key))
            unit = Unit(file, *(row.pop(part) for part in ("start", "stop", "bytes", "poison")))
            row["fingerprint"] = marks.setdefault(row["fingerprint"], row["fingerprint"])
            records.append(UnitRecord(unit=unit, metrics=Metrics.from_dict(counted), **row))
        return cls(name, tuple(records))


def left_over(files: Iterable[str], records: Iterable[UnitRecord]) -> list[str]:
    """Of data files, by name, those that workers wrote and none of the `records` is of: workers that outlived the last
    listing of their job. What `hpd compact` wrote or merged is none of them: it may be at work."""
    objects = {record.object for record in records}
    stems = ((file, file.rpartition("/")[2]) for file in files)
    return sorted(file for file, stem in stems if is_object_name(stem) and stem not in objects)


def objects_of(data: bytes) -> set[str]:
    """Names of the objects in a segment, without the rest of it. Raises as `Segment.from_parquet` does."""
    return set(pq.read_table(io.BytesIO(data), columns=["object"]).column("object").to_pylist())


def segments(records: Sequence[UnitRecord]) -> list[Segment]:
    """The records in order, so many to a segment."""
    return [Segment.of(records[i : i + SEGMENT_UNITS]) for i in range(0, len(records), SEGMENT_UNITS)]
