"""The dashboard and the table of metrics that ship are made of what is exported."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from jobs.dashboard import dashboard, table
from pipeline.metric_names import ALL, MetricKind


def test_the_shipped_dashboard_and_table_are_current(repository: Path) -> None:
    shipped = (repository / "conf" / "grafana" / "hpd.json").read_text(encoding="utf-8")
    assert shipped == json.dumps(dashboard(), indent=1) + "\n", "python -m jobs.dashboard > conf/grafana/hpd.json"
    page = (repository / "docs" / "monitoring.md").read_text(encoding="utf-8")
    assert table() in page, "put what `python -m jobs.dashboard table` prints into docs/monitoring.md"


def test_every_metric_of_the_dashboard_exists_with_its_labels_and_none_is_left_out() -> None:
    panels = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    known = {m.scraped: m for m in ALL if m.kind is not MetricKind.HISTOGRAM}
    known |= {f"{m.scraped}_bucket": m for m in ALL if m.kind is MetricKind.HISTOGRAM}
    used = {name for text in expressions for name in re.findall(r"ray_hpd_\w+", text)}
    assert used == set(known)
    for text in expressions:
        assert text.count("(") == text.count(")") and text.count("{") == text.count("}")
        grouped = {name for list_ in re.findall(r"by \(([\w, ]+)\)", text) for name in list_.split(", ")} - {"le"}
        matched = set(re.findall(r"(\w+)=~", text))
        [name] = set(re.findall(r"ray_hpd_\w+", text)) if grouped else [None]
        assert name is None or grouped <= set(known[name].labels)
        assert matched <= {label for used_name in re.findall(r"ray_hpd_\w+", text) for label in known[used_name].labels}


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(ids)) == len(ids)


def test_grafanas_own_model_knows_every_key_of_the_dashboard() -> None:
    """Read as Grafana's published model of a dashboard reads it, and written again, nothing is missing."""
    register_default_plugins()  # queries of Prometheus among them
    shipped = dashboard()
    known = json.loads(JSONEncoder().encode(Dashboard.from_json(shipped)))
    assert list(_missing(shipped, known)) == []
    strange = shipped | {"panels": [shipped["panels"][1] | {"titel": "x"}]}
    again = json.loads(JSONEncoder().encode(Dashboard.from_json(strange)))
    assert list(_missing(strange, again)) == [".panels[0].titel"]


def _missing(wanted: Any, found: Any, path: str = "") -> Iterator[str]:
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key, value in wanted.items():
            yield from _missing(value, found.get(key), f"{path}.{key}")
    elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        for number, (value, other) in enumerate(zip(wanted, found, strict=True)):
            yield from _missing(value, other, f"{path}[{number}]")
    elif wanted != found:
        yield path


def test_every_expression_is_promql_with_the_right_types() -> None:
    expressions = [t["expr"] for panel in dashboard()["panels"] for t in panel.get("targets", ())]
    for text in expressions:
        promql_parser.parse(text.replace("$__rate_interval", "1m"))  # what Grafana puts there
    with pytest.raises(ValueError, match="expected type matrix"):
        promql_parser.parse("rate(ray_hpd_rows_total)")
