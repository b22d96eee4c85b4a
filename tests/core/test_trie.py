"""Closed values: only what is listed is written, equal to the oracle, and what is forced costs no forward pass."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from hpd_core import decode as decoding
from hpd_core.baselines import ArDecoder
from hpd_core.confidence import Score, identity
from hpd_core.decode import Decoder
from hpd_core.extractor import HyperParallelDecoder
from hpd_core.model_spec import ModelSpec, Prompting
from hpd_core.prompt import PromptEncoder, PromptError
from hpd_core.reading import ValueStatus, read
from hpd_core.rows import Counts
from hpd_core.schema import Attribute, Document, Schema
from hpd_core.serial import decode_serial
from hpd_core.settings import DecodeSettings, Grounding, SettingsError
from hpd_core.slots import SlotTokens
from hpd_core.spec import DecoderSpec
from hpd_core.trie import LongValue, Node, TokenTrie, insert, spellings
from tests.core.test_exactness import WAYS, assert_equal, settings_of
from tests.core.tiny import CONFIGS, STOP_IDS, VOCABULARY, prompts_of
from tests.core.tiny_folder import write_tiny_model

BODY = [i for i in range(VOCABULARY) if i not in STOP_IDS]
END = 5  # the terminator of the tries here; any other stop id may stand for it where there is a choice


def trie_of(*values: tuple[int, ...]) -> TokenTrie:
    root = Node()
    for ids in values:
        insert(root, (*ids, END), Node())
    return TokenTrie(root, STOP_IDS)


def random_trie(rng: random.Random) -> TokenTrie:
    """Values of up to three words of ids, which share beginnings: choices, between them ids that are forced."""
    words = [tuple(rng.choice(BODY) for _ in range(rng.randint(1, 3))) for _ in range(4)]
    values = (sum(rng.choices(words, k=rng.randint(1, 3)), ()) for _ in range(12))
    return trie_of(rng.choice([(), words[0]]), *values)


def bounded(seed: int, lengths=(9, 33, 5), max_value_tokens: int = 8):
    """Slots 0 to 2 are closed (values of 9 ids do not fit and are cut), slot 3 is free."""
    rng = random.Random(seed)
    prompts = prompts_of(seed, lengths, schemas=2, max_value_tokens=max_value_tokens)
    return [replace(p, allowed=(*(random_trie(rng) for _ in range(3)), None)) for p in prompts]


def decode(model, prompts, settings, *, fast=True, forced=None):
    counts = Counts()
    return Decoder(model, settings, STOP_IDS, fast=fast, keep_logits=True).decode(prompts, counts, forced), counts


def assert_same(got: list[SlotTokens], expected: list[SlotTokens]) -> None:
    assert [s.ids for s in got] == [s.ids for s in expected]
    assert [s.forced for s in got] == [s.forced for s in expected]
    chosen = [n for n, s in enumerate(expected) if s.logits is not None]
    assert [n for n, s in enumerate(got) if s.logits is not None] == chosen
    assert_equal([got[n] for n in chosen], [expected[n] for n in chosen])
    assert [s.logprobs for n, s in enumerate(got) if n not in chosen] == [
        s.logprobs for n, s in enumerate(expected) if n not in chosen
    ]


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("layout, visibility", WAYS)
@pytest.mark.parametrize("fast, seed", [(True, 0), (False, 1), (True, 2)])
def test_equals_the_oracle_which_skips_nothing(models, kind, layout, visibility, fast, seed):
    model, settings = models(kind), settings_of(layout, visibility, max_value_tokens=8)
    prompts = bounded(seed)
    got, counts = decode(model, prompts, settings, fast=fast)
    for prompt, slots in zip(prompts, got, strict=True):
        assert_same(slots, decode_serial(model, prompt, settings, STOP_IDS))
    slots = [s for d in got for s in d]
    assert counts.forced_tokens == sum(s.forced for s in slots) > 0
    assert counts.generated_tokens == sum(len(s.ids) for s in slots)


def test_forced_ids_are_fed_together_and_only_where_slots_need_not_stay_in_step(models, monkeypatch):
    """A choice, three forced ids, a choice, the end: two rows of logits, and one step that feeds four ids."""
    b, c, d = BODY[:3]
    closed = trie_of(*((first, b, c, d, last) for first in BODY[3:6] for last in BODY[6:8]))
    prompts = [replace(p, allowed=(closed,)) for p in prompts_of(0, [8], attributes=1, max_value_tokens=8)]
    for way in WAYS:
        settings = settings_of(*way, max_value_tokens=8)
        widest: list[int] = []
        make = decoding.make_step

        def watched(feeds, *arguments, make=make, widest=widest, **others):
            widest += [len(feed.ids) for feed in feeds if not feed.is_prefill]
            return make(feeds, *arguments, **others)

        with monkeypatch.context() as patch:
            patch.setattr(decoding, "make_step", watched)
            (slots,), counts = decode(models("llama"), prompts, settings, forced=None)
        assert counts.forced_tokens == slots[0].forced
        assert (len(slots[0].ids), slots[0].forced) == (6, 4)
        if way == WAYS[1]:
            assert (widest, counts.steps, counts.decode_rows, counts.slot_steps) == ([1] * 5, 5, 5, 5)
        else:
            assert (widest, counts.steps, counts.decode_rows, counts.slot_steps) == ([4], 1, 4, 1)


@pytest.mark.parametrize("layout, visibility", [WAYS[0], WAYS[2]])
@pytest.mark.parametrize("absent", [(), (BODY[3], BODY[4])], ids=["bare terminator", "a word"])
def test_absent_costs_nothing(models, layout, visibility, absent):
    """Where prefill's logits choose it no row is fed: a bare terminator always, a word where nothing else goes on."""
    prompts = prompts_of(3, [8, 12])
    prompts = [replace(p, allowed=(trie_of(absent),) * 4) for p in prompts]
    slots, counts = decode(models("llama"), prompts, settings_of(layout, visibility))
    assert all(s.ids == (*absent, END) for d in slots for s in d)
    assert (counts.decode_rows, counts.steps, counts.model_calls) == (0, 0, 2)  # the prefix and one of prefill
    assert all(math.isnan(s.logprob) and s.is_finite for d in slots for s in d)  # nothing was chosen


