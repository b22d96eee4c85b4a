"""Equal documents of a unit are decoded once, and every row gets its answer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hpd_core.prompt import EncodedDocument
from hpd_core.rows import Counts, Extraction, Row, RowStatus, Value, ValueStatus
from hpd_core.schema import Attribute, Document, Schema
from hpd_core.spec import DecoderSpec
from pipeline.compose import compose
from pipeline.config import load_config
from pipeline.job import JobSpec, OutputOptions, RowFault, UnitCaps
from pipeline.manifest import OutputFolder, UnitRecord
from pipeline.pack import decode_items
from pipeline.prepare import prepare
from pipeline.resume import open_run
from pipeline.rounds import Rounds, Work
from pipeline.run import run
from pipeline.storage import Storage
from pipeline.verify import verify
from tests.pipeline.fakes import RAISE, ByteEncoder, HashDecoders
from tests.pipeline.helpers import assert_exact, inline, job, write

ONE, OTHER = Schema("one", (Attribute("A"),)), Schema("other", (Attribute("A"),))
ABSENT = ValueStatus.ABSENT
FAULT = RowFault(RowStatus.NO_TEXT, "empty")


class Numbering:
    """Answers with the number of the document among all that it was ever asked; refuses the ids `bad`."""

    def __init__(self, *bad: int) -> None:
        self.bad = bad
        self.asked: list[EncodedDocument] = []

    def __call__(self, documents: Sequence[EncodedDocument]) -> Extraction:
        for document in documents:
            if document.ids[0] in self.bad:
                raise ValueError(f"refuses {document.ids[0]}")
        rows = []
        for document in documents:
            status = RowStatus.CUT if document.cut else RowStatus.OK
            value = Value("A", None, ABSENT, str(len(self.asked)), 0.0, 1)
            rows.append(Row(document.schema, status, (value,), document_tokens=len(document.ids)))
            self.asked.append(document)
        counts = Counts(documents=len(rows), prompt_tokens=sum(len(d.ids) for d in documents))
        counts.count_values(rows)
        return Extraction(rows, counts)


def said(rows: Iterable[Row | RowFault]) -> list[str]:
    return [row.values[0].raw if isinstance(row, Row) else row.reason for row in rows]


def documents(*ids: int, schema: Schema = ONE, **facts: Any) -> list[EncodedDocument]:
    return [EncodedDocument((n,), schema, **facts) for n in ids]


def test_repeats_in_other_packs_are_decoded_once_and_counted() -> None:
    decode = Numbering()
    items = [*documents(7, 8, 7), FAULT, *documents(9, 8, 7, 10)]
    rows, counts = decode_items(decode, items, pack_documents=2)
    assert said(rows) == ["0", "1", "0", "empty", "2", "1", "0", "3"]
    assert [d.ids for d in decode.asked] == [(7,), (8,), (9,), (10,)]
    assert (counts.documents, counts.duplicates, counts.prompt_tokens) == (4, 3, 4)
    assert counts.absent == 7  # of rows: a copied answer counts where it lands


def test_only_what_is_equal_for_model_and_row_is_a_repeat() -> None:
    items = [
        *documents(7),
        *documents(7, schema=OTHER),
        *documents(7, text="Seven"),  # values are looked up in another text
        *documents(7, cut=True),
        EncodedDocument([7], ONE),
        EncodedDocument([7, 7], ONE),
    ]
    decode = Numbering()
    rows, counts = decode_items(decode, items, pack_documents=100)
    assert said(rows) == ["0", "4", "1", "2", "0", "3"] and counts.duplicates == 1
    assert [row.status.value for row in rows] == ["ok", "ok", "ok", "cut", "ok", "ok"]
    assert all(isinstance(row, Row) and row.schema == item.schema for row, item in zip(rows, items, strict=True))


def test_a_document_that_fails_fails_for_all_its_repeats_and_is_tried_as_one() -> None:
    decode = Numbering(8, 9)
    rows, counts = decode_items(decode, documents(7, 8, 9, 8, 7, 9, 8), pack_documents=100)
    refused = {n: f"decoding: ValueError: refuses {n}" for n in (8, 9)}
    assert said(rows) == ["0", refused[8], refused[9], refused[8], "0", refused[9], refused[8]]
    assert (counts.documents, counts.duplicates) == (1, 1)  # nothing is copied of what failed


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.drive.drive", inline)


def committed(spec: JobSpec) -> list[UnitRecord]:
    """Of the job run to its end, its output verified against the input."""
    summary = run(spec)
    assert summary.complete, summary.failures
    output = OutputFolder(spec.output, Storage())
    assert verify(output, Storage()).findings == ()
    return output.read_records()


def test_rows_of_a_unit_get_their_own_answers_and_units_share_nothing(tmp_path: Path, without_ray: None) -> None:
    titles = ["a", "b", "a", None, RAISE, "a"] * 3 + ["c"]  # units of 7 rows: cut through the repetition
    write(tmp_path / "in/a.parquet", {"title": titles, "id": list(range(19))})
    asked = 0
    found = committed(job(tmp_path, tmp_path / "in", units=UnitCaps(rows=7), pack_documents=1))
    assert_exact(tmp_path / "out", pa.table({"title": titles, "id": list(range(19))}), errors=[RAISE])
    for record in found:
        rows = titles[record.unit.start : record.unit.stop]
        counts, asked = record.metrics.decode, asked + len(set(rows) - {None})
        assert counts.documents == len(set(rows) - {None, RAISE})
        assert counts.documents + counts.duplicates == record.metrics.rows_ok
    assert HashDecoders(tmp_path / "calls.log").calls() == [1] * asked  # each pack is one document


def test_halves_of_a_unit_that_took_its_worker_down_decode_their_own_repeats(tmp_path: Path) -> None:
    titles = ["a", "a", "b", "a", "b"]
    write(tmp_path / "in/a.parquet", {"title": titles})
    prepared = prepare(job(tmp_path, tmp_path / "in"))
    [unit] = prepared.plan.units
    rounds = Rounds([unit], 3)
    rounds.after([], {}, None)
    assert [u.rows for u in rounds.waiting] == [2, 3]
    work = Work()
    inline(prepared, open_run(prepared.output, prepared.facts, None), rounds.waiting, [], 0.0, None, work)
    assert [(r.metrics.decode.documents, r.metrics.decode.duplicates) for r in work.committed] == [(1, 1), (2, 1)]
    assert_exact(tmp_path / "out", pa.table({"title": titles}))


class Digests:
    """A decoder whose every value is absent and whose words are a digest of what it was asked."""

    def __call__(self, spec: DecoderSpec, device: str, threads: int) -> Digests:
        return self

    def extract_encoded(self, documents: Sequence[EncodedDocument]) -> Extraction:
        rows = [
            Row(
                d.schema,
                RowStatus.OK,
                tuple(Value(a.name, None, ValueStatus.ABSENT, digest(d), -1.0, 1) for a in d.schema),
            )
            for d in documents
        ]
        return Extraction(rows, Counts(documents=len(rows)))


def digest(document: EncodedDocument) -> str:
    return hashlib.sha256(bytes(document.ids)).hexdigest()[:12]


def test_camera_listings_cost_one_document_per_different_text_of_a_unit(
    tmp_path: Path, repository: Path, real_data: Callable[[str], Path], without_ray: None
) -> None:
    source, config = real_data("catalogs/camera-listings"), repository / "conf/camera-listings.yaml"
    spec = compose(load_config(config), config, inputs=[str(source)], output=str(tmp_path / "out"))
    spec = replace(
        spec,
        units=UnitCaps(rows=4000, documents_per_second=1000),
        limit=8000,
        pack_documents=100,  # repeats stand in different packs
        encoder_factory=ByteEncoder,
        decoder_factory=Digests(),
        output_options=OutputOptions(raw=True),
    )
    found = committed(spec)
    assert sum(record.metrics.rows_in for record in found) == 8000
    [column, *_] = [f"{name}__raw" for name in spec.attributes()]
    decoded = copied = 0
    for record in found:
        unit, counts = record.unit, record.metrics.decode
        table = pq.read_table(unit.file.uri).slice(unit.start, unit.rows)
        texts = [item.text if isinstance(item, Document) else None for item in spec.reader.documents(table)]
        asked = [None if text is None else ByteEncoder(spec.decoder).encode(Document(text, ONE)) for text in texts]
        assert counts.documents == len({(bytes(d.ids), d.cut) for d in asked if d is not None})
        assert counts.documents + counts.duplicates == record.metrics.rows_ok
        answers = pq.read_table(Path(spec.output) / "data" / f"{record.object}.parquet").column(column).to_pylist()
        assert answers == [None if d is None else digest(d) for d in asked]
        decoded, copied = decoded + counts.documents, copied + counts.duplicates
    assert copied > decoded / 10
