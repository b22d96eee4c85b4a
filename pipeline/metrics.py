"""Plain numbers counted where the work is done and merged upward: pack -> unit -> job. metrics.json is their truth."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpd_core.rows import Counts, Row, RowStatus, ValueStatus
from pipeline.job import RowFault
from pipeline.output import OutputColumns

#: Upper edges of the bins that document lengths are counted in, in tokens; the last bin has no end.
LENGTH_EDGES = tuple(sorted(factor * 2**power for power in range(3, 17) for factor in (2, 3)))


@dataclass
class Metrics:
    """Numbers of a unit or of many.

    rows: rows by status. values: found values by output column.
    seconds: wall time by stage, summed over workers. tokenize, commit: of these tasks. decode: of an actor on a unit,
        prefill and all that surrounds the model included. load: of an actor getting its decoder, counted in its first
        unit. idle: of an actor from one unit's end to the next one's beginning.
    lengths: decoded rows by length of their document, see `length_bin`.
    devices: rows by where their unit was decoded, see `device_key`; nothing for a unit that needed no decoder.
    models: likewise by what decoded them, see `model_key`.
    peak_memory: most bytes that an actor held while it worked on a unit, see pipeline.peak; of many units the largest.
    spent: retries, wasted_tokens: earlier tries of the unit that came to nothing, and the prompt tokens handed to a
        decoder in them, as far as the ledger knew (a unit that was halved is another one). dollars: price of an actor's
        time for it (decode, idle and load above). Nothing where it is 0: records of older versions have none.
    """

    rows: Counter[str] = field(default_factory=Counter)
    values: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    decode: Counts = field(default_factory=Counts)
    lengths: Counter[str] = field(default_factory=Counter)
    devices: Counter[str] = field(default_factory=Counter)
    models: Counter[str] = field(default_factory=Counter)
    peak_memory: dict[str, int] = field(default_factory=dict)
    spent: Counter[str] = field(default_factory=Counter)

    def __iadd__(self, other: Metrics) -> Metrics:
        self.rows.update(other.rows)
        self.values.update(other.values)
        for stage, seconds in other.seconds.items():
            self.seconds[stage] += seconds
        self.decode += other.decode
        self.lengths.update(other.lengths)
        self.devices.update(other.devices)
        self.models.update(other.models)
        self.spent.update(other.spent)
        for kind, most in other.peak_memory.items():
            self.peak_memory[kind] = max(most, self.peak_memory.get(kind, 0))
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
        # An older record must come out as it went in: names of segments are made of it.
        spent = {"spent": dict(self.spent)} if self.spent else {}
        return {
            "rows": rows,
            "values": dict(self.values),
            "seconds": {stage: round(s, 6) for stage, s in self.seconds.items()},
            "decode": self.decode.as_dict(),
            "lengths": dict(sorted(self.lengths.items(), key=lambda item: int(item[0]))),
            "devices": dict(self.devices),
            "models": dict(self.models),
            "peak_memory_bytes": dict(self.peak_memory),
            **spent,
        }

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Metrics:
        return cls(
            rows=Counter(facts["rows"]),
            values=Counter(facts["values"]),
            seconds=defaultdict(float, facts["seconds"]),
            decode=Counts(**with_slot_steps(facts["decode"])),
            lengths=Counter(facts.get("lengths", {})),  # not in outputs of older versions
            devices=Counter(facts.get("devices", {})),
            models=Counter(facts.get("models", {})),
            peak_memory=dict(facts.get("peak_memory_bytes", {})),
            spent=Counter(facts.get("spent", {})),
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
    lengths = Counter(length_bin(row.document_tokens) for row in rows if isinstance(row, Row) and row.status.is_ok)
    return Metrics(rows=statuses, values=found, decode=decode, lengths=lengths)


def with_slot_steps(decode: Mapping[str, Any]) -> dict[str, Any]:
    """Counters of decoding as older versions wrote them: slots at work were not told from the tokens that they fed,
    which are as many wherever nothing was drafted or forced."""
    return {"slot_steps": decode.get("decode_rows", 0), **decode}


def length_bin(tokens: int) -> str:
    """Name of the bin of a length: its upper edge of `LENGTH_EDGES`, included; the last edge for all that is longer."""
    return str(LENGTH_EDGES[min(bisect_left(LENGTH_EDGES, tokens), len(LENGTH_EDGES) - 1)])


def device_key(device: str, dtype: str) -> str:
    """Name in `Metrics.devices`; `device_of` takes it apart."""
    return f"{device} | {dtype}"


def device_of(key: str) -> tuple[str, str]:
    """(device, dtype) of a `device_key`."""
    device, _, dtype = key.rpartition(" | ")
    return device, dtype


def model_key(name: str, revision: str) -> str:
    """Name in `Metrics.models`; `model_of` takes it apart. revision: what tells its weights from others."""
    return f"{name} | {revision}"


def model_of(key: str) -> tuple[str, str]:
    """(name, revision) of a `model_key`."""
    name, _, revision = key.rpartition(" | ")
    return name, revision
