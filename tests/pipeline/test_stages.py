"""Read, tokenize, decode and commit, one after the other on one block, without Ray."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hpd_core.checkpoint import ModelUnavailableError
from hpd_core.prompt import EncodedDocument
from hpd_core.rows import RowStatus
from hpd_core.schema import Document
from pipeline.actor import DecodeActor
from pipeline.block import BlockError, FailureKind, failed, failure, label, unit_of
from pipeline.commit import CommitStage, Receipt, commit
from pipeline.drive import stages
from pipeline.job import JobSpec, RowFault, UnitCaps
from pipeline.metrics import Metrics
from pipeline.prepare import prepare
from pipeline.read import UnitSource, read_unit
from pipeline.resume import open_run
from pipeline.rounds import Rounds
from pipeline.storage import Storage
from pipeline.stream import Stages
from pipeline.tokenize import documents, from_columns, to_columns
from pipeline.units import Unit
from tests.pipeline.fakes import KILL, PRODUCT, RAISE, SHORT, SPEC, ByteEncoder, HashDecoder, HashDecoders, TitleReader
from tests.pipeline.helpers import assert_exact, job, output_files, output_table, same, shards, write
from tests.pipeline.messy import messy, unpacked


def staged(spec: JobSpec) -> tuple[tuple[Unit, ...], Stages]:
    prepared = prepare(spec)
    mark = open_run(prepared.output, prepared.facts, prepared.stored)
    return prepared.plan.units, stages(prepared, mark)


def read(unit: Unit) -> pa.Table:
    [task] = UnitSource([unit], Storage()).get_read_tasks(1)
    [block] = task()
    return block


def through(unit: Unit, made: Stages, actor: DecodeActor | None = None) -> Receipt:
    block = (actor or DecodeActor(made.decode))(made.tokenize(read(unit)))
    [receipt] = Receipt.from_block(made.commit(block))
    return receipt


@pytest.mark.parametrize(("start", "stop"), [(0, 97), (5, 6), (30, 61), (59, 60), (60, 97), (0, 1), (96, 97), (13, 90)])
def test_a_unit_is_exactly_its_rows(tmp_path: Path, start: int, stop: int) -> None:
    table = messy(97)
    write(tmp_path / "a.parquet", table, row_group_size=30)
    unit = Unit(Storage().stat(str(tmp_path / "a.parquet")), start, stop)
    assert same(read_unit(unit, Storage()), table.slice(start, stop - start))


def test_a_unit_far_into_a_large_row_group_is_exactly_its_rows(tmp_path: Path) -> None:
    table = pa.table({"id": range(20_000), "title": [f"t{i}" for i in range(20_000)]})
    write(tmp_path / "a.parquet", table)
    unit = Unit(Storage().stat(str(tmp_path / "a.parquet")), 8190, 12_301)
    assert read_unit(unit, Storage()).equals(table.slice(8190, 4111))


def test_a_file_that_changed_since_the_plan_fails_its_unit(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"title": ["a", "b"]})
    unit = Unit(Storage().stat(str(tmp_path / "a.parquet")), 0, 2)
    write(tmp_path / "a.parquet", {"title": ["c", "d"]})
    fault = failure(read(unit))
    assert fault is not None and fault.kind is FailureKind.READ and "changed since it was planned" in fault.reason


@pytest.mark.parametrize("error", [TypeError("ours"), AssertionError("ours"), FileNotFoundError("removed meanwhile")])
def test_only_what_is_wrong_with_a_file_is_held_against_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """`on_bad_file: skip` would call a run complete from which every row is missing."""
    write(tmp_path / "a.parquet", {"title": ["a"]})
    unit = Unit(Storage().stat(str(tmp_path / "a.parquet")), 0, 1)

    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr("pipeline.read.read_unit", broken)
    fault = failure(read(unit))
    assert fault is not None and fault.kind is FailureKind.READ


def test_a_corrupt_page_fails_its_unit_and_names_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"title": [f"{i}" * 50 for i in range(1000)]})
    raw = bytearray(path.read_bytes())
    raw[100:4000] = bytes(3900)
    path.write_bytes(raw)
    unit = Unit(Storage().stat(str(path)), 0, 1000)
    block = read(unit)
    fault = failure(block)
    assert fault is not None and fault.kind is FailureKind.FILE
    assert unit_of(block) == unit and str(path) in str(unit)


def test_messy_rows_pass_through_all_stages_untouched(tmp_path: Path) -> None:
    table = messy(97)
    write(tmp_path / "in/a.parquet", table, row_group_size=41)
    units, made = staged(job(tmp_path, tmp_path / "in"))
    actor = DecodeActor(made.decode)
    receipts = [through(unit, made, actor) for unit in units]
    assert all(r.record is not None and r.fresh for r in receipts) and len(units) == 7
    assert_exact(tmp_path / "out", unpacked(table))
    assert len({pq.read_schema(path).serialize().to_pybytes() for path in output_files(tmp_path / "out")}) == 1
    assert pq.read_schema(output_files(tmp_path / "out")[0]).field("brand").type == pa.string()


def test_an_attribute_that_no_row_has_keeps_its_type(tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", pa.table({"title": pa.array([None, None], pa.string())}))
    [unit], made = staged(job(tmp_path, tmp_path / "in"))
    actor = DecodeActor(made.decode)
    assert through(unit, made, actor).record is not None
    schema = output_table(tmp_path / "out").schema
    assert schema.field("brand").type == pa.string() and schema.field("pack_size").type == pa.int64()
    assert not HashDecoders(tmp_path / "calls.log").calls()  # rows without text make no call, and load no decoder
    assert actor._decoder is None


def test_faults_of_rows_are_rows_in_error(tmp_path: Path) -> None:
    titles = ["good", RAISE, None, "fine"]
    write(tmp_path / "in/a.parquet", {"title": titles})
    [unit], made = staged(job(tmp_path, tmp_path / "in"))
    receipt = through(unit, made)
    assert receipt.record is not None and receipt.record.metrics.as_dict()["rows"] == {
        "ok": 2, "cut": 0, "no_text": 1, "error": 1,
    }  # fmt: skip
    table = assert_exact(tmp_path / "out", pa.table({"title": titles}), errors=[RAISE])
    assert "too much" in table.column("hpd_error")[1].as_py()


def test_a_decoder_that_answers_too_few_rows_fails_the_unit_and_writes_nothing(tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", {"title": ["good", SHORT, "fine"]})
    [unit], made = staged(job(tmp_path, tmp_path / "in"))
    receipt = through(unit, made)
    assert receipt.record is None and receipt.failure is not None and receipt.failure.kind is FailureKind.DECODE
    assert "2 rows for 3 documents" in receipt.failure.reason
    assert not (tmp_path / "out/data").exists()


def test_a_try_that_fails_is_no_waiting_of_the_next_unit(tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", {"title": ["good", SHORT, "fine"]})
    decoders = HashDecoders(tmp_path / "calls.log", delay=0.5)
    units, made = staged(job(tmp_path, tmp_path / "in", decoder_factory=decoders, units=UnitCaps(rows=1)))
    actor = DecodeActor(made.decode)
    first, failing, last = (through(unit, made, actor) for unit in units)
    assert first.record is not None and failing.record is None and last.record is not None
    assert 0 < last.record.metrics.seconds["idle"] < 0.4 < last.record.metrics.seconds["decode"]


def test_the_ledger_is_told_of_all_prompt_tokens_and_not_of_the_text_alone(tmp_path: Path) -> None:
    class Told(DecodeActor):
        spent = 0

        def _tell(self, method: str, *arguments: Any) -> Any:
            self.spent += arguments[2] if method == "spend" else 0

    class Encoded(HashDecoder):
        encoder = SimpleNamespace(prompt=lambda document: SimpleNamespace(memory_ids=[*document.ids, *range(7)]))

    write(tmp_path / "in/a.parquet", {"title": ["good", "fine!"]})
    decoders = HashDecoders(tmp_path / "calls.log")
    for decoder, spent in ((HashDecoder(decoders), 4 + 5), (Encoded(decoders), 4 + 5 + 2 * 7)):
        made = staged(job(tmp_path, tmp_path / "in", decoder_factory=lambda *_, made=decoder: made))
        actor = Told(made[1].decode)
        actor(made[1].tokenize(read(made[0][0])))
        assert actor.spent == spent


def test_a_decoder_that_cannot_be_loaded_fails_the_unit_by_name(tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", {"title": ["good"]})
    decoders = HashDecoders(tmp_path / "calls.log", broken=True)
    [unit], made = staged(job(tmp_path, tmp_path / "in", decoder_factory=decoders))
    receipt = through(unit, made)
    assert (
        receipt.failure is not None
        and receipt.failure.kind is FailureKind.LOAD
        and "no such model" in receipt.failure.reason
    )


def broken_encoder(spec: object) -> ByteEncoder:
    raise OSError("no tokenizer.json")


def test_a_tokenizer_that_cannot_be_loaded_fails_the_unit_as_a_decoder_does(tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", {"title": ["good"]})
    [unit], made = staged(job(tmp_path, tmp_path / "in", encoder_factory=broken_encoder))
    failure = through(unit, made).failure
    assert failure is not None and failure.kind is FailureKind.LOAD
    assert failure.reason == "the tokenizer cannot be loaded: OSError: no tokenizer.json"


def unreachable(*_: object) -> Any:
    raise ModelUnavailableError("model s3://x/m: ConnectionError: gone")


@pytest.mark.parametrize("what", ["decoder", "tokenizer"])
def test_a_store_of_models_that_does_not_answer_fails_the_unit_and_not_the_job(tmp_path: Path, what: str) -> None:
    write(tmp_path / "in/a.parquet", {"title": ["good"]})
    changes: dict[str, Any] = {f"{'decoder' if what == 'decoder' else 'encoder'}_factory": unreachable}
    [unit], made = staged(job(tmp_path, tmp_path / "in", **changes))
    failure = through(unit, made).failure
    assert failure is not None and failure.kind is FailureKind.STORE
    assert failure.reason.startswith(f"the {what} cannot be loaded: ModelUnavailableError: model s3://x/m")
    rounds = Rounds([unit], max_tries=2)
    rounds.after([], {unit: failure}, None)
    assert rounds.waiting == [unit]


def test_a_poisoned_row_is_neither_tokenized_nor_decoded(tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", {"title": [KILL]})
    [unit], made = staged(job(tmp_path, tmp_path / "in"))
    receipt = through(dataclasses.replace(unit, poison="it kills"), made)
    assert receipt.record is not None
    assert output_table(tmp_path / "out").select(["title", "hpd_status", "hpd_error"]).to_pylist() == [
        {"title": KILL, "hpd_status": "error", "hpd_error": "it kills"}
    ]


@pytest.mark.parametrize("spoil", ["shift", "lose", "double", "reorder", "mix"])
def test_a_block_that_is_not_one_whole_unit_is_refused_by_every_stage(tmp_path: Path, spoil: str) -> None:
    shards(tmp_path / "in", 1)
    (unit, other, *_), made = staged(job(tmp_path, tmp_path / "in"))
    block = read(unit)
    spoiled = {
        "shift": lambda: block.slice(1),
        "lose": lambda: pa.concat_tables([block.slice(0, 3), block.slice(4)]),
        "double": lambda: pa.concat_tables([block, block]),
        "reorder": lambda: block.take([1, 0, *range(2, unit.rows)]),
        "mix": lambda: pa.concat_tables([block, read(other)]),
    }[spoil]()
    for stage in (made.tokenize, DecodeActor(made.decode), made.commit):
        with pytest.raises(BlockError):
            stage(spoiled)
    assert not (tmp_path / "out/data").exists()


def test_a_failed_unit_flows_on_to_its_receipt(tmp_path: Path) -> None:
    shards(tmp_path / "in", 1)
    (unit, *_), made = staged(job(tmp_path, tmp_path / "in"))
    block = failed(unit, FailureKind.READ, "gone")
    [receipt] = Receipt.from_block(made.commit(DecodeActor(made.decode)(made.tokenize(block))))
    assert receipt.unit == unit and receipt.failure is not None and receipt.failure.reason == "gone"


class BadReader(TitleReader):
    """Cannot read a table that holds the title "bad"."""

    def documents(self, table: pa.Table) -> list[Document | RowFault]:
        if "bad" in table.column("title").to_pylist():
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
        return super().documents(table)


def test_a_reader_that_fails_on_one_row_costs_that_row() -> None:
    found = documents(BadReader(), pa.table({"title": ["a", "bad", "b", None]}))
    assert [d.text if isinstance(d, Document) else d.status for d in found] == ["a", "error", "b", "no_text"]
    assert isinstance(found[1], RowFault) and "invalid start byte" in found[1].reason


class ShortReader(TitleReader):
    """Forgets the last row."""

    def documents(self, table: pa.Table) -> list[Document | RowFault]:
        return super().documents(table)[:-1]


def test_a_reader_that_loses_a_row_fails_the_unit() -> None:
    with pytest.raises(ValueError, match="1 documents for 2 rows"):
        documents(ShortReader(), pa.table({"title": ["a", "b"]}))


def test_encoded_documents_survive_their_columns() -> None:
    encoder = ByteEncoder(SPEC)
    wide = PRODUCT.select(["Brand", "Extra"])
    items = [
        encoder.encode(Document("abc", PRODUCT)),
        RowFault(RowStatus.NO_TEXT, "x"),
        encoder.encode(Document("ü", wide)),
        encoder.encode(Document("", PRODUCT)),
        EncodedDocument([1, 2], PRODUCT, cut=True, text="Ab"),
    ]
    back = from_columns(pa.table(to_columns(items)))
    whole = [i if isinstance(i, RowFault) else dataclasses.replace(i, ids=tuple(i.ids)) for i in items]
    assert back == whole


def one_unit(tmp_path: Path) -> tuple[Unit, CommitStage, pa.Table, Metrics]:
    """A unit, its commit stage, and the table and metrics that a worker would commit."""
    write(tmp_path / "in/a.parquet", {"title": ["good", "fine"]})
    [unit], made = staged(job(tmp_path, tmp_path / "in"))
    block = DecodeActor(made.decode)(made.tokenize(read(unit)))
    metrics = Metrics.from_json(block.column("__hpd_metrics")[0].as_py())
    return unit, made.commit, block.select(made.commit.form.schema.names), metrics


def test_the_first_commit_wins_and_the_second_learns_of_it(tmp_path: Path) -> None:
    unit, stage, table, metrics = one_unit(tmp_path)
    settings = {"schema": stage.form.schema, "fingerprint": stage.fingerprint}
    first = commit(stage.output, unit, table, metrics, **settings)
    [path] = output_files(tmp_path / "out")
    before = path.read_bytes()
    other = table.set_column(1, table.schema.field(1), pa.array(["x", "y"]))
    second = commit(stage.output, unit, other, metrics, **settings)
    assert first.fresh and not second.fresh
    assert first.record is not None and second.record is not None
    assert second.record.to_json() == first.record.to_json() and path.read_bytes() == before


def test_data_without_a_manifest_is_adopted_not_rewritten(tmp_path: Path) -> None:
    unit, stage, table, metrics = one_unit(tmp_path)
    settings = {"schema": stage.form.schema, "fingerprint": stage.fingerprint}
    commit(stage.output, unit, table, metrics, **settings)
    [record] = (tmp_path / "out/_manifest/units").iterdir()
    [path] = output_files(tmp_path / "out")
    before, known = path.read_bytes(), json.loads(record.read_text())
    record.unlink()  # as if the worker had died between the two
    other = table.set_column(1, table.schema.field(1), pa.array(["x", "y"]))
    adopted = commit(stage.output, unit, other, Metrics(rows=metrics.rows), **settings)
    assert adopted.record is not None and path.read_bytes() == before
    again = json.loads(record.read_text())
    assert again["sha256"] == known["sha256"] and again["metrics"]["decode"] == known["metrics"]["decode"]


def test_a_foreign_object_of_that_name_is_refused_and_left_alone(tmp_path: Path) -> None:
    unit, stage, table, metrics = one_unit(tmp_path)
    path = tmp_path / "out/data" / f"{unit.object_name(stage.fingerprint)}.parquet"
    path.parent.mkdir(parents=True)
    settings = {"schema": stage.form.schema, "fingerprint": stage.fingerprint}
    for content in (b"garbage", None):
        if content is None:
            pq.write_table(pa.table({"a": [1]}), path)
        else:
            path.write_bytes(content)
        before = path.read_bytes()
        with pytest.raises(OSError, match="exists without a manifest"):
            commit(stage.output, unit, table, metrics, **settings)
        assert path.read_bytes() == before
    assert not (tmp_path / "out/_manifest/units").exists()


def test_a_unit_whose_name_another_one_has_is_refused_and_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names tell URIs apart by 32 bits of a hash; here by none."""
    unit, stage, table, metrics = one_unit(tmp_path)
    settings = {"schema": stage.form.schema, "fingerprint": stage.fingerprint}
    monkeypatch.setattr(Unit, "object_name", lambda *_: "a")
    assert commit(stage.output, unit, table, metrics, **settings).fresh
    other = dataclasses.replace(unit, file=dataclasses.replace(unit.file, uri=str(tmp_path / "in/b.parquet")))
    with pytest.raises(OSError, match=r"a\.parquet is the output of rows 0..2 of .*/a\.parquet, and rows 0..2 of .*/b"):
        commit(stage.output, other, table, metrics, **settings)
    (tmp_path / "out/data/a.parquet").unlink()
    with pytest.raises(OSError, match=r"is the output of rows 0..2 of .*/a\.parquet"):  # of which the record is left
        commit(stage.output, other, table, metrics, **settings)


def test_a_table_that_is_not_the_units_is_never_committed(tmp_path: Path) -> None:
    unit, stage, table, metrics = one_unit(tmp_path)
    settings = {"schema": stage.form.schema, "fingerprint": stage.fingerprint}
    for wrong in (table.slice(1), table.drop_columns(["brand"]), table.select(table.column_names[::-1])):
        with pytest.raises(BlockError):
            commit(stage.output, unit, wrong, metrics, **settings)
    with pytest.raises(BlockError, match="1 of them counted"):
        commit(stage.output, unit, table, Metrics(rows=type(metrics.rows)(ok=1)), **settings)
    assert not (tmp_path / "out/data").exists()


def test_label_refuses_a_wrong_number_of_rows() -> None:
    unit = Unit(Storage().stat(__file__), 0, 2)
    with pytest.raises(BlockError, match="3 rows were read for 2"):
        label(pa.table({"a": [1, 2, 3]}), unit)
