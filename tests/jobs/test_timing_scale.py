"""Scale: the steady state from commits, what a driver's cost is drawn out to, and a small run of the whole."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from jobs.timing import scale
from jobs.timing.fake import SPEC, FixedCost, TextEncoder, TextReader, write_catalog
from jobs.timing.scale_report import line_through, markdown, per_unit, throughput


def commits(actors: int, rounds: int, period: float, starts: list[float]) -> list[float]:
    """Actors that start at different times and then commit in a rhythm, from a queue that they share."""
    ready, times = list(starts), []
    for _ in range(actors * rounds):
        first = ready.index(min(ready))
        ready[first] += period
        times.append(ready[first])
    return times


@pytest.mark.parametrize(("actors", "starts"), [(1, [3.0]), (2, [0.0, 0.1]), (4, [0.0, 1.0, 9.0, 17.0])])
def test_throughput_is_that_of_the_steady_state_however_late_actors_start(actors: int, starts: list[float]) -> None:
    assert throughput(commits(actors, 12, 5.0, starts), actors, 1000) == pytest.approx(actors * 200)


def test_a_steady_state_needs_some_rounds() -> None:
    with pytest.raises(ValueError, match="8 units are too few for a steady state of 4 actors"):
        throughput([1.0] * 4 + [2.0] * 4, 4, 10)


def test_a_line_through_what_was_measured() -> None:
    assert line_through([(50, 7.0), (200, 10.0), (800, 22.0)]) == pytest.approx({"base": 6.0, "slope": 0.02})
    assert line_through([(50, 7.0)]) is None


def test_the_decoder_costs_the_same_whatever_it_reads(tmp_path: Path) -> None:
    catalog = write_catalog(tmp_path / "c", 25, rows_per_file=10)
    tables = [pq.read_table(path) for path in sorted(catalog.iterdir())]
    assert [len(table) for table in tables] == [10, 10, 5]
    documents = [d for table in tables for d in TextReader().documents(table)]
    assert len({d.text for d in documents}) == 25 and 1500 < len(documents[3].text) < 2500  # type: ignore[union-attr]
    encoded = [TextEncoder(SPEC).encode(d) for d in documents]  # type: ignore[arg-type]
    found = FixedCost(0.0)(SPEC, "cpu", 1).extract_encoded(encoded)
    assert len(found.rows) == 25 and len(found.rows[0].values) == 8 and found.counts.documents == 25


def measured(actors: int, units: int, cpu: float, rate: float = 0.0) -> dict[str, object]:
    return {
        "actors": actors, "units": units, "driver_cpu_seconds": cpu, "rows_per_second": rate, "busy_cores": 1.0,
        "before_stream_seconds": 1.0, "finish_seconds": 2.0, "driver_peak_mib": 200 + units // 10,
    }  # fmt: skip


def test_the_report_carries_the_driver_to_50_000_units() -> None:
    driver = per_unit([measured(2, 50, 7.0), measured(2, 200, 10.0), measured(2, 800, 22.0)])
    facts = {
        "cores": 2, "nodes": 4, "rows_per_unit": 1000, "unit_seconds": 5.0, "rows_per_planned_unit": 10_000,
        "scaling": per_unit([measured(1, 12, 6.0, 199.0), measured(8, 96, 9.6, 1520.0)]), "driver": driver,
        "driver_line": {"base": 6.0, "slope": 0.02}, "memory_line": {"base": 200.0, "slope": 0.1},
    }  # fmt: skip
    text = markdown(facts)
    assert "| 8 | 1520 | 7.64 | 95 % | 0.100 | 1.0 |" in text
    assert "0.020 CPU s and 102 KiB; a million rows in units of 10,000: 2.0 CPU s" in text
    assert "50,000 units (500 million rows): 0.3 CPU hours, 5.1 GiB" in text and "50 units a second" in text
    assert "give several to `--units`" in markdown(facts | {"driver_line": None})


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_small_cluster_on_this_machine(tmp_path: Path) -> None:
    import typer

    app = typer.Typer()
    app.command()(scale.main)
    words = ["--actors", "1,2", "--nodes", "2", "--rounds", "6", "--seconds", "0.5", "--rows", "50", "--units", "4,12"]
    result = CliRunner().invoke(app, ["--output", str(tmp_path / "o"), *words])
    assert result.exit_code == 0, result.output
    facts = json.loads((tmp_path / "o" / "scale.json").read_text())
    one, two = facts["scaling"]
    assert [(one["actors"], one["units"]), (two["actors"], two["units"])] == [(1, 6), (2, 12)]
    assert all(job["rows_per_second"] > 0 for job in facts["scaling"])
    assert [job["units"] for job in facts["driver"]] == [4, 12] and facts["driver_line"] is not None
    assert all(job["driver_peak_mib"] > 50 for job in facts["driver"])
    assert "# Scale" in (tmp_path / "o" / "scale.md").read_text()
