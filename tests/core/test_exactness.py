"""The central invariant: answers equal the serial oracle's, token for token, whatever they are packed with."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import pytest
import torch

from hpd_core import mask
from hpd_core.admission import Asked
from hpd_core.attention import StepPlan
from hpd_core.cache import Slab
from hpd_core.decode import Decoder
from hpd_core.layout import DocumentLayout
from hpd_core.rows import Counts
from hpd_core.serial import decode_serial
from hpd_core.settings import DecodeSettings, Layout, Visibility
from tests.core.tiny import CONFIGS, STOP_IDS, VOCABULARY, prompts_of, tiny_model

WAYS = [
    (Layout.GAPS, Visibility.ISOLATED),
    (Layout.GAPS, Visibility.CAUSAL),
    (Layout.BRANCHES, Visibility.ISOLATED),
]


def settings_of(layout, visibility, **others):
    return DecodeSettings(
        layout=layout, visibility=visibility, **{"max_value_tokens": 6, "tokens_per_step": 64, **others}
    )


#: Twins: attention in few products with shared prefixes copied, the same with them read where they lie, the plain one.
TWINS = {"fast": {}, "shared": {"copies": 0}, "plain": {"fast": False}}


def decode(model, prompts, settings, *, forced=None, twin="fast", graphs=False, stop_ids=STOP_IDS):
    decoder = Decoder(model, settings, stop_ids, keep_logits=True, graphs=graphs, **TWINS[twin])
    return decoder.decode(prompts, Counts(), forced)


def worst(got, expected):
    """Largest difference of logits over all slots of one document, relative to max(1, largest logit)."""
    difference = max(float((a.logits - b.logits).abs().max()) for a, b in zip(got, expected, strict=True))
    return difference / max(1.0, max(float(b.logits.abs().max()) for b in expected))


def assert_equal(got, expected, tolerance=1e-10):
    assert [s.ids for s in got] == [s.ids for s in expected]
    assert [s.truncated for s in got] == [s.truncated for s in expected]
    assert worst(got, expected) < tolerance
    for a, b in zip(got, expected, strict=True):
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-9)


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("layout, visibility", WAYS)
@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("seed", [0, 1])
def test_equals_the_oracle(models, kind, layout, visibility, twin, seed):
    model, settings = models(kind), settings_of(layout, visibility)
    prompts = prompts_of(seed, [1, 17, 9, 33, 5], schemas=2)
    got = decode(model, prompts, settings, twin=twin)
    for prompt, slots in zip(prompts, got, strict=True):
        assert_equal(slots, decode_serial(model, prompt, settings, STOP_IDS))


def test_the_seeds_hold_values_that_end_at_once_and_values_that_never_end(models):
    lengths = set()
    for seed in (0, 1):
        for slots in decode(models("llama"), prompts_of(seed, [1, 17, 9, 33, 5], schemas=2), settings_of(*WAYS[0])):
            lengths |= {(len(s.ids), s.truncated) for s in slots}
    assert (1, False) in lengths and (6, True) in lengths


@pytest.mark.parametrize("layout, visibility", WAYS)
@pytest.mark.parametrize("length", [97, 130, 191])
@pytest.mark.parametrize("twin", ["fast", "shared"])
def test_awkward_lengths_in_chunks(models, layout, visibility, length, twin):
    """Documents longer than a step are prefilled in chunks, equal to whole."""
    settings = settings_of(layout, visibility, tokens_per_step=31)
    prompts = prompts_of(length, [length, 3], attributes=3, prefix=97)
    expected = decode_serial(models("gemma3"), prompts[0], settings, STOP_IDS)
    assert_equal(decode(models("gemma3"), prompts, settings, twin=twin)[0], expected)


@pytest.mark.parametrize("layout, visibility", WAYS)
@pytest.mark.parametrize("attributes, documents, k_max", [(1, 1, 6), (1, 3, 1), (7, 1, 2), (12, 2, 9)])
def test_awkward_counts(models, layout, visibility, attributes, documents, k_max):
    settings = settings_of(layout, visibility, max_value_tokens=k_max)
    prompts = prompts_of(3, [11] * documents, attributes=attributes, max_value_tokens=k_max)
    got = decode(models("qwen3"), prompts, settings)
    for prompt, slots in zip(prompts, got, strict=True):
        assert_equal(slots, decode_serial(models("qwen3"), prompt, settings, STOP_IDS))


def test_no_prefix_at_all(models):
    settings = settings_of(*WAYS[2])
    prompts = prompts_of(4, [8, 12], prefix=0)
    for prompt, slots in zip(prompts, decode(models("llama"), prompts, settings), strict=True):
        assert_equal(slots, decode_serial(models("llama"), prompt, settings, STOP_IDS))


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("layout, visibility", WAYS)
def test_companions_order_and_schedule_do_not_matter(models, kind, layout, visibility):
    model = models(kind)
    prompts = prompts_of(5, [40, 3, 22, 14, 14, 7, 31, 2], schemas=3)
    alone = [decode(model, [p], settings_of(layout, visibility))[0] for p in prompts]
    for tokens_per_step, max_slots, seed in [(8, 4, 0), (64, 9, 1), (4096, 4096, 2)]:
        settings = settings_of(layout, visibility, tokens_per_step=tokens_per_step, max_slots=max_slots)
        order = random.Random(seed).sample(range(len(prompts)), len(prompts))
        got = decode(model, [prompts[n] for n in order], settings)
        for n, slots in zip(order, got, strict=True):
            assert_equal(slots, alone[n])


def test_a_second_call_reuses_the_prefix_and_changes_nothing(models):
    decoder = Decoder(models("llama"), settings_of(*WAYS[0]), STOP_IDS, keep_logits=True)
    prompts = prompts_of(6, [9, 4])
    first, second = Counts(), Counts()
    before, after = decoder.decode(prompts, first), decoder.decode(prompts, second)
    for a, b in zip(before, after, strict=True):
        assert_equal(a, b)
    assert (first.prefix_tokens, second.prefix_tokens) == (13, 0)
    assert second.model_calls == first.model_calls - 1


def test_an_evicted_prefix_is_computed_again_and_changes_nothing(models):
    prompts = prompts_of(7, [9, 4, 6, 8], schemas=4)
    roomy = decode(models("llama"), prompts, settings_of(*WAYS[2]))
    decoder = Decoder(models("llama"), settings_of(*WAYS[2], prefix_cache_mib=0), STOP_IDS, keep_logits=True)
    for _ in range(2):
        counts = Counts()
        for a, b in zip(roomy, decoder.decode(prompts, counts), strict=True):
            assert_equal(a, b)
        assert (counts.prefix_tokens, counts.cached_tokens) == (4 * 13, 0)  # the last one is kept, and not the first


def test_a_poisoned_document_does_not_reach_the_next_one(models):
    """NaN in the KV of one document must not stay in a block that another document gets."""
    clean, poisoned = prompts_of(13, [9, 30])
    model, settings = tiny_model("llama"), settings_of(*WAYS[0])
    token = next(i for i in poisoned.document if i not in {*clean.memory_ids, *clean.shared.prefix})
    with torch.no_grad():
        model.hf.get_input_embeddings().weight[token] = float("nan")
    decoder = Decoder(model, settings, frozenset({*STOP_IDS, token}), keep_logits=True)
    (alone,) = decoder.decode([clean], Counts())
    for prompts in ([poisoned, clean], [poisoned], [clean, poisoned, clean]):
        for prompt, slots in zip(prompts, decoder.decode(prompts, Counts()), strict=True):
            if prompt is poisoned:
                assert not any(s.is_finite for s in slots)
            else:
                assert_equal(slots, alone)


def test_idle_slabs_of_other_widths_are_let_go(models):
    decoder = Decoder(models("llama"), settings_of(*WAYS[2]), STOP_IDS)
    for length in (500, 10, 1000, 20):
        decoder.decode(prompts_of(length, [length]), Counts())
    assert len(decoder._pool.slabs) == 1


def test_a_step_that_fails_leaves_no_block_taken(models, monkeypatch):
    decoder = Decoder(models("llama"), settings_of(*WAYS[2]), STOP_IDS, keep_logits=True)
    prompts = prompts_of(14, [9, 5])
    expected = decoder.decode(prompts, Counts())
    calls = iter(range(100))

    def failing(*arguments, step=decoder.model.step):
        if next(calls) == 1:
            raise MemoryError("out of memory")
        return step(*arguments)

    monkeypatch.setattr(decoder.model, "step", failing)
    with pytest.raises(MemoryError):
        decoder.decode(prompts, Counts())
    assert not decoder._pool.slabs
    for a, b in zip(decoder.decode(prompts, Counts()), expected, strict=True):
        assert_equal(a, b)


def _forced(prompts, seed, length=4):
    rng = random.Random(seed)
    body = [i for i in range(VOCABULARY) if i not in STOP_IDS]
    return [[[rng.choice(body) for _ in range(length)] for _ in p.shared.stubs] for p in prompts]


@pytest.mark.parametrize("layout, visibility", WAYS)
def test_what_one_value_does_to_another(models, layout, visibility):
    """Teacher-forced: changing value 1 leaves every other slot's logits alone under `isolated`; under `causal` it
    reaches exactly the later slots, and there no step before the change."""
    prompts, settings = prompts_of(8, [15], attributes=3), settings_of(layout, visibility)
    forced = _forced(prompts, 1)
    changed = [[list(v) for v in d] for d in forced]
    changed[0][1][1] = next(i for i in range(VOCABULARY) if i not in STOP_IDS and i != forced[0][1][1])
    before = decode(models("llama"), prompts, settings, forced=forced)[0]
    after = decode(models("llama"), prompts, settings, forced=changed)[0]
    moved = [
        [float((a.logits[k] - b.logits[k]).abs().max()) > 1e-6 for k in range(4)]
        for a, b in zip(before, after, strict=True)
    ]
    # the changed token is value token 2: it is fed after logits 0 and 1 of its own slot
    later = [False, False, True, True] if visibility is Visibility.CAUSAL else [False] * 4
    assert moved == [[False] * 4, [False, False, True, True], later]


@pytest.mark.parametrize("kind, way, twin", list(product(CONFIGS, WAYS, TWINS)))
def test_forced_logits_equal_the_oracle(models, kind, way, twin):
    prompts, settings = prompts_of(9, [12, 26]), settings_of(*way)
    forced = _forced(prompts, 2, length=6)
    got = decode(models(kind), prompts, settings, forced=forced, twin=twin)
    for n, prompt in enumerate(prompts):
        expected = decode_serial(models(kind), prompt, settings, STOP_IDS, forced[n])
        assert_equal(got[n], expected)


@pytest.mark.parametrize("kind, way, twin", list(product(CONFIGS, WAYS, TWINS)))
class TestMutations:
    """A wrong mask or position must show: by a hundred times the tolerance (1e-5) of the protocol."""

    @pytest.fixture
    def difference(self, models, kind, way, twin):
        prompts, settings = prompts_of(10, [14, 9]), settings_of(*way)
        forced = _forced(prompts, 3, length=5)
        expected = decode_serial(models(kind), prompts[0], settings, STOP_IDS, forced[0])

        def measure():
            return worst(decode(models(kind), prompts, settings, forced=forced, twin=twin)[0], expected)

        assert measure() < 1e-10
        return measure

    @pytest.mark.parametrize("shown", [True, False], ids=["one key shown", "one key hidden"])
    def test_one_key(self, difference, monkeypatch, shown):
        rule = mask.visible

        def mutated(q, x, layout, visibility, window=None):
            sees = rule(q, x, layout, visibility, window)
            queries, keys = q.expand_queries(), x.expand_keys()
            if shown:  # key tokens of the next stub
                return sees | ((keys.stub == queries.stub + 1) & (keys.value_index == 0) & (queries.stub >= 0))
            own_end = keys.position == queries.position - queries.value_index
            return sees & ~((keys.value_index == 0) & (keys.stub == queries.stub) & own_end & (queries.value_index > 0))

        monkeypatch.setattr(mask, "visible", mutated)
        assert difference() > 1e-3

    def test_one_position(self, difference, monkeypatch):
        original = DocumentLayout.value_position
        monkeypatch.setattr(DocumentLayout, "value_position", lambda self, slot, k: original(self, slot, k) + (k == 2))
        assert difference() > 1e-3


def test_a_window_that_forgets_the_prefix_shows(models, monkeypatch):
    """A shared prefix that is read where it lies is masked apart from the rest: leaving that out must show."""
    prompts, settings = prompts_of(10, [14, 9]), settings_of(*WAYS[0])
    forced = _forced(prompts, 3, length=5)
    expected = decode_serial(models("gemma3"), prompts[0], settings, STOP_IDS, forced[0])
    monkeypatch.setattr(StepPlan, "prefix_bias", lambda *_: None)
    assert worst(decode(models("gemma3"), prompts, settings, forced=forced, twin="shared")[0], expected) > 1e-3


@pytest.mark.parametrize("copies", [12, 13])
def test_long_prefixes_are_read_where_they_lie_and_short_ones_copied(models, copies, monkeypatch):
    """Prefixes of 13 and of 0 tokens."""
    copied = []
    copy = Slab.copy
    monkeypatch.setattr(Slab, "copy", lambda slab, block, prefix: copied.append(prefix) or copy(slab, block, prefix))
    prompts = [*prompts_of(12, [30, 41, 50], schemas=2), *prompts_of(13, [9], prefix=0)]
    settings = settings_of(*WAYS[2], max_slots=8)
    got = Decoder(models("llama"), settings, STOP_IDS, keep_logits=True, copies=copies).decode(prompts, Counts())
    for prompt, slots in zip(prompts, got, strict=True):
        assert_equal(slots, decode_serial(models("llama"), prompt, settings, STOP_IDS))
    assert len(copied) == (3 if copies == 13 else 0)


@pytest.mark.parametrize(("copies", "beside_others"), [(12, 1), (13, 0)])
def test_what_is_copied_counts_under_the_bound(models, monkeypatch, copies, beside_others):
    """60 cells a document, and 73 with its prefix of 13, in blocks of 64s, where there is room for two of these."""
    (shared,) = {p.shared for p in prompts_of(12, [1])}
    prompts = prompts_of(12, [40 - sum(map(len, shared.stubs))] * 4)
    assert {Asked.of(p, copies).cells for p in prompts} == {73 if copies == 13 else 60}
    beside, admit = [], Decoder._admit
    monkeypatch.setattr(Decoder, "_admit", lambda self, call: beside.append(len(call.active)) or admit(self, call))
    decoder = Decoder(models("llama"), settings_of(*WAYS[2]), STOP_IDS, keep_logits=True, copies=copies)
    decoder._begin(128)
    got = decoder.decode(prompts, Counts())
    assert max(beside) == beside_others
    for prompt, slots in zip(prompts, got, strict=True):
        assert_equal(slots, decode_serial(models("llama"), prompt, decoder.settings, STOP_IDS))


def test_the_layouts_differ(models):
    prompts = prompts_of(10, [14, 9])
    forced = _forced(prompts, 3, length=5)
    gaps, branches = (
        decode(models("llama"), prompts, settings_of(layout, Visibility.ISOLATED), forced=forced)[0]
        for layout in Layout
    )
    assert worst(gaps[1:], branches[1:]) > 1e-3


@pytest.mark.parametrize("kind", CONFIGS)
def test_one_document_and_one_attribute_equal_generate(models, kind):
    """With nothing to parallelise, Hyper-Parallel Decoding is transformers' own greedy `generate`."""
    model, settings = models(kind), settings_of(*WAYS[0], max_value_tokens=9)
    for seed in range(4):
        (prompt,) = prompts_of(seed, [21], attributes=1, max_value_tokens=9)
        ids = [*prompt.shared.prefix, *prompt.memory_ids]
        with model.native_attention("sdpa") as hf, torch.inference_mode():
            out = hf.generate(
                torch.tensor([ids]), do_sample=False, max_new_tokens=9, eos_token_id=sorted(STOP_IDS), pad_token_id=2
            )
        (slot,) = decode(model, [prompt], settings)[0]
        assert list(slot.ids) == out[0, len(ids) :].tolist()