def test_a_bare_terminator_that_is_chosen_freely_feeds_no_row(models):
    settings, prompts = settings_of(*WAYS[2]), prompts_of(3, [8, 12])
    every = frozenset(range(VOCABULARY))
    counts = Counts()
    Decoder(models("llama"), settings, every).decode(prompts, counts)
    assert (counts.decode_rows, counts.steps, counts.generated_tokens) == (0, 0, 8)


def test_companions_do_not_matter(models):
    settings, prompts = settings_of(*WAYS[0], max_value_tokens=8), bounded(4)
    together, _ = decode(models("qwen3"), prompts, replace(settings, tokens_per_step=7, max_slots=5))
    for prompt, slots in zip(prompts, together, strict=True):
        assert_same(slots, decode(models("qwen3"), [prompt], settings)[0][0])


def test_taught_ids_are_written_whatever_is_listed(models):
    prompts = bounded(5, lengths=(9,))
    forced = [[[1, 2, 3], [4], [6, 7], [8]]]
    got, counts = decode(models("llama"), prompts, settings_of(*WAYS[2]), forced=forced)
    assert [list(s.ids) for s in got[0]] == forced[0] and counts.forced_tokens == 0
    assert all(len(s.logits) == len(s.ids) for s in got[0])


def test_any_terminator_may_stand_for_the_listed_one_where_there_is_a_choice():
    trie = trie_of((1, 2), (1, 2, 3), ())
    assert trie([]) == tuple(sorted({1, *STOP_IDS})) and trie([1]) == (2,)
    assert trie([1, 2]) == tuple(sorted({3, *STOP_IDS})) and trie([1, 2, 3]) == (END,)
    assert trie([9]) == tuple(sorted(STOP_IDS))


KINDS = Attribute("Kind", values=("Shoe", "Shoe (kids)", "boot", "US"))
MANY = Attribute("Colors", values=("Red", "Dark red", "blue"), many=True)
SIZES = Attribute("Size", values=("38", "38.5"), type="number")
CLOSED = Schema("shoes", (KINDS, MANY, SIZES, Attribute("Brand")))


@pytest.fixture(scope="module")
def spec(tmp_path_factory) -> DecoderSpec:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    settings = DecodeSettings(max_value_tokens=30, closed_values="listed")
    return DecoderSpec(ModelSpec(str(folder), prompting=Prompting.PLAIN), settings)


