"""The whole stream with fakes, on one small Ray that all tests of this file share."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray

from pipeline.events import Event, Progress
from pipeline.manifest import OutputFolder
from pipeline.run import run
from pipeline.storage import Storage
from pipeline.verify import verify
from tests.pipeline.fakes import HANG, KILL, LOST, HashDecoders
from tests.pipeline.helpers import SMALL_POOL, assert_exact, input_table, job, output_files, output_table, shards, write
from tests.pipeline.messy import TEXTS, messy, strings, typed, unpacked

pytestmark = pytest.mark.usefixtures("cluster")


def files_of(output: Path) -> dict[str, tuple[int, bytes]]:
    """{name: (time of the last change, content)} of everything in an output folder."""
    paths = [p for p in output.rglob("*") if p.is_file()]
    return {str(p.relative_to(output)): (p.stat().st_mtime_ns, p.read_bytes()) for p in paths}


def test_a_messy_catalog_comes_through_and_a_second_run_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = messy(97), messy(40, first=97)
    write(tmp_path / "in/a.parquet", first, row_group_size=30)
    write(tmp_path / "in/b.parquet", second.slice(0, 0))
    write(tmp_path / "in/c.parquet", second)
    decoders = HashDecoders(tmp_path / "calls.log")
    spec = job(tmp_path, tmp_path / "in", decoder_factory=decoders)
    seen: list[Progress] = []
    # Blocks that Ray may cut at 1 KB would be cut after each stage if the stream did not forbid it.
    monkeypatch.setattr(ray.data.DataContext.get_current(), "target_max_block_size", 1024)
    summary = run(spec, progress=seen.append)

    assert ray.data.DataContext.get_current().target_max_block_size == 1024
    assert summary.complete and not summary.failures
    source = pa.concat_tables([unpacked(first), unpacked(second)])
    assert_exact(tmp_path / "out", source)
    assert (summary.rows_in, summary.rows_ok + summary.rows_error) == (137, 137)
    assert summary.rows_error == sum(not title for title in source.column("title").to_pylist())
    assert len(output_files(tmp_path / "out")) == summary.units == 10  # 2 + 2 + 2 + 1, one empty, 2
    assert (seen[-1].rows_done, seen[-1].rows_total, seen[-1].units_done) == (137, 137, 10)
    assert (seen[-1].rows_new, seen[-1].rows_error) == (137, summary.rows_error)
    assert [state.event for state in seen] == [Event.RUNNING] + [Event.COMMITTED] * 9

    metrics = json.loads((tmp_path / "out/metrics.json").read_text())
    assert summary.model_calls == metrics["decode"]["model_calls"] == len(decoders.calls())
    assert metrics["decode"]["documents"] == sum(decoders.calls()) == summary.rows_ok == summary.values["brand"]
    assert metrics["rows_in"] == metrics["rows_ok"] + metrics["rows_error"] == 137
    listing = json.loads((tmp_path / "out/_manifest/job.json").read_text())
    assert {o["data"] for o in listing["objects"]} == {f"data/{p.name}" for p in output_files(tmp_path / "out")}

    before = files_of(tmp_path / "out")
    monkeypatch.setattr("pipeline.stream.cluster", None)  # whoever wants Ray now fails
    again = run(spec)
    assert again.complete and again.model_calls == 0
    assert (again.rows_in, again.values, again.docs_per_second) == (137, summary.values, summary.docs_per_second)
    assert files_of(tmp_path / "out") == before

    # As if the first run had been killed between its last unit and the mark of success, with another writer's remains.
    (tmp_path / "out/_SUCCESS").unlink()
    (tmp_path / "out/_manifest/job.json").unlink()
    (tmp_path / "out/data/stray.parquet").write_bytes(b"half a unit of somebody")
    finished = run(spec)
    assert finished.complete and finished.model_calls == 0
    after = files_of(tmp_path / "out")
    assert after.keys() == before.keys()
    assert all(after[name] == before[name] for name in before if name.startswith(("data/", "_manifest/units/")))


def test_a_limit_is_extended_and_inputs_that_change_are_redone_alone(tmp_path: Path) -> None:
    source = shards(tmp_path / "in", 3, rows=20, row_group_size=20)
    decoders = HashDecoders(tmp_path / "calls.log")
    spec = job(tmp_path, source, decoder_factory=decoders)
    limited = run(replace(spec, limit=27))
    assert limited.complete and limited.rows_in == 27
    assert_exact(tmp_path / "out", input_table(source).slice(0, 27))

    write(source / "part-0000.parquet", {"id": list(range(20)), "title": [f"new {i}" for i in range(20)]})
    (source / "part-0002.parquet").unlink()
    write(source / "part-0003.parquet", {"id": [7], "title": ["added"]})
    done = sum(decoders.calls())
    seen: list[Progress] = []
    summary = run(spec, progress=seen.append)
    assert summary.complete and summary.rows_in == 41
    # Of the plan's three units none is whole: one is new, of one the limit left a part, one was replaced.
    assert [(p.units_done, p.units_total, p.rows_done, p.rows_total) for p in (seen[0], seen[-1])] == [
        (0, 3, 7, 41),
        (3, 3, 41, 41),
    ]
    assert_exact(tmp_path / "out", input_table(source))
    # 20 of the replaced file, 13 that the limit left, 1 added; the 7 rows of part-0001 that were done stay.
    assert sum(decoders.calls()) - done == 34
    [change] = json.loads((tmp_path / "out/_manifest/job.json").read_text())["changes"]
    assert {name: [Path(uri).name for uri in change[name]] for name in ("replaced", "removed", "added")} == {
        "replaced": ["part-0000.parquet"],
        "removed": ["part-0002.parquet"],
        "added": ["part-0003.parquet"],
    }
    assert change["redone"] == [f"rows 0..20 of {source}/part-0000.parquet"]


def test_an_actor_killed_in_the_middle_costs_a_retry_and_no_row(tmp_path: Path) -> None:
    source = shards(tmp_path / "in", 2)
    decoders = HashDecoders(tmp_path / "calls.log", kill_once=tmp_path / "killed")
    summary = run(job(tmp_path, source, decoder_factory=decoders))
    assert summary.complete and (tmp_path / "killed").exists()
    assert_exact(tmp_path / "out", input_table(source))
    assert summary.metrics["run"]["retries"] == 1 and summary.metrics["run"]["wasted_tokens"] > 0
    units = pq.read_table(tmp_path / "out/_manifest/metrics.parquet").to_pylist()
    assert sorted(row["retries"] for row in units) == [0] * (len(units) - 1) + [1]
    assert sum(row["wasted_tokens"] for row in units) == summary.metrics["run"]["wasted_tokens"]
    assert summary.metrics["run"]["rounds"] == 1


def test_rows_that_kill_or_hang_their_worker_or_lose_its_device_are_found_and_the_others_done(tmp_path: Path) -> None:
    titles = [f"title {i}" for i in range(10)]
    titles[2], titles[4], titles[7] = f"a {KILL}", f"a {LOST}", f"a {HANG}"
    write(tmp_path / "in/a.parquet", {"title": titles}, row_group_size=5)
    spec = job(
        tmp_path,
        tmp_path / "in",
        pack_deadline_seconds=1.0,
        pool=replace(SMALL_POOL, max_retries=0),
    )
    summary = run(replace(spec, units=replace(spec.units, rows=5)))
    assert summary.complete and (summary.rows_ok, summary.rows_error) == (7, 3)
    bad = (2, 4, 7)
    table = assert_exact(tmp_path / "out", pa.table({"title": titles}), errors=[titles[row] for row in bad])
    assert all("ended every worker" in table.column("hpd_error")[row].as_py() for row in bad)


def test_a_pack_that_hangs_is_not_tried_again_in_full(tmp_path: Path) -> None:
    titles = [f"title {i}" for i in range(16)]
    titles[6] = f"a {HANG}"
    write(tmp_path / "in/a.parquet", {"title": titles})
    decoders = HashDecoders(tmp_path / "calls.log")
    summary = run(
        job(
            tmp_path,
            tmp_path / "in",
            decoder_factory=decoders,
            pack_documents=8,
            # Longer than it takes to start a decoder: what ends sooner was not ended by it.
            pack_deadline_seconds=2.0,
            pool=replace(SMALL_POOL, max_retries=2),
        )
    )
    assert summary.complete and (summary.rows_ok, summary.rows_error) == (15, 1)
    assert_exact(tmp_path / "out", pa.table({"title": titles}), errors=[titles[6]])
    # The first pack hung. Its rows and the other pack are tried once each, and what hung among them is known.
    assert decoders.calls()[0] == 8 and sorted(decoders.calls()[1:]) == [1] * 8 + [8]
    assert summary.metrics["run"]["rounds"] == 3


def test_a_model_that_kills_whoever_loads_it_ends_the_run_at_once(tmp_path: Path) -> None:
    deadly = HashDecoders(tmp_path / "calls.log", deadly=True)
    spec = job(tmp_path, shards(tmp_path / "in", 2, rows=200, row_group_size=20), decoder_factory=deadly)
    summary = run(replace(spec, pool=replace(SMALL_POOL, max_retries=2)))
    assert not summary.complete and summary.rows_in == 0 and summary.metrics["run"]["rounds"] == 1
    assert "the decoder cannot be loaded" in summary.unloadable and "memory" in summary.unloadable
    # Of 20 units with three tries each. A look every five seconds sees the fourth.
    assert 4 <= len(deadly.calls()) <= 15


def test_a_cluster_that_others_fill_ends_the_run_with_the_numbers_and_room_completes_it(tmp_path: Path) -> None:
    source = shards(tmp_path / "in", 1)
    spec = job(tmp_path, source, pool=replace(SMALL_POOL, stall_seconds=4.0))
    seen: list[Progress] = []
    other = ray.remote(num_cpus=2)(Idler).remote()
    try:
        ray.get(other.wait.remote())
        stalled = run(spec, progress=seen.append)
        assert not stalled.complete and stalled.rows_in == 0
        assert "ask for 1.75 CPUs; the cluster has 2 CPUs, 0 of them free" in stalled.failures[0]
        assert {state.event for state in seen} == {Event.RUNNING, Event.WAITING}
        spent = run(replace(spec, budget_seconds=2.0, pool=SMALL_POOL))
        assert not spent.complete and "the budget was spent" in spent.failures[0]
    finally:
        ray.kill(other)
    assert run(spec).complete
    assert_exact(tmp_path / "out", input_table(source))


class Idler:
    """Holds what it was started with."""

    def wait(self) -> None: ...


def test_bad_files_are_named_and_the_good_ones_committed(tmp_path: Path) -> None:
    source = shards(tmp_path / "in", 1)
    good = input_table(source)
    path = write(source / "corrupt.parquet", {"id": list(range(1000)), "title": [f"{i}" * 50 for i in range(1000)]})
    raw = bytearray(path.read_bytes())
    raw[3000:9000] = bytes(6000)
    path.write_bytes(raw)
    (source / "text.parquet").write_bytes(b"this is no Parquet file")
    (source / "empty.parquet").write_bytes(b"")
    whole = (source / "part-0000.parquet").read_bytes()
    (source / "truncated.parquet").write_bytes(whole[: len(whole) // 2])
    spec = replace(job(tmp_path, source), units=replace(job(tmp_path, source).units, rows=1000), max_rounds=2)
    summary = run(spec)
    assert not summary.complete and not (tmp_path / "out/_SUCCESS").exists()
    assert len(summary.failures) == 4
    for name in ("text", "empty", "truncated"):
        assert any(f"{source}/{name}.parquet: " in f for f in summary.failures)
    assert any("corrupt.parquet" in f and "file:" in f for f in summary.failures)
    assert_exact(tmp_path / "out", good)

    skipped = run(replace(spec, on_bad_file="skip"))
    assert skipped.complete and skipped.model_calls == 0 and len(skipped.failures) == 4
    assert (tmp_path / "out/_SUCCESS").exists()
    assert json.loads((tmp_path / "out/_manifest/job.json").read_text())["skipped"] == list(skipped.failures)


def test_a_decoder_that_cannot_be_loaded_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    source = shards(tmp_path / "in", 1)
    broken = HashDecoders(tmp_path / "calls.log", broken=True)
    summary = run(job(tmp_path, source, decoder_factory=broken))
    assert not summary.complete and summary.rows_in == 0
    assert "no such model" in summary.failures[0]
    assert summary.metrics["run"]["rounds"] == 1


def test_a_budget_stops_the_run_which_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = shards(tmp_path / "in", 2, rows=100, row_group_size=20)
    slow = HashDecoders(tmp_path / "calls.log", delay=0.5)
    spec = job(tmp_path, source, decoder_factory=slow)
    seen: list[Progress] = []
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.drive._spent", lambda *_: any(state.event is Event.COMMITTED for state in seen))
        stopped = run(replace(spec, budget_seconds=1.0), progress=seen.append)
    assert not stopped.complete and 0 < stopped.rows_in < 200 and "budget" in stopped.failures[0]
    done = run(spec)
    assert done.complete and done.rows_in == 200
    assert_exact(tmp_path / "out", input_table(source))


def test_shards_without_rows_need_no_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = pa.schema([("id", pa.int64()), ("title", pa.string())])
    for name in ("a", "b"):
        write(tmp_path / f"in/{name}.parquet", schema.empty_table())
    monkeypatch.setattr("pipeline.stream.cluster", None)
    summary = run(job(tmp_path, tmp_path / "in"))
    assert summary.complete and (summary.rows_in, summary.units) == (0, 2)
    assert output_table(tmp_path / "out").schema.field("pack_size").type == pa.int64()
    assert (tmp_path / "out/_SUCCESS").exists()


def test_awkward_types_texts_and_bytes_survive_rays_object_store(tmp_path: Path) -> None:
    """What tests/pipeline/test_messy_input.py tries one by one without Ray."""
    source = tmp_path / "in"
    write(source / "pack=007/a.parquet", typed(), row_group_size=17)
    write(source / "pack=08/b.parquet", {"title": [*TEXTS.values(), *TEXTS.values()]}, row_group_size=20)
    write(source / "c.parquet", pa.table({"title": strings(b"caf\xe9", b"fine", b"")}))
    summary = run(job(tmp_path, source))
    assert summary.complete and (summary.rows_in, summary.rows_error) == (45 + 2 * len(TEXTS) + 3, 2)
    result = verify(OutputFolder(str(tmp_path / "out"), Storage()), Storage())
    assert result.findings == () and result.extent.rows_compared == summary.rows_in
    packs = pa.concat_tables([pq.ParquetFile(path).read(["pack"]) for path in output_files(tmp_path / "out")])
    assert sorted(map(str, packs.column("pack").to_pylist())) == ["007"] * 45 + ["08"] * 2 * len(TEXTS) + ["None"] * 3
