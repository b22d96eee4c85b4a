"""Plain numbers counted where the work is done and merged upward: pack -> unit -> job. metrics.json is their truth."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpd_core.rows import Counts, Row, RowStatus, ValueStatus
from pipeline.job import RowFault
from pipeline.output import OutputColumns


@dataclass
class Metrics:
    """Numbers of a unit or of many.

    rows: rows by status. values: found values by output column. seconds: wall time by stage, summed over workers.
    """

    rows: Counter[str] = field(default_factory=Counter)
    values: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    decode: Counts = field(default_factory=Counts)

    def __iadd__(self, other: Metrics) -> Metrics:
        self.rows.update(other.rows)
        self.values.update(other.values)
        for stage, seconds in other.seconds.items():
            self.seconds[stage] += seconds
        self.decode += other.decode
        return self

    @property
    def rows_ok(self) -> int:
        return sum(n for status, n in self.rows.items() if RowStatus(status).is_ok)

    @property
    def rows_error(self) -> int:
        return sum(n for status, n in self.rows.items() if not RowStatus(status).is_ok)

    @property
    def rows_in(self) -> int:
        return self.rows.total()

    def as_dict(self) -> dict[str, Any]:
        rows = {status.value: self.rows[status.value] for status in RowStatus}
        return {
            "rows": rows,
            "values": dict(self.values),
            "seconds": {stage: round(s, 6) for stage, s in self.seconds.items()},
            "decode": self.decode.as_dict(),
        }

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Metrics:
        return cls(
            rows=Counter(facts["rows"]),
            values=Counter(facts["values"]),
            seconds=defaultdict(float, facts["seconds"]),
            decode=Counts(**facts["decode"]),
        )

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Metrics:
        return cls.from_dict(json.loads(text))


def total(parts: Iterable[Metrics]) -> Metrics:
    result = Metrics()
    for part in parts:
        result += part
    return result


def count(rows: Sequence[Row | RowFault], decode: Counts, columns: OutputColumns) -> Metrics:
    """Metrics of a unit's rows. What a row asks beyond its schema is counted as `hpd_extra`; a column that nothing was
    found for is there with 0."""
    statuses, found = Counter(row.status.value for row in rows), Counter(dict.fromkeys(columns.attributes, 0))
    for row in rows:
        if isinstance(row, Row) and row.values:
            for attribute, value in zip(row.schema, row.values, strict=True):
                if value.status is ValueStatus.EXTRACTED:
                    found[columns.column_of(row.schema, attribute) or "hpd_extra"] += 1
    return Metrics(rows=statuses, values=found, decode=decode)
