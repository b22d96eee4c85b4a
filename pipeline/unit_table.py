"""metrics.parquet: what each committed unit was and took, one row per unit, for reports and for whoever asks in SQL."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from hpd_core.rows import Counts, RowStatus
from pipeline.manifest import UnitRecord
from pipeline.metrics import Metrics, device_of, model_of
from pipeline.peak import DEVICE, RESIDENT

#: {column: stage of `Metrics.seconds`}. An actor's whole time on a unit is no "decode" here: that is a part of it.
STAGES = {
    "tokenize_seconds": "tokenize",
    "actor_seconds": "decode",
    "load_seconds": "load",
    "idle_seconds": "idle",
    "commit_seconds": "commit",
}


def unit_facts(metrics: Metrics) -> dict[str, int | float | str | None]:
    """The numbers of one unit, flat.

    rows_<status>, and the counters of `hpd_core.rows.Counts` under their names; prefill_tokens: all that was fed before
    a value (prompts and shared prefixes). Seconds: `STAGES`, and prefill_seconds and decode_seconds, the parts of an
    actor's time that its steps took. peak_memory_bytes: most resident memory of the actor's process while it
    worked on the unit, weights included; peak_device_memory_bytes: what its tensors took of a GPU at most. These,
    device, dtype, model and revision are None where no decoder was needed or it is not known. retries, wasted_tokens,
    dollars: `Metrics.spent`, 0 where it is not known. slots_per_step: how full a step was.
    """
    decode = metrics.decode
    places, models = sorted(map(device_of, metrics.devices)), sorted(map(model_of, metrics.models))
    return {
        "rows": metrics.rows_in,
        **{f"rows_{status.value}": metrics.rows[status.value] for status in RowStatus},
        "prefill_tokens": decode.prompt_tokens + decode.prefix_tokens,
        **decode.as_dict(),
        **{column: metrics.seconds.get(stage, 0.0) for column, stage in STAGES.items()},
        "device": ", ".join(device for device, _ in places) or None,
        "dtype": ", ".join(sorted({dtype for _, dtype in places})) or None,
        "model": ", ".join(sorted({name for name, _ in models})) or None,
        "revision": ", ".join(revision for _, revision in models) or None,
        "peak_memory_bytes": metrics.peak_memory.get(RESIDENT),
        "peak_device_memory_bytes": metrics.peak_memory.get(DEVICE),
        "slots_per_step": decode.slots_per_step,
        "retries": int(metrics.spent["retries"]),
        "wasted_tokens": int(metrics.spent["wasted_tokens"]),
        "dollars": float(metrics.spent["dollars"]),
    }


def unit_table(records: Sequence[UnitRecord]) -> pa.Table:
    """One row per unit in the order given: where its rows come from and where they lie, and `unit_facts`."""
    rows = [
        {
            "file": record.unit.file.uri,
            "start": record.unit.start,
            "stop": record.unit.stop,
            "data": f"data/{record.data}.parquet",
            "fingerprint": record.fingerprint,
            **unit_facts(record.metrics),
        }
        for record in records
    ]
    return pa.Table.from_pylist(rows, schema=_schema())


def to_parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def _schema() -> pa.Schema:
    """The same columns with the same types, also of an output without units."""
    sample = unit_facts(Metrics(decode=Counts(), peak_memory={RESIDENT: 0, DEVICE: 0}))
    kinds: dict[str, pa.DataType] = {"file": pa.string(), "start": pa.int64(), "stop": pa.int64()}
    kinds |= {"data": pa.string(), "fingerprint": pa.string()}
    for name, value in sample.items():
        kinds[name] = (
            pa.int64() if isinstance(value, int) else pa.float64() if isinstance(value, float) else pa.string()
        )
    return pa.schema(list(kinds.items()))
