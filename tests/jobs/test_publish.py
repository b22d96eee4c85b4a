"""`hpd publish` against pyiceberg's SQL catalog on a local folder."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import pipeline.drive
from jobs.cli import app
from pipeline.compact import compact
from pipeline.job import JobError
from pipeline.lease import LEASE
from pipeline.manifest import OutputFolder
from pipeline.published import PUBLISHED, read_published
from pipeline.run import run
from pipeline.storage import Storage
from pipeline.verify import verify
from tests.pipeline.helpers import inline, job, output_table, shards, write
from tests.pipeline.holding import QUICK, holding

TABLE = "shop.products"


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("pyiceberg", reason="the extra `publish` is not installed")
    monkeypatch.setattr(pipeline.drive, "drive", inline)
    write(
        shards(tmp_path / "in", 2) / "part-empty.parquet",
        {"id": pa.array([], pa.int64()), "title": pa.array([], pa.string())},
    )
    assert run(job(tmp_path, tmp_path / "in")).complete
    (tmp_path / "warehouse").mkdir()
    return tmp_path / "out"


def properties(out: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{out.parent}/catalog.db", "warehouse": f"file://{out.parent}/warehouse"}


def publish(out: Path, *options: str, table: str = TABLE) -> tuple[int, str]:
    words = [word for key, value in properties(out).items() for word in ("--property", f"{key}={value}")]
    result = CliRunner().invoke(app, ["publish", str(out), "--catalog", "local", "--table", table, *words, *options])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def table(out: Path) -> Any:
    from pyiceberg.catalog import load_catalog

    return load_catalog("local", **properties(out)).load_table(TABLE)


def rows(out: Path) -> list[dict]:
    return sorted(table(out).scan().to_arrow().to_pylist(), key=lambda row: row["id"])


def test_a_table_is_made_filled_in_one_commit_and_never_twice(out: Path) -> None:
    code, text = publish(out)
    assert code == 2 and f"{TABLE} is not in the catalog local: give --create" in text
    assert publish(out, "--create") == (0, f"{TABLE}: created, 6 files, 80 rows appended\n")
    assert rows(out) == output_table(out).to_pylist()
    [snapshot] = table(out).snapshots()
    run_json = json.loads((out / "run.json").read_text())
    assert snapshot.summary["hpd.fingerprint"] == run_json["fingerprint"] and snapshot.summary["hpd.output"] == str(out)
    for _ in range(2):
        assert publish(out, "--create") == (0, f"{TABLE}: nothing to append: it has them\n")
    assert len(table(out).snapshots()) == 1


def test_an_output_that_has_grown_appends_what_is_new(out: Path, tmp_path: Path) -> None:
    publish(out, "--create")
    write(tmp_path / "in/part-9.parquet", {"id": [900], "title": ["new"]})
    assert run(job(tmp_path, tmp_path / "in")).complete
    assert publish(out) == (0, f"{TABLE}: 1 files, 1 rows appended\n")
    assert [row["id"] for row in rows(out)] == [*range(80), 900]


def tables_of(out: Path) -> dict[str, int]:
    """{table: files} that the output says are published."""
    return {f"{t.table} of {t.catalog}": len(t.files) for t in read_published(OutputFolder(str(out), Storage()))}


def merged(out: Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["compact", str(out), "--target-mib", "1024"])
    return result.exit_code, result.output


def test_what_a_table_points_to_is_not_merged_and_what_comes_later_is(out: Path, tmp_path: Path) -> None:
    publish(out, "--create")
    before = rows(out)
    code, text = merged(out)
    assert (
        code == 0 and f"6 file(s) stay as they are: the Iceberg table {TABLE} of catalog local points to them" in text
    )
    assert "7 files" in text and "-> 7 files" in text and rows(out) == before
    for number in (8, 9):
        write(tmp_path / f"in/part-{number}.parquet", {"id": [number * 100], "title": [f"new {number}"]})
    write(tmp_path / "in/part-0000a.parquet", {"id": [700], "title": ["between"]})
    assert run(job(tmp_path, tmp_path / "in")).complete
    assert merged(out)[0] == 0
    names = sorted(path.name for path in (out / "data").iterdir())
    # The empty file was never published: it is merged with what stands beside it; no merged file spans published ones.
    assert len(names) == 6 + 2 and sum("merged" in name for name in names) == 1
    assert verify(OutputFolder(str(out), Storage()), Storage()).findings == ()
    assert publish(out) == (0, f"{TABLE}: 2 files, 3 rows appended\n")
    assert [row["id"] for row in rows(out)] == [*range(80), 700, 800, 900]


def test_a_table_that_is_gone_lets_files_go(out: Path) -> None:
    publish(out, "--create")
    code, text = publish(out, "--withdraw")
    assert code == 2 and f"table {TABLE} still points to 6 file(s) of {out}" in text and tables_of(out)
    # Its own rows in its own file: the snapshot before still points to ours.
    table(out).overwrite(pa.Table.from_pylist(rows_of(out), schema=table(out).schema().as_arrow()))
    assert publish(out, "--withdraw")[0] == 2
    from pyiceberg.catalog import load_catalog

    load_catalog("local", **properties(out)).drop_table(TABLE)
    assert publish(out, "--withdraw") == (0, f"{TABLE}: 6 files let go\n") and tables_of(out) == {}
    assert publish(out, "--withdraw") == (0, f"{TABLE}: 0 files let go\n") and not (out / LEASE).exists()
    code, text = merged(out)
    assert code == 0 and "stay as they are" not in text and "-> 1 files" in text
    assert publish(out, "--create") == (0, f"{TABLE}: created, 1 files, 80 rows appended\n")


def test_a_run_that_would_remove_published_files_is_refused(out: Path, tmp_path: Path) -> None:
    publish(out, "--create")
    before = rows(out)
    write(tmp_path / "in/part-0001.parquet", {"id": [1], "title": ["changed"]})
    with pytest.raises(JobError, match=f"3 of its data files would be removed.*{TABLE} of catalog local.*--withdraw"):
        run(job(tmp_path, tmp_path / "in"))
    assert (out / "_SUCCESS").exists() and rows(out) == before
    (tmp_path / "in/part-0001.parquet").unlink()
    with pytest.raises(JobError, match="3 of its data files would be removed"):
        run(job(tmp_path, tmp_path / "in", allow_mixed=True))
    assert rows(out) == before


def test_the_note_is_there_before_the_table_points_to_a_file(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyiceberg.table import Table

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Table, "add_files", killed)
        assert publish(out, "--create")[0] == 130
    assert tables_of(out) == {f"{TABLE} of local": 6} and "6 file(s) stay" in merged(out)[1]
    assert publish(out, "--withdraw") == (0, f"{TABLE}: 6 files let go\n")


def test_what_an_older_version_published_is_noted_by_publishing_again(out: Path) -> None:
    publish(out, "--create")
    (out / PUBLISHED).unlink()
    assert publish(out) == (0, f"{TABLE}: nothing to append: it has them\n")
    assert tables_of(out) == {f"{TABLE} of local": 6}


def test_verify_names_a_published_file_that_is_not_the_outputs_any_more(out: Path) -> None:
    publish(out, "--create")
    path = out / PUBLISHED
    path.write_text(path.read_text().replace("part-0000-", "part-lost-"))
    found = verify(OutputFolder(str(out), Storage()), Storage()).findings
    assert len(found) == 3 and all(
        f"the Iceberg table {TABLE} of catalog local points to it" in f.message for f in found
    )
    path.write_text('{"tables": [{}]}')
    assert any("published.json" in str(f) for f in verify(OutputFolder(str(out), Storage()), Storage()).findings)


def test_rows_that_would_stand_twice_are_refused(out: Path, tmp_path: Path) -> None:
    publish(out, "--create")
    (out / PUBLISHED).unlink()  # by hand, or of an older version
    compact(OutputFolder(str(out), Storage()), most=2**30)
    code, text = publish(out)
    assert code == 2 and "has 6 file(s)" in text and "does not list any more" in text
    # After the table's own maintenance, the files are not ours to find.
    table(out).overwrite(pa.Table.from_pylist(rows_of(out), schema=table(out).schema().as_arrow()))
    code, text = publish(out)
    assert code == 2 and "keeps its rows elsewhere now" in text


def test_files_that_were_rewritten_in_part_are_not_appended_again(out: Path, tmp_path: Path) -> None:
    """As maintenance does: the rows of two files are in one of the table's own, and the output has grown."""
    from pyiceberg.expressions import LessThan

    publish(out, "--create")
    before = rows(out)
    first = pa.Table.from_pylist([row for row in before if row["id"] < 30], schema=table(out).schema().as_arrow())
    table(out).overwrite(first, overwrite_filter=LessThan("id", 30))
    assert rows(out) == before
    write(tmp_path / "in/part-9.parquet", {"id": [900], "title": ["new"]})
    assert run(job(tmp_path, tmp_path / "in")).complete
    code, text = publish(out)
    assert code == 2 and f"has had 6 files of {out}, and 4 of them are left" in text
    assert rows(out) == before


