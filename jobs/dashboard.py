"""conf/grafana/hpd.json and the table of docs/monitoring.md, made of the metrics that a run exports.

`python -m jobs.dashboard` prints the dashboard, `python -m jobs.dashboard table` the table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline import metric_names as names
from pipeline.metric_names import COUNTS, Exported

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_CHOSEN = f'{{{names.JOB}=~"$job"}}'
_COLUMNS, _HEIGHT = 24, 8


@dataclass(frozen=True, slots=True)
class GrafanaPanel:
    """One drawing. unit: Grafana's name of it. lines: (legend, PromQL)."""

    title: str
    kind: str
    unit: str
    lines: tuple[tuple[str, str], ...]
    width: int = 8

    @property
    def is_table(self) -> bool:
        """Whether it shows the labels as they are now, and no time."""
        return self.kind == "table"


def rate(metric: Exported, by: str = "") -> str:
    """What a counter gains in a second, over all actors."""
    return f"sum{f' by ({by})' if by else ''} (rate({metric.scraped}{_CHOSEN}[$__rate_interval]))"


def total(metric: Exported) -> str:
    return f"sum({metric.scraped}{_CHOSEN})"


def last(metric: Exported) -> str:
    """Of a gauge that only the driver sets."""
    return f"max({metric.scraped}{_CHOSEN})"


def quantile(share: float, metric: Exported) -> str:
    return f"histogram_quantile({share}, sum by (le) (rate({metric.scraped}_bucket{_CHOSEN}[$__rate_interval])))"


def _rates(fields: Iterable[str]) -> tuple[tuple[str, str], ...]:
    return tuple((field.replace("_", " "), rate(COUNTS[field])) for field in fields)


def _quantiles(metric: Exported) -> tuple[tuple[str, str], ...]:
    return tuple((f"p{share * 100:g}", quantile(share, metric)) for share in (0.5, 0.95))


_ERRORS = f'sum({names.ROWS.scraped}{{{names.JOB}=~"$job", status=~"error|no_text"}})'
_DONE = f"{last(names.ROWS_DONE)} / {last(names.ROWS_PLANNED)}"
_LEFT = f"({last(names.ROWS_PLANNED)} - {last(names.ROWS_DONE)})"

