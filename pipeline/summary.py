"""Records and the run's own clock -> metrics.json and the summary that people see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline.manifest import OutputFolder
from pipeline.metrics import Metrics, total
from pipeline.promise import PromiseError
from pipeline.record import UnitRecord
from pipeline.unit_table import to_parquet, unit_table

METRICS_FILE, UNIT_METRICS_FILE = "metrics.json", "_manifest/metrics.parquet"


@dataclass(frozen=True, slots=True)
class RunWork:
    """What one run did itself, apart from what it found done.

    seconds: wall time of the run; stream_seconds: of it, while units were worked on. dollars: price of `seconds`.
    retries, wasted_tokens: tries beyond the first of a unit and prompt tokens spent on tries that came to nothing; None
    where the ledger was lost.
    """

    rows: int = 0
    units: int = 0
    model_calls: int = 0
    rounds: int = 0
    seconds: float = 0.0
    stream_seconds: float = 0.0
    docs_per_second: float = 0.0
    dollars: float = 0.0
    dollars_per_1000: float = 0.0
    retries: int | None = 0
    wasted_tokens: int | None = 0


@dataclass(frozen=True, slots=True)
class RunSummary:
    """How a run ended. Row counts and `values` are the whole committed output's, `model_calls` those of this run alone.

    complete: every planned row is committed, and no bad file stands against it (see `on_bad_file`).
    rows_in = rows_ok + rows_error.
    rows_dropped: rows that earlier runs committed of inputs that are gone or changed since.
    tokens_per_step, slots_per_step: see per_step.
    unloadable: why model or tokenizer cannot be loaded, where all that was given up was given up for that.
    values: found values by output column.
    docs_per_second, dollars_per_1000: of the run that did the work (read from metrics.json where this one did none).
    failures: units that stay uncommitted, and bad files, each one line with URI and reason.
    """

    complete: bool
    output: str
    rows_in: int
    rows_ok: int
    rows_error: int
    values: Mapping[str, int]
    model_calls: int
    docs_per_second: float
    tokens_per_step: float
    slots_per_step: float
    dollars_per_1000: float
    units: int
    seconds: float
    failures: tuple[str, ...] = ()
    rows_dropped: int = 0
    unloadable: str = ""
    metrics: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; the `metrics` are left out (they are in metrics.json)."""
        facts = {name: getattr(self, name) for name in self.__slots__ if name != "metrics"}
        return facts | {"values": dict(self.values), "failures": list(self.failures)}


def work_of(
    fresh: Sequence[UnitRecord],
    *,
    rounds: int,
    seconds: float,
    stream_seconds: float,
    price_per_hour: float,
    waste: tuple[int, int] | None,
) -> RunWork:
    metrics = total(record.metrics for record in fresh)
    rows = metrics.rows_in
    return RunWork(
        rows=rows,
        units=len(fresh),
        model_calls=metrics.decode.model_calls,
        rounds=rounds,
        seconds=round(seconds, 3),
        stream_seconds=round(stream_seconds, 3),
        docs_per_second=rows / stream_seconds if stream_seconds else 0.0,
        dollars=price_per_hour * seconds / 3600,
        dollars_per_1000=price_per_hour * seconds / 3600 * 1000 / rows if rows else 0.0,
        retries=waste[0] if waste else None,
        wasted_tokens=waste[1] if waste else None,
    )


def write_metrics(
    folder: OutputFolder, kept: Sequence[UnitRecord], rows_in: int, work: RunWork, complete: bool
) -> dict[str, Any]:
    """metrics.json: totals of the whole committed output, and the run that wrote them. rows_in: as planned.
    metrics.parquet, written before it: the same of each unit, see `unit_table`; in _manifest, where no reader of the
    output takes it for rows."""
    facts = metrics_facts(kept, rows_in) | {"complete": complete, "run": asdict(work)}
    folder.storage.replace(folder.path(UNIT_METRICS_FILE), to_parquet(unit_table(kept)))
    folder.write_json(METRICS_FILE, facts)
    return facts


def metrics_facts(kept: Sequence[UnitRecord], rows_in: int) -> dict[str, Any]:
    """Raises `PromiseError` where the plan has another number of rows in the output than the actors counted."""
    metrics = total(record.metrics for record in kept)
    if rows_in != metrics.rows_ok + metrics.rows_error:
        raise PromiseError(f"{rows_in} rows of the input are committed, but their units count {dict(metrics.rows)}")
    facts = {"rows_in": rows_in, "rows_ok": metrics.rows_ok, "rows_error": metrics.rows_error}
    return facts | {"units": len(kept)} | metrics.as_dict() | per_step(metrics)


def per_step(metrics: Metrics) -> dict[str, float]:
    """tokens_per_step: value tokens emitted, those of prefills counted, per forward pass that fed value tokens (no such
    pass counts as one). Per such pass, slots_per_step: slots that had work; value_tokens_fed_per_step: what was fed."""
    decode = metrics.decode
    return {
        "tokens_per_step": decode.generated_tokens / max(1, decode.steps),
        "slots_per_step": decode.slots_per_step,
        "value_tokens_fed_per_step": decode.value_tokens_fed_per_step,
    }


def summarise(
    folder: OutputFolder,
    facts: Mapping[str, Any],
    *,
    model_calls: int,
    complete: bool,
    failures: Sequence[str],
    rows_dropped: int = 0,
    unloadable: str = "",
) -> RunSummary:
    """The summary of an output whose metrics.json is `facts`; the rest is this run's, see `RunSummary`."""
    run = facts["run"]
    return RunSummary(
        complete=complete,
        output=folder.uri,
        rows_in=facts["rows_in"],
        rows_ok=facts["rows_ok"],
        rows_error=facts["rows_error"],
        values=facts["values"],
        model_calls=model_calls,
        docs_per_second=run["docs_per_second"],
        tokens_per_step=facts["tokens_per_step"],
        slots_per_step=facts["slots_per_step"],
        dollars_per_1000=run["dollars_per_1000"],
        units=facts["units"],
        seconds=run["seconds"],
        failures=tuple(failures),
        rows_dropped=rows_dropped,
        unloadable=unloadable,
        metrics=facts,
    )
