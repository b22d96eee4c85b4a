from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hpd_core.schema import Attribute, Schema
from hpd_core.settings import DecodeSettings
from pipeline.job import JobError, JobSpec, OutputOptions, Pool
from pipeline.manifest import OutputFolder
from pipeline.metrics import Metrics
from pipeline.output import OUTPUT_VERSION
from pipeline.prepare import prepare
from pipeline.reader import CatalogReader
from pipeline.record import UnitRecord
from pipeline.resume import check_run, differences, marks, open_run, remaining, select
from pipeline.storage import Storage, StoreUnavailableError
from pipeline.text import TextTemplate
from pipeline.units import InputFile, Unit
from tests.pipeline.fakes import PRODUCT, TitleReader
from tests.pipeline.helpers import SMALL_POOL, job, write

A, B = InputFile("/in/a", 1, "v1"), InputFile("/in/b", 1, "v1")


def record(file: InputFile, start: int, stop: int) -> UnitRecord:
    unit = Unit(file, start, stop)
    return UnitRecord(unit, unit.object_name("f"), "f", 1, "", Metrics())


def ranges(records: list[UnitRecord]) -> list[tuple[str, int, int]]:
    return [(r.unit.file.uri[-1], r.unit.start, r.unit.stop) for r in records]


def test_records_are_kept_in_order_and_no_row_twice() -> None:
    records = [
        record(B, 0, 5),
        record(A, 10, 20),
        record(A, 0, 5),
        record(A, 0, 10),
        record(A, 5, 10),
        record(A, 20, 30),
    ]
    kept, dropped = select(records, [A, B])
    assert ranges(kept) == [("a", 0, 10), ("a", 10, 20), ("a", 20, 30), ("b", 0, 5)]
    assert ranges(dropped) == [("a", 0, 5), ("a", 5, 10)]


def test_records_of_inputs_that_are_gone_or_changed_are_dropped() -> None:
    kept, dropped = select([record(A, 0, 5), record(B, 0, 5)], [replace(A, version="v2"), B])
    assert ranges(kept) == [("b", 0, 5)] and ranges(dropped) == [("a", 0, 5)]


def test_empty_units_are_kept_once() -> None:
    empty = record(A, 0, 0)
    assert select([empty], [A])[0] == [empty]
    assert len(select([empty, replace(empty, object="other")], [A])[0]) == 1


def test_what_is_committed_in_other_cuts_is_not_done_again() -> None:
    planned = [Unit(A, 0, 10), Unit(A, 10, 20), Unit(B, 0, 10)]
    left = remaining(planned, [record(A, 0, 4), record(A, 8, 15)])
    assert [(u.file.uri, u.start, u.stop) for u in left] == [("/in/a", 4, 8), ("/in/a", 15, 20), ("/in/b", 0, 10)]
    assert remaining([Unit(replace(A, version="v2"), 0, 4)], [record(A, 0, 4)]) == [
        Unit(replace(A, version="v2"), 0, 4)
    ]


def test_differences_name_the_leaf() -> None:
    before = {"decoder": {"settings": {"k": 24, "same": 1}}, "shards": [{"n": "a"}, 1], "gone": 1}
    now = {"decoder": {"settings": {"k": 16, "same": 1}}, "shards": [{"n": "b"}, 1], "new": [1]}
    assert differences(before, now) == [
        "  decoder.settings.k: 24 -> 16",
        "  shards[0].n: 'a' -> 'b'",
        "  gone: 1 -> (none)",
        "  new: (none) -> [1]",
    ]


def test_differences_go_by_name_where_things_have_one() -> None:
    before = {"schemas": [{"name": "a", "n": [{"name": "x"}, {"name": "y"}]}, {"name": "b", "k": ["1", "2"]}]}
    now = {"schemas": [{"name": "b", "k": ["1"]}, {"name": "c"}, {"name": "a", "n": [{"name": "y"}, {"name": "x"}]}]}
    assert differences(before, now) == [
        "  schemas.a.n, in order: ['x', 'y'] -> ['y', 'x']",
        "  schemas.b.k: ['1', '2'] -> ['1']",
        "  schemas.c: (none) -> {'name': 'c'}",
        "  schemas, in order: ['a', 'b'] -> ['b', 'a']",
    ]


@pytest.mark.parametrize("at", [0, 50, 5000, 9999])
def test_a_long_difference_is_shown_around_its_first_character(at: int) -> None:
    before = "".join(chr(ord("a") + i % 26) for i in range(10_000))
    [line] = differences({"x": before}, {"x": before[:at] + "!" + before[at + 1 :]})
    old, new = line.removeprefix("  x: ").split(" -> ")
    assert before[at] in old and "!" in new and len(line) < 300
    assert new.startswith("…") == (at > 30) and new.endswith("…") == (at < 9900)


