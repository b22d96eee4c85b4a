"""Grounding through the whole chain: the text travels with the ids, and every decoder says where its values stand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpd_core.baselines import ArDecoder, PerAttributeDecoder
from hpd_core.extractor import HyperParallelDecoder
from hpd_core.model_spec import ModelSpec, Prompting
from hpd_core.normal import LINE_ENDS
from hpd_core.prompt import PromptEncoder, PromptError
from hpd_core.reading import ValueStatus
from hpd_core.schema import Attribute, Document, Schema
from hpd_core.settings import DecodeSettings, Grounding
from hpd_core.spec import DecoderSpec, fingerprint
from hpd_core.untrusted import UntrustedText
from tests.core.tiny_folder import write_tiny_model

SHOES = Schema("shoes", (Attribute("Brand"), Attribute("Color"), Attribute("Kind", values=("Shoe", "Boot"))))
SETTINGS = DecodeSettings(max_value_tokens=20, grounding=Grounding.MARK)
TEXTS = ["Diesel shoe in Grün", "A shoe, \u201egrün\u201c"]
ANSWERS = [{"Brand": "Diesel", "Color": "grün", "Kind": "Boot"}, {"Brand": "Diesel", "Color": "grün"}]


@pytest.fixture(scope="module")
def spec(tmp_path_factory) -> DecoderSpec:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    return DecoderSpec(ModelSpec(str(folder), prompting=Prompting.PLAIN), SETTINGS)


@pytest.mark.parametrize("kind", [HyperParallelDecoder, ArDecoder, PerAttributeDecoder])
def test_every_decoder_says_where_its_values_stand(spec, kind):
    hpd = HyperParallelDecoder.from_spec(spec)
    decoder = kind(hpd.model, hpd.encoder)
    extraction = decoder.extract_encoded([hpd.encoder.encode(Document(t, SHOES)) for t in TEXTS], ANSWERS)
    first, second = ([(v.value, v.status.value, v.spans) for v in row.values] for row in extraction.rows)
    assert [[s.of(row.text) for v in row.values for s in v.spans if s] for row in extraction.rows] == [
        ["Diesel", "Grün"],
        ["grün"],
    ]
    assert [answer[:2] for answer in first] == [("Diesel", "extracted"), ("Grün", "extracted"), ("Boot", "extracted")]
    assert [answer[:2] for answer in second] == [("Diesel", "ungrounded"), ("grün", "extracted"), (None, "absent")]
    assert (extraction.counts.ungrounded, extraction.counts.absent, extraction.counts.invalid) == (1, 1, 0)
    assert [v.raw for v in extraction.rows[0].values] == ["Diesel", "grün", "Boot"]


def test_off_is_as_it_was(spec):
    off = replace(spec, settings=replace(SETTINGS, grounding="off"))
    encoder = PromptEncoder.from_spec(off)
    assert encoder.encode(Document("Diesel", SHOES)).text == ""
    assert "grounding" not in off.as_dict()["settings"]
    assert spec.as_dict()["settings"]["grounding"] == "mark"
    assert fingerprint(off.as_dict()) != fingerprint(spec.as_dict())


@pytest.mark.parametrize("budget, text", [(7, "Grün, "), (3, "Grü"), (4, "Grü"), (5, "Grün"), (300, "Grün, <a>")])
def test_the_text_is_what_the_model_read(spec, budget, text):
    """The tiny vocabulary has one id per byte; 'ü' has two, and a text is never cut inside a character."""
    encoder = PromptEncoder.from_spec(replace(spec, settings=replace(SETTINGS, max_document_tokens=budget)))
    encoded = encoder.encode(Document("Grün, <a>", SHOES))
    assert (encoded.text, encoded.cut) == (text, budget < 10)
    long = encoder.encode(Document("Grün, <a>" + "x" * 5000, SHOES))
    assert long.cut and long.text.startswith(text) and len(long.text.encode()) in (budget, budget + 1)


def test_the_text_is_cut_right_where_a_marker_splits_it(spec):
    encoder = PromptEncoder.from_spec(replace(spec, settings=replace(SETTINGS, max_document_tokens=5)))
    encoder._untrusted = UntrustedText(encoder.tokenizer, ["<a>"])
    assert encoder.encode(Document("ab<a>cdef", SHOES)).text == "ab<a>"


def test_equal_ids_of_different_texts_are_looked_up_each_in_its_own(spec):
    """A tokenizer may normalise: what the ids have in common is not where the values stand."""
    decoder = HyperParallelDecoder.from_spec(spec)
    one = decoder.encoder.encode(Document("tan shoe", SHOES))
    rows = decoder.extract_encoded([one, replace(one, text="Tan  shoe")], [{"Brand": "tan shoe"}] * 2).rows
    assert [row.values[0].value for row in rows] == ["tan shoe", "Tan  shoe"]
    assert decoder.extract_encoded([one, replace(one, text="Tan  shoe"), one]).counts.duplicates == 1


def test_a_document_without_its_text_is_refused(spec):
    decoder = HyperParallelDecoder.from_spec(spec)
    bare = replace(decoder.encoder.encode(Document("tan", SHOES)), text="")
    with pytest.raises(ValueError, match="grounding needs the document's text"):
        decoder.extract_encoded([bare])


def test_the_prompt_says_how_to_write_several_values(spec):
    encoder = PromptEncoder.from_spec(replace(spec, settings=replace(SETTINGS, grounding="off")))
    schema = Schema("s", (Attribute("A"), Attribute("B", many=True), Attribute("C", values=("x", "y"), many=True)))
    prefix = encoder.decode(encoder.prompt(encoder.encode(Document("t", schema))).shared.prefix)
    assert "- A\n- B (separate several values by ';')\n- C (any of: x, y) (separate several values by ';')\n" in prefix


@pytest.mark.parametrize("end", LINE_ENDS)
def test_no_value_of_several_lines_can_be_taught_or_forced(spec, end):
    encoder = PromptEncoder.from_spec(spec)
    for text in (f"tan{end}shoe", f"tan{end}", end):
        with pytest.raises(PromptError, match=r"value .* of 'Brand' has more than one line"):
            encoder.value_ids(Attribute("Brand"), text)


def test_six_statuses():
    assert {s.value for s in ValueStatus} == {"extracted", "absent", "truncated", "ungrounded", "invalid", "unsure"}
