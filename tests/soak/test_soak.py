"""The soak itself: a tiny one for real, and that it would see what it is there to see."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipeline.run import run
from tests.pipeline.helpers import inline
from tests.soak.__main__ import main
from tests.soak.catalog import Catalog
from tests.soak.check import violations
from tests.soak.job import Plan
from tests.soak.kills import UNTIL, drawn
from tests.soak.memory import Sample, slope
from tests.soak.report import figures, page, undisturbed
from tests.soak.run import Run

LOCAL = fsspec.filesystem("file")
CATALOG = Catalog(rows=300, shards=3, seed=7)


@pytest.mark.slow
def test_a_tiny_soak_is_as_promised(tmp_path: Path) -> None:
    size = ["--rows", "4000", "--shards", "8", "--unit-rows", "100"]
    kills = ["--kills", "2", "--driver-share", "0.5", "--delay", "0.2", "--every", "0.5"]
    assert main([*size, *kills, "--work", str(tmp_path / "soak")]) == 0
    events = [json.loads(line) for line in (tmp_path / "soak/log.jsonl").read_text().splitlines()]
    assert sorted(e["target"] for e in events if e["event"] == "kill") == ["actor", "driver"]
    [summary] = [e for e in events if e["event"] == "summary"]
    assert summary["drivers"] == 2 and summary["decoded_again"] >= 0 and summary["violations"] == []
    assert {s[0] for e in events if e["event"] == "memory" for s in e["mib"]} == {"driver", "actor"}
    text = (tmp_path / "soak/soak.md").read_text()
    assert "Every row once" in text and str(tmp_path) not in text


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("pipeline.drive.drive", inline)
    CATALOG.write(LOCAL, str(tmp_path / "in"))
    plan = Plan(str(tmp_path), str(tmp_path / "in"), str(tmp_path / "out"), 40, 1, 0.0)
    assert run(plan.job()).complete
    return tmp_path / "out/data"


def test_a_whole_output_has_no_violation(out: Path) -> None:
    assert list(violations(CATALOG, LOCAL, str(out))) == []


def shifted(table: pa.Table) -> pa.Table:
    column = pa.chunked_array([*table.column("brand").slice(1).chunks, *table.column("brand").slice(0, 1).chunks])
    return table.set_column(table.column_names.index("brand"), "brand", column)


def swapped(table: pa.Table) -> pa.Table:
    return table.take([1, 0, *range(2, table.num_rows)])


def touched(table: pa.Table) -> pa.Table:
    return table.set_column(1, "sku", pc.fill_null(table.column("sku"), "none"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (shifted, "its title asks for"),
        (swapped, "the order of the rows breaks"),
        (touched, "its input columns are not rows 0 to 33 of the catalog"),
        (lambda table: table.slice(1), "1 rows of the catalog are not in the output, the first is row 0"),
        (
            lambda table: pa.concat_tables([table, table.slice(3, 2)]),
            "2 rows of the catalog are in the output more than",
        ),
    ],
)
def test_what_is_wrong_is_told(out: Path, change: Callable[[pa.Table], pa.Table], told: str) -> None:
    first = min(out.iterdir())
    pq.write_table(change(pq.read_table(first)), first)
    assert any(told in one for one in violations(CATALOG, LOCAL, str(out)))


def test_a_file_that_is_gone_or_there_twice_is_told(out: Path) -> None:
    first = min(out.iterdir())
    first.with_name(f"z{first.name}").write_bytes(first.read_bytes())
    assert any("more than once, the first is row 0" in one for one in violations(CATALOG, LOCAL, str(out)))
    first.unlink()
    first.with_name(f"z{first.name}").unlink()
    assert any("not in the output, the first is row 0" in one for one in violations(CATALOG, LOCAL, str(out)))


def test_the_catalog_is_a_function_of_its_seed() -> None:
    first, again, other = (pa.concat_tables(Catalog(300, 3, seed).tables()) for seed in (7, 7, 8))
    assert first.equals(again) and not first.equals(other)
    assert first.column("row").to_pylist() == list(range(300))
    texts = [t for t in first.column("title").to_pylist() if t is not None]
    assert len(set(texts)) == len(texts) < 300


@pytest.mark.parametrize("count", [1, 2, 40])
def test_kills_come_from_the_seed_and_leave_an_undisturbed_end(count: int) -> None:
    kills = drawn(1000, count, 0.3, seed=3)
    assert kills == drawn(1000, count, 0.3, seed=3) and len(kills) == count
    assert [k.units for k in kills] == sorted(k.units for k in kills) and kills[-1].units <= 1000 * UNTIL
    assert count < 2 or {k.target for k in kills} == {"driver", "actor"}
    assert all(k.again is None for k in kills if k.target == "actor")


def life(process: str, level: int, gain: float, first_row: int, rows: int) -> list[Sample]:
    """Fifty samples of a process that first takes 50 MB."""
    steps = [(i, first_row + rows * i // 49) for i in range(50)]
    return [Sample("actor", process, row, int(level + min(i, 20) * 2_500_000 + gain * row)) for i, row in steps]


def test_a_leak_is_seen_through_levels_starts_and_restarts() -> None:
    flat = [*life("a", 100_000_000, 0, 0, 150_000), *life("b", 300_000_000, 0, 150_000, 150_000)]
    assert slope(flat) == pytest.approx(0, abs=1e-3)
    leak = [*life("a", 100_000_000, 20, 0, 150_000), *life("b", 300_000_000, 20, 150_000, 150_000)]
    assert slope(leak) == pytest.approx(20, rel=1e-2)
    assert slope(life("a", 0, 20, 0, 1000)) is None and slope(leak[:5]) is None


def test_time_lost_is_what_one_undisturbed_driver_would_not_have_taken() -> None:
    """10 rows a second, a start of 5 s, one kill at 15 s whose successor begins at 40 s."""
    commits = [(5.0 + i, 10 * (i + 1)) for i in range(11)] + [(40.0 + i, 120 + 10 * i) for i in range(30)]
    done = Run(commits, [[0.0, 5.0], [15.5, 40.0]], [(15.4, "driver")], ended=70.0)
    assert undisturbed(done).rows_per_second == pytest.approx(10)
    facts = figures(done, documents=410, decoded=430, unit_rows=10)
    # 70 s, less 5 s of a start, 41 s of rows, 1 s of an end.
    assert facts["seconds_lost"] == pytest.approx(70 - 5 - 41 - 1) and facts["decoded_again"] == 20
    assert facts["seconds_to_first_commit"] == [5.0, 24.5]
    assert facts["actor_mib_per_1000_units"] is None
    leaking = Run(commits, samples=life("a", 0, 20.97152, 0, 300_000), ended=70.0)
    assert figures(leaking, 410, 430, unit_rows=10)["actor_mib_per_1000_units"] == pytest.approx(0.2, rel=1e-2)
    shown = {"rows": 410, "shards": 1, "units": 41, "date": "", "options": "", "machine": ""}
    shown |= {"verify": "", "check": "", "calls_of_a_rerun": 0}
    assert "| time lost to kills and resumes | 23.0 s (33% of the whole) |" in page(facts | shown, ())
    assert "**VIOLATED.**" in page(facts | shown, ("a row is lost",))