def test_counts_add_up(models):
    prompts, counts = prompts_of(11, [10, 20, 30]), Counts()
    slots = [s for d in Decoder(models("llama"), settings_of(*WAYS[2]), STOP_IDS).decode(prompts, counts) for s in d]
    assert counts.documents == 3 and counts.slots == 12
    assert counts.prompt_tokens == sum(len(p.memory_ids) for p in prompts)
    assert counts.generated_tokens == sum(len(s.ids) for s in slots)
    # the last token of a slot, terminator or K_max-th, is never fed
    assert counts.decode_rows == counts.slot_steps == sum(len(s.ids) - 1 for s in slots)
    assert counts.prefix_tokens == 13 and counts.cached_tokens == 26


def test_not_finite_logits_end_a_slot(models):
    model = tiny_model("llama")
    with torch.no_grad():
        model.hf.model.norm.weight.fill_(float("nan"))
    slots = decode(model, prompts_of(12, [6]), settings_of(*WAYS[2]))[0]
    assert all(len(s.ids) == 1 and not s.is_finite for s in slots)


def test_settings_that_contradict_are_refused():
    with pytest.raises(ValueError, match="'causal' needs layout 'gaps'"):
        DecodeSettings(layout="branches", visibility="causal")
    with pytest.raises(ValueError, match="max_value_tokens is 0"):
        replace(DecodeSettings(), max_value_tokens=0)
