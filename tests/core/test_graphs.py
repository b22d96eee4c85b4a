"""Steps over buffers that stay where they are: equal to the oracle, whatever is padded, shared, replayed or read late.

A CPU records nothing. Everything else is what a GPU runs: buckets, padding, the arena, ids that are fed before the host
has read them. The fixture `recorded` stands for the recording.
"""

from __future__ import annotations

import pytest
import torch

from hpd_core import mask
from hpd_core.rows import Counts
from hpd_core.serial import decode_serial
from tests.core.graphed import check, decoder_of
from tests.core.test_exactness import WAYS, _forced, assert_equal, settings_of, worst
from tests.core.test_trie import assert_same, bounded
from tests.core.tiny import CONFIGS, STOP_IDS, prompts_of, tiny_model

SCHEDULES = [{}, {"tokens_per_step": 16, "max_slots": 9}, {"tokens_per_step": 31, "max_slots": 40, "kv_mib": 1}]


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("layout, visibility", WAYS)
@pytest.mark.parametrize("number, schedule", enumerate(SCHEDULES))
def test_equals_the_oracle(models, recorded, kind, layout, visibility, number, schedule):
    settings = settings_of(layout, visibility, **schedule)
    prompts = prompts_of(number, [1, 17, 33, 5, 12], schemas=1 + number, document_block=(1, 8, 1)[number])
    _, counts = check(models(kind), prompts, settings, times=2)
    assert counts.decode_rows == counts.slot_steps > 0 and recorded.total() > 0


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("layout, visibility", WAYS)
@pytest.mark.parametrize("drafts", [0, 3])
def test_closed_values_and_drafts_equal_the_oracle(models, recorded, kind, layout, visibility, drafts):
    if drafts and visibility == "causal":
        pytest.skip("drafts are for isolated slots")
    settings = settings_of(layout, visibility, max_value_tokens=8, draft_tokens=drafts, max_slots=9)
    for seed in range(2):
        check(models(kind), bounded(seed, (9, 33, 5, 21)), settings, assert_same, times=2)
        assert recorded.total() > 0
        recorded.clear()


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("layout, visibility", WAYS)
def test_taught_values_equal_the_oracle(models, kind, layout, visibility):
    prompts = prompts_of(9, [12, 26, 7], prefix=40)
    for length in (1, 5):
        check(models(kind), prompts, settings_of(layout, visibility), forced=_forced(prompts, 2, length))


def test_a_margin_and_prompts_without_a_prefix_equal_the_oracle(models):
    settings = settings_of(*WAYS[2], absent_margin=3.0)
    check(models("llama"), prompts_of(4, [8, 12, 3], prefix=0), settings)
    mixed = [*prompts_of(4, [8, 12], prefix=0), *prompts_of(5, [9], prefix=20)]
    check(models("gemma3"), mixed, settings_of(*WAYS[0]))


@pytest.mark.parametrize("shown", [True, False], ids=["one key shown", "one key hidden"])
@pytest.mark.parametrize("way", WAYS)
def test_a_wrong_mask_shows(models, monkeypatch, way, shown):
    prompts, settings = prompts_of(10, [14, 9]), settings_of(*way)
    forced = _forced(prompts, 3, length=5)
    expected = decode_serial(models("gemma3"), prompts[0], settings, STOP_IDS, forced[0])
    rule = mask.visible

    def mutated(q, x, layout, visibility, window=None):
        sees = rule(q, x, layout, visibility, window)
        queries, keys = q.expand_queries(), x.expand_keys()
        value = queries.value_index > 0  # those of a step without prefill
        if shown:
            return sees | ((keys.stub == queries.stub + 1) & (keys.value_index == 0) & value)
        own_end = keys.position == queries.position - queries.value_index
        return sees & ~((keys.value_index == 0) & (keys.stub == queries.stub) & own_end & value)

    def difference():
        return worst(decoder_of(models("gemma3"), settings).decode(prompts, Counts(), forced)[0], expected)

    assert difference() < 1e-10
    monkeypatch.setattr(mask, "visible", mutated)
    assert difference() > 1e-3


@pytest.mark.parametrize("sink, reaches", [(1, False), (0, True)], ids=["as it is", "one cell for void and sink"])
def test_padding_of_a_poisoned_row_reaches_nobody(monkeypatch, sink, reaches):
    """Padding rows are copies of the first row, NaN and all: they go where nobody reads."""
    monkeypatch.setattr("hpd_core.buffers.SINK", sink)
    model, settings = tiny_model("llama"), settings_of(*WAYS[0], max_slots=100)
    prompts = prompts_of(13, [30, 9], attributes=5)  # the longer one comes first
    forced = [[list(values) for values in document] for document in _forced(prompts, 5)]
    fed = {i for p in prompts for i in (*p.memory_ids, *p.shared.prefix)} | {i for d in forced for v in d for i in v}
    token = next(i for i in range(64) if i not in fed and i not in STOP_IDS)
    with torch.no_grad():
        model.hf.get_input_embeddings().weight[token] = float("nan")
    alone = decoder_of(model, settings).decode(prompts[1:], Counts(), forced[1:])[0]
    forced[0][0][1] = token
    poisoned, clean = decoder_of(model, settings).decode(prompts, Counts(), forced)
    assert not poisoned[0].is_finite
    assert all(s.is_finite for s in clean) is not reaches
    if not reaches:
        assert_equal(clean, alone)
