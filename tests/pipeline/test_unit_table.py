"""What each unit took, from the stages that know it to metrics.parquet; without Ray."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline.drive
from hpd_core.prompt import EncodedDocument
from hpd_core.rows import Counts, Extraction
from hpd_core.spec import DecoderSpec
from pipeline.compact import compact
from pipeline.device import device_name, processor
from pipeline.job import OutputOptions, Pool
from pipeline.manifest import OutputFolder
from pipeline.metrics import LENGTH_EDGES, Metrics, device_key, device_of, length_bin
from pipeline.run import run
from pipeline.storage import Storage
from pipeline.unit_table import to_parquet, unit_facts, unit_table
from pipeline.verify import verify
from tests.pipeline.fakes import HashDecoder, HashDecoders
from tests.pipeline.helpers import inline, job, shards, write


class SlowDecoders(HashDecoders):
    def __call__(self, spec: DecoderSpec, device: str, threads: int) -> HashDecoder:
        time.sleep(0.05)
        return super().__call__(spec, device, threads)


class FeedingDecoders(HashDecoders):
    """Its decoders feed one value token a document."""

    def __call__(self, spec: DecoderSpec, device: str, threads: int) -> HashDecoder:
        return FeedingDecoder(self)


class FeedingDecoder(HashDecoder):
    def extract_encoded(self, documents: Sequence[EncodedDocument]) -> Extraction:
        extraction = super().extract_encoded(documents)
        extraction.counts.decode_rows = extraction.counts.slot_steps = len(documents)
        return extraction


def test_an_output_says_of_each_unit_what_it_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline.drive, "drive", inline)
    shards(tmp_path / "in", count=2, rows=30)
    decoders = SlowDecoders(tmp_path / "calls.log", delay=0.01)
    two = Pool(max_size=2, cpus=0.6)
    spec = job(tmp_path, tmp_path / "in", decoder_factory=decoders, price_per_hour=7200.0, pool=two)
    assert run(spec).complete
    rows = pq.read_table(tmp_path / "out" / "_manifest" / "metrics.parquet").to_pylist()
    totals = json.loads((tmp_path / "out" / "metrics.json").read_text())

    assert [(Path(row["file"]).name, row["start"], row["stop"]) for row in rows] == [
        ("part-0000.parquet", 0, 15),
        ("part-0000.parquet", 15, 30),
        ("part-0001.parquet", 0, 15),
        ("part-0001.parquet", 15, 30),
    ]
    assert all((tmp_path / "out" / row["data"]).exists() for row in rows)
    assert [row["load_seconds"] > 0.05 for row in rows] == [True, False, False, False], "the first unit's alone"
    assert [row["idle_seconds"] > 0 for row in rows] == [False, True, True, True]
    for row in rows:
        assert row["rows"] == row["rows_ok"] == row["documents"] == 15
        assert row["actor_seconds"] >= 0.01 and row["tokenize_seconds"] > 0 and row["commit_seconds"] > 0
        assert (row["device"], row["dtype"]) == (f"{processor()}, 1 thread", "float32")
        assert (row["model"], row["revision"]) == ("fake", "fake@main")
        assert row["peak_memory_bytes"] > 10 * 2**20 and row["peak_device_memory_bytes"] is None
        assert row["slots_per_step"] == row["slot_steps"] / row["steps"]
        paid = row["actor_seconds"] + row["idle_seconds"] + row["load_seconds"]
        assert row["dollars"] == pytest.approx(paid, abs=1e-5), "a dollar a second for each of two actors"
        assert row["retries"] == row["wasted_tokens"] == 0
    for stage, column in (("load", "load_seconds"), ("idle", "idle_seconds"), ("decode", "actor_seconds")):
        assert totals["seconds"][stage] == pytest.approx(sum(row[column] for row in rows), abs=1e-4)
    assert totals["lengths"] == {"16": 10, "24": 50}, "product number 7 has 16 bytes"
    assert totals["models"] == {"fake | fake@main": 60}
    assert totals["peak_memory_bytes"] == {"resident": max(row["peak_memory_bytes"] for row in rows)}, "not their sum"
    assert totals["spent"] == {"dollars": pytest.approx(sum(row["dollars"] for row in rows))}
    assert totals["devices"] == {f"{processor()}, 1 thread | float32": 60}


@pytest.mark.parametrize("merged", [False, True])
def test_the_table_names_the_file_that_holds_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merged: bool
) -> None:
    monkeypatch.setattr(pipeline.drive, "drive", inline)
    for colour in ("blue", "red"):
        shards(tmp_path / f"in/colour={colour}", count=1)
    assert run(job(tmp_path, tmp_path / "in", output_options=OutputOptions(layout="hive"))).complete
    if merged:
        compact(OutputFolder(str(tmp_path / "out"), Storage()), most=2**30)
    rows = pq.read_table(tmp_path / "out" / "_manifest" / "metrics.parquet").to_pylist()
    files = {row["data"] for row in rows}
    assert len(rows) == 6 and len(files) == (2 if merged else 6)
    assert files == {str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out/data").rglob("*.parquet")}


def test_rows_without_text_need_no_decoder_and_name_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline.drive, "drive", inline)
    write(tmp_path / "in/a.parquet", {"title": ["", None]})
    run(job(tmp_path, tmp_path / "in"))
    [row] = pq.read_table(tmp_path / "out" / "_manifest" / "metrics.parquet").to_pylist()
    assert row["device"] is None and row["dtype"] is None and row["load_seconds"] == 0
    assert row["model"] is None and row["peak_memory_bytes"] is None


def test_an_output_of_before_there_were_lengths_and_devices_can_be_read() -> None:
    facts = Metrics(decode=Counts(prompt_tokens=5, prefix_tokens=2, decode_rows=3)).as_dict()
    old = {
        name: value
        for name, value in facts.items()
        if name not in ("lengths", "devices", "models", "peak_memory_bytes")
    }
    del old["decode"]["slot_steps"]
    flat = unit_facts(Metrics.from_dict(old))
    assert (flat["prefill_tokens"], flat["slot_steps"], flat["device"]) == (7, 3, None)
    assert (flat["revision"], flat["peak_memory_bytes"]) == (None, None)
    assert (flat["retries"], flat["wasted_tokens"], flat["dollars"]) == (0, 0, 0.0)
    assert "spent" not in Metrics.from_dict(old).as_dict(), "or its segment would have another name"


def test_an_output_of_before_slots_were_counted_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline.drive, "drive", inline)
    shards(tmp_path / "in", count=1, rows=30)
    assert run(job(tmp_path, tmp_path / "in", decoder_factory=FeedingDecoders(tmp_path / "calls.log"))).complete
    changed = [tmp_path / "out" / name for name in ("metrics.json", "_manifest/job.json")]
    for path in [*changed, *(tmp_path / "out/_manifest/units").iterdir()]:
        text = path.read_text()
        assert '"slot_steps"' in text
        path.write_text(re.sub(r'"slot_steps": \d+,\s*', "", text))
    assert verify(OutputFolder(str(tmp_path / "out"), Storage()), Storage()).findings == ()


def test_a_unit_has_every_number_that_the_job_is_operated_by() -> None:
    """Those that issue and docs promise for each unit, by what they are called in the table."""
    wanted = """rows rows_ok rows_error documents slots prompt_tokens cached_tokens generated_tokens drafted_tokens
    accepted_tokens steps slots_per_step truncated absent duplicates prefill_seconds decode_seconds tokenize_seconds
    idle_seconds load_seconds model_calls retries wasted_tokens peak_memory_bytes device dtype revision dollars"""
    assert set(wanted.split()) <= set(unit_table([]).column_names)


def test_the_table_has_the_same_columns_with_and_without_units() -> None:
    empty = pq.read_table(io.BytesIO(to_parquet(unit_table([]))))
    assert empty.schema.field("peak_device_memory_bytes").type == pa.int64()
    assert empty.num_rows == 0 and {"file", "actor_seconds", "slot_steps", "rows_no_text"} <= set(empty.column_names)


@pytest.mark.parametrize(("tokens", "edge"), [(0, 16), (16, 16), (17, 24), (1024, 1024), (10**9, LENGTH_EDGES[-1])])
def test_a_length_falls_into_one_bin(tokens: int, edge: int) -> None:
    assert length_bin(tokens) == str(edge)


def test_a_device_has_a_name() -> None:
    knows = SimpleNamespace(model=SimpleNamespace(device="cpu"), extract_encoded=None)
    assert device_name(knows, "cuda", 2) == f"{processor()}, 2 threads", "where the model lies, not what was asked for"
    assert device_of(device_key("A | B", "bfloat16")) == ("A | B", "bfloat16")