SECTIONS: Sequence[tuple[str, Sequence[GrafanaPanel]]] = (
    (
        "How far",
        (
            GrafanaPanel("rows done", "stat", "percentunit", (("", _DONE),), 4),
            GrafanaPanel(
                "units done", "stat", "short", (("", last(names.UNITS_DONE)), ("of", last(names.UNITS_PLANNED))), 4
            ),
            GrafanaPanel("rows per second", "stat", "short", (("", rate(names.ROWS)),), 4),
            GrafanaPanel("time left", "stat", "s", (("", f"{_LEFT} / {rate(names.ROWS)}"),), 4),
            GrafanaPanel("dollars so far", "stat", "currencyUSD", (("", total(names.DOLLARS)),), 4),
            GrafanaPanel("rows in error", "stat", "percentunit", (("", f"{_ERRORS} / {total(names.ROWS)}"),), 4),
        ),
    ),
    (
        "Rows and values",
        (
            GrafanaPanel(
                "rows per second by status", "timeseries", "short", (("{{status}}", rate(names.ROWS, "status")),)
            ),
            GrafanaPanel(
                "values found per second, 20 largest columns",
                "timeseries",
                "short",
                (("{{column}}", f"topk(20, {rate(names.VALUES, 'column')})"),),
            ),
            GrafanaPanel(
                "values that are null, per second",
                "timeseries",
                "short",
                _rates(("absent", "truncated", "invalid", "ungrounded", "unsure")),
            ),
        ),
    ),
    (
        "Decoder",
        (
            GrafanaPanel(
                "slots with work and value tokens fed, per step",
                "timeseries",
                "short",
                (
                    ("committed units", f"{rate(COUNTS['slot_steps'])} / {rate(COUNTS['steps'])}"),
                    ("last call of an actor", f"avg({names.SLOTS_PER_STEP.scraped}{_CHOSEN})"),
                    ("value tokens fed", f"{rate(COUNTS['decode_rows'])} / {rate(COUNTS['steps'])}"),
                ),
            ),
            GrafanaPanel(
                "tokens per second",
                "timeseries",
                "short",
                (
                    *_rates(("prompt_tokens", "prefix_tokens", "cached_tokens", "generated_tokens", "forced_tokens")),
                    ("handed to decoders", rate(names.HANDED)),
                ),
            ),
            GrafanaPanel(
                "documents and slots per second",
                "timeseries",
                "short",
                _rates(("documents", "duplicates", "slots")),
            ),
            GrafanaPanel("drafts per second", "timeseries", "short", _rates(("drafted_tokens", "accepted_tokens"))),
            GrafanaPanel("forward passes per second", "timeseries", "short", _rates(("steps", "model_calls"))),
            GrafanaPanel(
                "steps that one document at a time would take, over steps",
                "timeseries",
                "short",
                (("gain of stacking", f"{rate(COUNTS['longest_value_tokens'])} / {rate(COUNTS['steps'])}"),),
            ),
            GrafanaPanel("seconds of a decoder's call", "timeseries", "s", _quantiles(names.PACK_SECONDS)),
        ),
    ),
    (
        "Time and trouble",
        (
            GrafanaPanel(
                "workers busy, by stage",
                "timeseries",
                "short",
                (
                    ("{{stage}}", rate(names.STAGE_SECONDS, "stage")),
                    *_rates(("prefill_seconds", "decode_seconds")),
                ),
            ),
            GrafanaPanel("seconds of a unit", "timeseries", "s", _quantiles(names.UNIT_SECONDS)),
            GrafanaPanel(
                "units committed and failed, calls failed",
                "timeseries",
                "short",
                (
                    ("committed", total(names.UNITS)),
                    ("failed: {{stage}}", f"sum by (stage) ({names.FAILED.scraped}{_CHOSEN})"),
                    ("calls of a decoder", total(names.PACKS_FAILED)),
                ),
            ),
            GrafanaPanel(
                "most memory of an actor, and of a GPU, during a unit",
                "timeseries",
                "bytes",
                (("{{memory}}", f"max by (memory) ({names.PEAK_MEMORY.scraped}{_CHOSEN})"),),
            ),
            GrafanaPanel("tries beyond the first", "stat", "short", (("", total(names.RETRIES)),)),
            GrafanaPanel("prompt tokens wasted", "stat", "short", (("", total(names.WASTED)),)),
            GrafanaPanel(
                "actors, by what they decode with",
                "table",
                "short",
                (("", f"count by (device, dtype, model, revision) ({names.DECODER.scraped}{_CHOSEN})"),),
                24,
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """Grafana's JSON, for its import: it asks for the data source and lists the jobs that it finds."""
    return {
        "uid": "hpd",
        "title": "Hyper-Parallel Decoding",
        "schemaVersion": 39,
        "timezone": "browser",
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                {
                    "name": "job",
                    "label": "Ray job",
                    "type": "query",
                    "datasource": _SOURCE,
                    "query": f"label_values({names.ROWS_PLANNED.scraped}, {names.JOB})",
                    "refresh": 2,
                    "sort": 2,
                    "includeAll": True,
                    "allValue": ".*",
                    "multi": True,
                },
            ]
        },
        "panels": list(_placed()),
    }


def _placed() -> Iterable[dict[str, Any]]:
    number = y = 0
    for title, panels in SECTIONS:
        number += 1
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": _place(0, y, _COLUMNS, 1)}
        x, y = 0, y + 1
        for panel in panels:
            if x + panel.width > _COLUMNS:
                x, y = 0, y + _HEIGHT
            number += 1
            yield _drawn(panel, number) | {"gridPos": _place(x, y, panel.width, _HEIGHT)}
            x += panel.width
        y += _HEIGHT


def _drawn(panel: GrafanaPanel, number: int) -> dict[str, Any]:
    targets: list[dict[str, Any]] = [
        {"refId": chr(ord("A") + n), "datasource": _SOURCE, "expr": expression, "legendFormat": legend or panel.title}
        for n, (legend, expression) in enumerate(panel.lines)
    ]
    if panel.is_table:
        targets = [target | {"format": "table", "instant": True} for target in targets]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def _place(x: int, y: int, w: int, h: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": w, "h": h}


def table() -> str:
    """Every metric as Prometheus sees it, in Markdown."""
    lines = ["| metric | kind | labels | from | meaning |", "|---|---|---|---|---|"]
    for origin, metrics in (("driver", names.DRIVER), ("actors", names.ACTOR)):
        for metric in metrics:
            labels = ", ".join(f"`{tag}`" for tag in metric.tags)
            lines.append(f"| `{metric.scraped}` | {metric.kind.value} | {labels} | {origin} | {metric.help} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table() if sys.argv[1:] == ["table"] else json.dumps(dashboard(), indent=1), end="" if sys.argv[1:] else "\n")
