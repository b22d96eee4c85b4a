from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from hpd_core.decode import Decoder
from hpd_core.extractor import HyperParallelDecoder
from hpd_core.model_spec import ModelSpec, Prompting
from hpd_core.prompt import EncodedDocument
from hpd_core.rows import Counts, Extraction, Row, RowStatus, Value, ValueStatus
from hpd_core.schema import Attribute, Document, Schema
from hpd_core.settings import DecodeSettings
from hpd_core.spec import DecoderSpec
from pipeline.block import BlockError
from pipeline.job import OutputOptions, RowFault
from pipeline.metrics import Metrics, count, total
from pipeline.output import OutputColumns
from pipeline.pack import decode_items, packs, prompt_tokens
from tests.core.tiny import STOP_IDS, prompts_of, tiny_model
from tests.core.tiny_folder import write_tiny_model

ONE = Schema("one", (Attribute("A"),))
NO_TEXT = RowFault(RowStatus.NO_TEXT, "empty")


def document(number: int) -> EncodedDocument:
    return EncodedDocument([number], ONE)


def row(number: int, schema: Schema = ONE) -> Row:
    return Row(schema, RowStatus.OK, (Value("A", str(number), ValueStatus.EXTRACTED, "", 0.0, 1),))


def answers(rows: list[Row | RowFault]) -> list[str]:
    return [r.as_dict()["A"] if isinstance(r, Row) else r.status.value for r in rows]  # type: ignore[misc]


class Recorder:
    """A decoder that answers with the document's number, and fails on packs that hold a number of `bad`."""

    def __init__(self, bad: frozenset[int] = frozenset(), most: int = 1000) -> None:
        self.bad, self.most = bad, most
        self.calls: list[list[int]] = []

    def __call__(self, documents: list[EncodedDocument]) -> Extraction:
        numbers = [d.ids[0] for d in documents]
        self.calls.append(numbers)
        if self.bad & set(numbers):
            raise ValueError(f"bad document in {numbers}")
        if len(numbers) > self.most:
            raise MemoryError("too many at once")
        return Extraction([row(n) for n in numbers], Counts(documents=len(numbers), model_calls=1))


def test_packs_are_even_and_cover_everything() -> None:
    assert packs(0, 4) == []
    assert packs(4, 4) == [range(4)]
    assert packs(10, 4) == [range(0, 3), range(3, 6), range(6, 10)]


def test_rows_come_back_in_order_and_faults_are_not_decoded() -> None:
    decode = Recorder()
    rows, counts = decode_items(decode, [document(0), NO_TEXT, document(1), document(2), NO_TEXT], 2)
    assert answers(rows) == ["0", "no_text", "1", "2", "no_text"]
    assert decode.calls == [[0], [1, 2]] and counts.documents == 3 and counts.model_calls == 2


def test_documents_of_one_schema_are_decoded_together_and_rows_stay_in_order() -> None:
    shoes, hats = (Schema(name, ONE.attributes) for name in ("shoes", "hats"))
    schemas = [hats, shoes, ONE, shoes, hats, shoes, hats]
    asked: list[tuple[int, str]] = []

    def decode(documents: Sequence[EncodedDocument]) -> Extraction:
        asked.extend((d.ids[0], d.schema.name) for d in documents)
        return Extraction([row(d.ids[0], d.schema) for d in documents])

    items = [EncodedDocument([n], schema) for n, schema in enumerate(schemas)]
    rows, _ = decode_items(decode, items, 2)
    assert asked == [(0, "hats"), (4, "hats"), (6, "hats"), (1, "shoes"), (3, "shoes"), (5, "shoes"), (2, "one")]
    assert answers(rows) == [str(n) for n in range(7)]
    assert [r.schema for r in rows if isinstance(r, Row)] == schemas


def test_each_shared_prefix_is_computed_once_in_a_unit_whose_prefixes_do_not_fit_the_cache() -> None:
    prompts = prompts_of(3, [9 + n % 5 for n in range(24)], schemas=6)
    decoder = Decoder(tiny_model("llama"), DecodeSettings(max_value_tokens=6, prefix_cache_mib=0), STOP_IDS)

    def decode(documents: Sequence[EncodedDocument]) -> Extraction:
        counts = Counts()
        decoder.decode([prompts[d.ids[0]] for d in documents], counts)
        return Extraction([Row(d.schema, RowStatus.ERROR) for d in documents], counts)

    items = [EncodedDocument([n], prompt.shared.schema) for n, prompt in enumerate(prompts)]
    counts = decode_items(decode, items, 4)[1]
    assert counts.prefix_tokens == 6 * 13 and counts.documents == 24
    assert decode_items(decode, items, 3)[1].prefix_tokens == 6 * 13  # the last one stays in the cache