def rows_of(out: Path) -> list[dict]:
    return output_table(out).slice(0, 1).to_pylist()


def test_a_table_rewritten_by_others_still_counts_as_published(out: Path) -> None:
    publish(out, "--create")
    table(out).overwrite(pa.Table.from_pylist(rows_of(out), schema=table(out).schema().as_arrow()))
    assert publish(out) == (0, f"{TABLE}: nothing to append: it has them\n")


def test_a_merged_output_is_published_as_it_is(out: Path) -> None:
    compact(OutputFolder(str(out), Storage()), most=2**30)
    assert publish(out, "--create") == (0, f"{TABLE}: created, 1 files, 80 rows appended\n")
    assert rows(out) == output_table(out).to_pylist()


def test_what_cannot_be_published_is_refused_with_the_reason(out: Path, tmp_path: Path) -> None:
    assert publish(out, table="products")[1] == "error: table 'products': must be written namespace.table\n"
    assert publish(out, "--property", "odd")[1] == "error: --property odd: must be written KEY=VALUE\n"
    write(tmp_path / "odd/a.parquet", {"title": ["x"], "took": pa.array([1], pa.duration("s"))})
    assert run(job(tmp_path, tmp_path / "odd", output=str(tmp_path / "odd-out"))).complete
    (tmp_path / "odd-out/catalog.db").touch()
    code, text = publish(tmp_path / "odd-out", "--create")
    assert code == 2 and "column 'took' is duration[s], which Iceberg cannot hold" in text
    os.remove(out / "_SUCCESS")
    assert publish(out)[0] == 2 and "not a finished output" in publish(out)[1]