@pytest.mark.parametrize("attribute", [KINDS, MANY, SIZES])
@pytest.mark.parametrize("absent", ["n/a", ""])
def test_whatever_is_written_is_read_as_listed_or_absent(spec, attribute, absent):
    encoder = PromptEncoder.from_spec(replace(spec, template=replace(spec.template, absent=absent)))
    allowed = encoder.prompt(encoder.encode(Document("x", Schema("s", (attribute,))))).allowed[0]
    rng, seen = random.Random(0), set()
    for _ in range(300):
        ids: list[int] = []
        while not ids or ids[-1] not in encoder.stop_ids:
            ids.append(rng.choice(allowed(ids)))
        reading = read(attribute, encoder.value_text(ids))
        assert reading.status in (ValueStatus.EXTRACTED, ValueStatus.ABSENT)
        seen |= set(reading.value if attribute.many and reading.value else (reading.value,))
    listed = {read(replace(attribute, many=False), v).value for v in attribute.values}
    assert seen == listed | {None}
    for text in (*attribute.values, *(["Red; blue; Dark red"] if attribute.many else []), absent):
        ids = encoder.value_ids(attribute, text)
        assert all(i in allowed(ids[:n]) for n, i in enumerate(ids)) and ids[-1] in encoder.stop_ids


def test_spellings_are_read_as_the_value_that_they_are_of():
    assert spellings(KINDS, "US") == ["US", "us", "Us"]
    assert spellings(Attribute("A", values=("US", "us")), "US") == ["US", "Us"]
    assert spellings(SIZES, "38.5") == ["38.5"]


def test_the_whole_chain(spec):
    for settings in (spec.settings, replace(spec.settings, grounding="enforce")):
        decoder = HyperParallelDecoder.from_spec(replace(spec, settings=settings))
        rows = decoder.extract(["Red boots US 38", "a Shoe"], CLOSED)
        values = [v for row in rows for v in row.values[:3]]
        assert {v.status for v in values} <= {ValueStatus.EXTRACTED, ValueStatus.ABSENT, ValueStatus.TRUNCATED}
        assert any(v.forced_tokens for v in values) and all(row.values[3].forced_tokens == 0 for row in rows)
        for v in values:
            assert v.chosen_tokens + v.forced_tokens == v.tokens and 0 < v.confidence < 1


def test_forced_tokens_do_not_count_for_confidence():
    tokens = SlotTokens((3, 7, 8, END), (math.log(0.25), 0.0, math.log(0.5), 0.0), truncated=False, forced=2)
    assert math.exp(tokens.logprob) == pytest.approx(math.sqrt(0.125))
    assert Score.SUM.of(tokens.logprob, 2) == pytest.approx(math.log(0.125 / 0.875))


def test_a_value_that_could_never_be_written_whole_is_refused_before_decoding(spec):
    long = Schema("s", (Attribute("A", values=("x" * 28,)), Attribute("B", values=("x" * 29,))))
    encoder = PromptEncoder.from_spec(spec)
    encoder.encode(Document("x", long.select(["A"])))
    assert encoder.long_values(long) == [LongValue("B", "x" * 29, 31)]
    with pytest.raises(PromptError, match=r"closed value 'x+' of 'B' takes 31 tokens.*max_value_tokens is 30"):
        encoder.encode(Document("x", long))
    free = replace(spec, settings=replace(spec.settings, closed_values="free"))
    PromptEncoder.from_spec(free).encode(Document("x", long))


def test_it_is_part_of_fingerprint_and_calibration_and_old_ones_stay(spec):
    free = replace(spec, settings=replace(spec.settings, closed_values="free"))
    assert "closed_values" not in free.as_dict()["settings"]
    assert spec.as_dict()["settings"]["closed_values"] == "listed"
    assert identity(spec.as_dict())["closed_values"] == "listed"
    assert identity(free.as_dict())["closed_values"] is None  # as `get` of a calibration that says nothing of it
    with pytest.raises(ValueError, match="'always' is not a valid ClosedValues"):
        DecodeSettings(closed_values="always")


def test_the_baselines_refuse_it(spec):
    decoder = HyperParallelDecoder.from_spec(spec)
    assert spec.settings.grounding is Grounding.OFF
    with pytest.raises(SettingsError, match="closed_values 'listed': the baselines write freely"):
        ArDecoder(decoder.model, decoder.encoder)
