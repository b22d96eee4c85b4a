"""Constrained decoding: equal to the oracle under the same constraint, and copies whatever the model would write."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpd_core.baselines import ArDecoder, PerAttributeDecoder
from hpd_core.constraint import constraints
from hpd_core.decode import Decoder
from hpd_core.extractor import HyperParallelDecoder
from hpd_core.model_spec import ModelSpec, Prompting
from hpd_core.reading import ValueStatus, is_copied
from hpd_core.rows import Counts
from hpd_core.schema import Attribute, Document, Schema
from hpd_core.serial import decode_serial
from hpd_core.settings import DecodeSettings, Layout, SettingsError, Visibility
from hpd_core.spec import DecoderSpec
from hpd_core.vocabulary import Vocabulary
from tests.core.test_exactness import WAYS, assert_equal, settings_of
from tests.core.tiny import CONFIGS, STOP_IDS, VOCABULARY, prompts_of
from tests.core.tiny_folder import write_tiny_model

#: 64 ids: some end a value, with a letter before the end or without, the others write one to three letters or a blank.
LETTERS = [b"a", b"b", b"c", b" ", b"ab", b" a", b"bc", b" b", b"ca", b"n/a", b" n", b"/a", b"; ", b"\xc3", b"\xbc"]
TEXTS = [LETTERS[i % len(LETTERS)] + b"abc"[i // 23 : i // 23 + 1] * (i > 20) for i in range(VOCABULARY)]
TEXTS = [(None, b"\n", b"a\n")[i % 3] if i in STOP_IDS else text for i, text in enumerate(TEXTS)]
WRITTEN = Vocabulary.of(TEXTS, STOP_IDS)
DOCUMENTS = ["ab ca bc", "a", "abc\ncab abc, a; b c ü", "aab aaab abab ba", "cc bbb \u00fcc"]


ASKED = Schema("s", (Attribute("A"), Attribute("B", many=True), Attribute("C", values=("abc", "b a")), Attribute("D")))


def bounded(seed: int, absent: str = "n/a", max_value_tokens: int = 6):
    prompts = prompts_of(seed, [1, 17, 9, 33, 5], schemas=2, max_value_tokens=max_value_tokens)
    made = [constraints(WRITTEN, text, ASKED, absent) for text in DOCUMENTS]
    return [replace(prompt, allowed=allowed) for prompt, allowed in zip(prompts, made, strict=True)]


def decode(model, prompts, settings, forced=None, fast=True):
    return Decoder(model, settings, STOP_IDS, fast=fast, keep_logits=True).decode(prompts, Counts(), forced)


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("layout, visibility", WAYS)
@pytest.mark.parametrize("fast, seed", [(True, 0), (False, 1)])
def test_equals_the_oracle(models, kind, layout, visibility, fast, seed):
    model, settings = models(kind), settings_of(layout, visibility)
    prompts = bounded(seed)[1:4]
    for prompt, slots in zip(prompts, decode(model, prompts, settings, fast=fast), strict=True):
        assert_equal(slots, decode_serial(model, prompt, settings, STOP_IDS))


@pytest.mark.parametrize("absent", ["n/a", ""])
def test_nothing_but_copies_is_written_where_the_model_would_write_otherwise(models, absent):
    settings = settings_of(*WAYS[2], max_value_tokens=9)
    prompts, differ, whole = bounded(2, absent, 9), 0, 0
    free = decode(models("llama"), [replace(p, allowed=()) for p in prompts], settings)
    bound = decode(models("llama"), prompts, settings)
    for text, prompt, slots, unbound in zip(DOCUMENTS, prompts, bound, free, strict=True):
        parts = {text[i:j] for i in range(len(text)) for j in range(i + 1, len(text) + 1)}
        for slot, other, allowed in zip(slots, unbound, prompt.allowed, strict=True):
            assert all(i in allowed(slot.ids[:n]) for n, i in enumerate(slot.ids))
            differ += slot.ids != other.ids
            whole += not slot.truncated
        for slot in (slots[0], slots[3]):
            assert slot.truncated or WRITTEN.write(slot.ids).decode().removeprefix(" ") in parts | {absent}
    assert differ > 10 and whole > 5


def test_companions_do_not_matter(models):
    settings, prompts = settings_of(*WAYS[0]), bounded(3)
    together = decode(models("qwen3"), prompts, replace(settings, tokens_per_step=16, max_slots=5))
    for prompt, slots in zip(prompts, together, strict=True):
        assert_equal(slots, decode(models("qwen3"), [prompt], settings)[0])


def test_forced_ids_are_written_whatever_is_allowed(models):
    settings, prompts = settings_of(*WAYS[2]), bounded(4)[:1]
    forced = [[[1, 2, 3], [4], [6, 7], [8]]]
    assert [list(s.ids) for s in decode(models("llama"), prompts, settings, forced)[0]] == forced[0]


SHOES = Schema(
    "shoes",
    (
        Attribute("Brand"),
        Attribute("Colors", many=True),
        Attribute("Kind", values=("Shoe", "Boot")),
        Attribute("New", type="boolean"),
        Attribute("Weight", type="quantity"),
    ),
)
TITLES = ["Diesel Men’s Grün/Rot 革靴, 1,5 kg", "X", "“A”  b\nsecond line; 5 cm"]


@pytest.fixture(scope="module")
def spec(tmp_path_factory) -> DecoderSpec:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    settings = DecodeSettings(max_value_tokens=40, grounding="enforce")
    return DecoderSpec(ModelSpec(str(folder), prompting=Prompting.PLAIN), settings)


@pytest.mark.parametrize("layout, visibility", WAYS)
def test_the_whole_chain_gives_what_stands_in_the_text(spec, layout, visibility):
    settings = replace(spec.settings, layout=Layout(layout), visibility=Visibility(visibility))
    decoder = HyperParallelDecoder.from_spec(replace(spec, settings=settings))
    for text, row in zip(TITLES, decoder.extract(TITLES, SHOES), strict=True):
        for attribute, value in zip(SHOES, row.values, strict=True):
            if not is_copied(attribute):
                continue
            assert value.status is not ValueStatus.UNGROUNDED
            if value.status is ValueStatus.EXTRACTED:
                several = value.value if attribute.many else (value.value,)
                for one, span in zip(several, value.spans, strict=True):
                    assert attribute.type != "string" or span.of(text) == one
        kind = row.values[2]
        assert kind.status in (ValueStatus.EXTRACTED, ValueStatus.ABSENT, ValueStatus.TRUNCATED)


def test_what_no_constraint_could_keep_is_null(spec):
    decoder = HyperParallelDecoder.from_spec(spec)
    document = decoder.encoder.encode(Document(TITLES[0], SHOES))
    [row] = decoder.extract_encoded([document], [{"Brand": "Nike", "Colors": "Rot; Blau", "Weight": "1,5 kg"}]).rows
    assert [(v.value, v.status.value) for v in row.values[:2]] == [(None, "ungrounded")] * 2
    assert str(row.values[4].value) == "1.5 kg"


@pytest.mark.parametrize("kind", [ArDecoder, PerAttributeDecoder])
def test_the_baselines_refuse_it(spec, kind):
    decoder = HyperParallelDecoder.from_spec(spec)
    with pytest.raises(SettingsError, match="grounding 'enforce': the baselines write freely"):
        kind(decoder.model, decoder.encoder)