def test_without_the_extra_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    result = CliRunner().invoke(app, ["publish", str(tmp_path), "--catalog", "x", "--table", "a.b"])
    assert result.exit_code == 2 and "pip install 'hpd-catalog[publish]'" in result.stderr


def test_nothing_is_published_while_a_driver_is_at_work(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.lease.PACE", QUICK)
    with holding(OutputFolder(str(out), Storage())):
        code, text = publish(out, "--create")
    assert code == 4 and "is being written by" in text and "held by process" in text
    assert publish(out, "--create")[0] == 0 and not (out / LEASE).exists()
    (out / "_SUCCESS").unlink()
    publish(out)
    assert not (out / LEASE).exists()


def test_sigterm_gives_the_lease_back(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def terminated(*_: object) -> None:
        assert (out / LEASE).exists()
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("pipeline.publish._is_published", terminated)
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.fail("nobody handles SIGTERM"))
    try:
        code, text = publish(out, "--create")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert code == 4 and "terminated" in text and not (out / LEASE).exists()


@pytest.mark.parametrize("passing", [True, False])
def test_a_catalog_that_may_answer_later_is_told_from_one_that_will_not(
    out: Path, monkeypatch: pytest.MonkeyPatch, passing: bool
) -> None:
    from pyiceberg.exceptions import ForbiddenError, ServiceUnavailableError

    errors = [ConnectionError("reset"), ServiceUnavailableError("503")] if passing else [ForbiddenError("403")]
    for error in errors:

        def fail(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr("pyiceberg.catalog.load_catalog", fail)
        code, text = publish(out)
        assert code == (4 if passing else 2) and f"table {TABLE} of catalog local: " in text