def test_a_changed_schema_is_refused_with_the_attribute_that_changed_and_no_more(tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", {"title": ["x"], "kind": ["shoes"]})
    values = tuple(f"colour number {i}" for i in range(200))
    other = Schema("hats", (Attribute("Brim"),))

    def asking(values: tuple[str, ...]) -> JobSpec:
        shoes = Schema("shoes", (Attribute("Brand"), Attribute("Color", values=values)))
        reader = CatalogReader(TextTemplate("{{ title }}"), {"Shoes": shoes, "Boots": shoes}, other, "kind")
        return job(tmp_path, tmp_path / "in", reader=reader, schemas=(shoes, other))

    begin(asking(values))
    with pytest.raises(JobError) as caught:
        begin(asking((*values, "teal")))
    [line] = str(caught.value).splitlines()[1:]
    assert line.startswith("  schemas.shoes.attributes.Color.values: …") and "'teal']" in line and len(line) < 400


def begin(spec: JobSpec, *, lost: int = 0, commits: bool = True) -> str:
    """Begins a run, which commits something or does not."""
    prepared = prepare(spec)
    if prepared.stored is not None:
        check_run(spec.output, prepared.facts, prepared.stored, lost=lost, allow_mixed=spec.allow_mixed)
    mark = open_run(prepared.output, prepared.facts, prepared.stored)
    if commits:
        prepared.output.storage.create(prepared.output.record("unit"), record(A, 0, 5).to_json().encode())
    return mark


def changed(spec: JobSpec, what: str) -> JobSpec:
    settings = DecodeSettings(max_value_tokens=16)
    small = replace(PRODUCT.attributes[0], description="the maker")
    return {
        "max_value_tokens": replace(spec, decoder=replace(spec.decoder, settings=settings)),
        "revision": replace(spec, decoder=replace(spec.decoder, model=replace(spec.decoder.model, revision="r2"))),
        "instruction": replace(
            spec, decoder=replace(spec.decoder, template=replace(spec.decoder.template, instruction="{attributes}"))
        ),
        "description": replace(spec, schemas=(replace(PRODUCT, attributes=(small, PRODUCT.attributes[1])),)),
        "reader.column": replace(spec, reader=TitleReader("other")),
        "decoder_name": replace(spec, decoder_name="ar"),
        "threads": replace(spec, pool=replace(SMALL_POOL, threads=7)),
    }[what]


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    write(tmp_path / "in/a.parquet", {"title": ["x"], "other": ["y"]})
    return job(tmp_path, tmp_path / "in")


@pytest.mark.parametrize(
    "what", ["max_value_tokens", "revision", "instruction", "description", "reader.column", "decoder_name", "threads"]
)
def test_another_job_on_the_same_output_is_refused_with_the_difference(spec: JobSpec, what: str) -> None:
    first = begin(spec)
    with pytest.raises(JobError, match=rf"begun by another job[\s\S]*{what}[^\n]*->") as e:
        begin(changed(spec, what))
    changes = [line.strip() for line in str(e.value).splitlines() if " -> " in line]
    # A revision is part of where the model comes from.
    assert all(what in line or (what == "revision" and line.startswith("decoder.model.source")) for line in changes)
    assert begin(replace(changed(spec, what), allow_mixed=True)) != first


def test_another_version_of_the_output_is_refused_with_the_difference(
    spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(spec)
    monkeypatch.setattr("pipeline.resume.OUTPUT_VERSION", OUTPUT_VERSION + 1)
    with pytest.raises(JobError, match=f"output_version: {OUTPUT_VERSION} -> {OUTPUT_VERSION + 1}"):
        begin(spec)
    begin(replace(spec, allow_mixed=True))


def test_a_start_that_committed_nothing_binds_nobody(spec: JobSpec) -> None:
    auto = replace(spec, pool=replace(SMALL_POOL, cpus=3.0))
    first = begin(auto, commits=False)
    second = begin(replace(changed(spec, "instruction"), output_options=OutputOptions(raw=True)), commits=False)
    assert second != first and prepare(spec).job.pool.threads == 1  # not the 3 of the first start
    third = begin(spec)
    assert json.loads((Path(spec.output) / "run.json").read_text())["fingerprint"] == third
    with pytest.raises(JobError, match="begun by another job"):
        begin(changed(spec, "instruction"))


def test_run_json_says_which_fingerprints_were_mixed(spec: JobSpec) -> None:
    made = [begin(spec)]
    for what in ("revision", "instruction"):
        made.append(begin(replace(changed(spec, what), allow_mixed=True)))
    begin(changed(spec, "instruction"))
    run = json.loads((Path(spec.output) / "run.json").read_text())
    assert run["fingerprint"] == made[-1] and run["mixed_with"] == sorted(made[:-1])
    assert marks(run) == set(made) and marks(None) == set()


def test_other_inputs_are_refused_where_rows_would_be_lost(spec: JobSpec, tmp_path: Path) -> None:
    first = begin(spec)
    begin(spec, lost=7)  # files of the same input may change or go
    write(tmp_path / "more/b.parquet", {"title": ["x"], "other": ["y"]})
    more = replace(spec, inputs=(*spec.inputs, str(tmp_path / "more")))
    with pytest.raises(JobError, match=rf"7 rows of other inputs.*were {tmp_path}/in and are {tmp_path}/in, "):
        begin(more, lost=7)
    assert begin(more) == first
    assert json.loads((tmp_path / "out/run.json").read_text())["inputs"] == [str(tmp_path / n) for n in ("in", "more")]
    assert begin(replace(spec, allow_mixed=True), lost=7) == first


def test_what_does_not_decide_the_answers_may_change(spec: JobSpec, tmp_path: Path) -> None:
    first = begin(spec)
    other = replace(
        spec,
        limit=1,
        pool=Pool(max_size=9, cpus=4.0, device="cpu"),
        price_per_hour=3.0,
        input_storage={"anon": True},
        decoder=replace(spec.decoder, model=replace(spec.decoder.model, name="renamed")),
    )
    assert begin(other) == first


def test_other_output_columns_are_refused_even_when_mixing(spec: JobSpec, tmp_path: Path) -> None:
    begin(spec)
    with pytest.raises(JobError, match=r"other output columns[\s\S]*brand__raw"):
        begin(replace(spec, output_options=OutputOptions(raw=True), allow_mixed=True))
    write(tmp_path / "in/b.parquet", {"title": ["x"], "more": [1]})
    with pytest.raises(JobError, match=r"other output columns[\s\S]*more"):
        begin(spec)


def test_auto_is_decided_once(spec: JobSpec) -> None:
    auto = replace(spec, decoder=replace(spec.decoder, model=replace(spec.decoder.model, dtype="auto")))
    first = prepare(replace(auto, pool=replace(SMALL_POOL, cpus=3.0)))
    assert (first.job.decoder.model.dtype, first.job.pool.threads) == ("float32", 3)
    begin(replace(auto, pool=replace(SMALL_POOL, cpus=3.0)))
    gpu = prepare(replace(auto, pool=Pool(gpus=1, cpus=8.0)))
    assert (gpu.job.decoder.model.dtype, gpu.job.pool.threads) == ("float32", 3)
    fresh = prepare(replace(auto, pool=Pool(gpus=1, cpus=8.0), output=spec.output + "2"))
    assert (fresh.job.decoder.model.dtype, fresh.job.pool.threads) == ("bfloat16", 8)


def test_run_json_holds_no_secret(spec: JobSpec, tmp_path: Path) -> None:
    begin(replace(spec, input_storage={"secret": "hunter2"}, output_storage={"secret": "hunter2"}))
    assert "hunter2" not in (tmp_path / "out/run.json").read_text()


def folder(tmp_path: Path) -> OutputFolder:
    return OutputFolder(str(tmp_path / "out"), Storage())


def test_a_record_without_its_data_does_not_count(tmp_path: Path) -> None:
    output = folder(tmp_path)
    there, gone = record(A, 0, 5), record(A, 5, 9)
    for r in (there, gone):
        output.storage.create(output.record(r.object), r.to_json().encode())
    output.storage.create(output.data(there.object), b"x")
    assert output.read_records() == [there] and output.read_record(gone.object) == gone
    output.forget_lost()
    assert (
        output.read_records() == [there] and output.read_record(gone.object) is None
    )  # so that its unit can be committed again


def test_success_is_not_marked_where_a_listed_file_is_gone(tmp_path: Path) -> None:
    output, kept = folder(tmp_path), [record(A, 0, 5), record(A, 5, 9)]
    for r in kept:
        output.storage.create(output.data(r.object), b"x")
        output.storage.create(output.record(r.object), r.to_json().encode())

    def lost() -> None:
        output.storage.delete(output.data(kept[1].object))

    with pytest.raises(StoreUnavailableError, match=f"{kept[1].object}.parquet: was removed while the job ended"):
        output.finish(kept, {}, lost)
    assert not output.is_finished()


def test_finish_removes_what_is_not_listed_before_it_marks_success(tmp_path: Path) -> None:
    output = folder(tmp_path)
    kept, other = record(A, 0, 5), record(B, 0, 5)
    for r in (kept, other):
        output.storage.create(output.data(r.object), b"x")
        output.storage.create(output.record(r.object), r.to_json().encode())
    output.storage.create(output.data("stray"), b"x")
    assert not output.is_finished()
    output.finish([kept], {})
    assert output.is_finished() and output.record_names() == output.data_names() == {kept.object}
    assert output.read_records() == [kept]
    listing = output.read_json("_manifest/job.json")
    assert listing is not None
    assert [o["data"] for o in listing["objects"]] == [f"data/{kept.object}.parquet"]