def test_prompt_tokens_are_those_that_the_decoder_counts(tmp_path: Path) -> None:
    """Work done again is the ones over the others."""
    model = ModelSpec(str(write_tiny_model(tmp_path)), prompting=Prompting.PLAIN)
    decoder = HyperParallelDecoder.from_spec(DecoderSpec(model, DecodeSettings(max_value_tokens=4)))
    two = Schema("two", (Attribute("Brand"), Attribute("Pack size")))
    asked = [Document(text, schema) for text, schema in (("a", ONE), ("a boot", two), ("shoes", ONE), ("a hat", two))]
    encoded = [decoder.encoder.encode(document) for document in asked]
    assert prompt_tokens(decoder, encoded) == decoder.extract_encoded(encoded).counts.prompt_tokens
    assert prompt_tokens(decoder, encoded) > prompt_tokens(None, encoded) == sum(len(e.ids) for e in encoded)


def test_nothing_to_decode_makes_no_call() -> None:
    decode = Recorder()
    assert answers(decode_items(decode, [NO_TEXT, NO_TEXT], 8)[0]) == ["no_text", "no_text"]
    assert decode.calls == []


def test_a_document_that_fails_is_found_and_the_others_are_answered() -> None:
    decode = Recorder(bad=frozenset({5}))
    rows, counts = decode_items(decode, [document(n) for n in range(8)], 8)
    assert answers(rows) == ["0", "1", "2", "3", "4", "error", "6", "7"]
    assert isinstance(rows[5], RowFault) and "bad document in [5]" in rows[5].reason
    assert counts.documents == 7
    assert len(decode.calls) == 7  # 8, 4, 4, 2, 1, 1, 2


def test_a_pack_that_does_not_fit_the_memory_is_halved() -> None:
    decode = Recorder(most=3)
    rows, _ = decode_items(decode, [document(n) for n in range(8)], 8)
    assert answers(rows) == [str(n) for n in range(8)]


def test_a_decoder_that_loses_or_adds_a_row_or_answers_for_another_schema_fails_the_unit() -> None:
    def lossy(documents: list[EncodedDocument]) -> Extraction:
        return Extraction([row(0)] * (len(documents) - 1))

    def generous(documents: list[EncodedDocument]) -> Extraction:
        return Extraction([row(0)] * (len(documents) + 1))

    def foreign(documents: list[EncodedDocument]) -> Extraction:
        return Extraction([row(0, Schema("two", ONE.attributes))] * len(documents))

    for decode in (lossy, generous, foreign):
        with pytest.raises(BlockError, match="the decoder answered"):
            decode_items(decode, [document(0), document(1)], 8)


def test_metrics_add_up_and_survive_json() -> None:
    attributes = {"a": ONE.attributes[0], "b": Attribute("B")}
    columns = OutputColumns(attributes, {"one": ONE}, OutputOptions())
    rows = [row(0), NO_TEXT, row(1), Row(ONE, RowStatus.ERROR, error="x")]
    wide = ONE.select(["A", "B"])
    values = (Value("A", None, ValueStatus.ABSENT, "", 0.0, 1), Value("B", "b", ValueStatus.EXTRACTED, "b", 0.0, 1))
    first = count(rows, Counts(model_calls=3, steps=2), columns)
    second = count([Row(wide, RowStatus.CUT, values)], Counts(model_calls=1), columns)
    first.seconds["decode"] = 0.5
    second.seconds["decode"] = 0.25
    both = total([first, Metrics.from_json(second.to_json())])
    assert dict(both.values) == {"a": 2, "b": 0, "hpd_extra": 1}
    assert (both.rows_in, both.rows_ok, both.rows_error) == (5, 3, 2)
    assert both.as_dict()["rows"] == {"ok": 2, "cut": 1, "no_text": 1, "error": 1}
    assert (both.decode.model_calls, both.decode.steps, both.seconds["decode"]) == (4, 2, 0.75)
    assert Metrics.from_json(both.to_json()).as_dict() == both.as_dict()
    assert first.rows_in == 4  # merging leaves its parts alone
