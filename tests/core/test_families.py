"""Every family of models, every layout and visibility, against the serial oracle; the refused ones by message."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

from hpd_core import mask, supported
from hpd_core.layout import DocumentLayout
from hpd_core.model import Model, UnsupportedModelError, _is_windowed, refuse
from hpd_core.model_spec import ModelSpec
from hpd_core.selfcheck import DensePlan
from hpd_core.serial import decode_serial
from hpd_core.settings import SettingsError, Visibility
from hpd_core.spec import DecoderSpec
from tests.core.families import FAMILIES, REFUSED, WINDOW, Family
from tests.core.test_exactness import TWINS, WAYS, decode, settings_of, worst
from tests.core.tiny import STOP_IDS, prompts_of

K_MAX = 5
_NEVER_STOP: frozenset[int] = frozenset()
#: Experts, values of another width, sinks, soft caps, longrope.
IN_FLOAT32 = (
    "Mixtral",
    "Qwen3-MoE",
    "DeepSeek V3 (latent attention)",
    "gpt-oss",
    "Gemma 2",
    "RoPE scaling: longrope (Phi-3-128k)",
    "RoPE scaling: longrope, `long_context: true`",
)
assert {f.name for f in FAMILIES} >= {*IN_FLOAT32}


@pytest.fixture(scope="module")
def model_of():
    made: dict[Family, Model] = {}

    def get(family):
        if family.name not in made:
            made.clear()  # families come one after another
            made[family.name] = family.model()
        return made[family.name]

    return get


def _ids(family):
    return re.sub(r"[^A-Za-z0-9.]+", "-", family.name).strip("-")


@pytest.mark.parametrize("family", FAMILIES, ids=_ids)
@pytest.mark.parametrize("layout, visibility", WAYS)
def test_a_family_equals_the_oracle_and_a_mistake_would_show(model_of, monkeypatch, family, layout, visibility):
    model, settings = model_of(family), settings_of(layout, visibility, max_value_tokens=K_MAX, tokens_per_step=24)
    prompts = prompts_of(1, [19, 6], schemas=2, attributes=3, max_value_tokens=K_MAX)
    oracle = [decode_serial(model, p, settings, _NEVER_STOP) for p in prompts]
    forced = [[slot.ids for slot in slots] for slots in oracle]
    assert all(len(ids) == K_MAX for document in forced for ids in document)

    for path in (*({"twin": twin} for twin in TWINS), {"graphs": True}):
        got = decode(model, prompts, settings, stop_ids=_NEVER_STOP, **path)
        for slots, truth in zip(got, oracle, strict=True):
            assert [s.ids for s in slots] == [s.ids for s in truth]
            assert worst(slots, truth) < family.tolerance
    if visibility is Visibility.ISOLATED:  # what others have written does not matter: ended early is the same, cut
        for slots, ids in zip(decode(model, prompts, settings), forced, strict=True):
            assert [s.ids for s in slots] == [_until_stop(i) for i in ids]

    def difference():
        got = decode(model, prompts, settings, forced=forced, stop_ids=_NEVER_STOP)
        return max(worst(slots, truth) for slots, truth in zip(got, oracle, strict=True))

    rule, place = mask.visible, DocumentLayout.value_position
    least = max(1e-3, 100 * family.tolerance)
    with monkeypatch.context() as patch:
        patch.setattr(DocumentLayout, "value_position", lambda self, slot, k: place(self, slot, k) + (k == 2))
        assert difference() > least, "a shifted position does not show"
    with monkeypatch.context() as patch:
        patch.setattr(mask, "visible", lambda q, x, *rest: rule(q, x, *rest) | _next_stub(q, x))
        assert difference() > least, "a key token of another slot does not show"
    if family.facts.get("sliding_window"):
        with monkeypatch.context() as patch:
            patch.setattr(mask, "visible", lambda q, x, a, b, window=None: rule(q, x, a, b, window and window + 1))
            assert difference() > least, "a window one longer does not show"


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.name in IN_FLOAT32], ids=_ids)
@pytest.mark.parametrize("layout, visibility", WAYS)
def test_in_float32_what_is_unlike_llama_equals_the_oracle_too(family, layout, visibility):
    """By the protocol of real models: teacher-forced logits within 1e-5 max(1, max|logit|)."""
    model, settings = family.model(torch.float32), settings_of(layout, visibility, max_value_tokens=K_MAX)
    prompts = prompts_of(1, [19, 6], schemas=2, attributes=3, max_value_tokens=K_MAX)
    oracle = [decode_serial(model, p, settings, _NEVER_STOP) for p in prompts]
    forced = [[slot.ids for slot in slots] for slots in oracle]
    for path in (*({"twin": twin} for twin in TWINS), {"graphs": True}):
        got = decode(model, prompts, settings, forced=forced, stop_ids=_NEVER_STOP, **path)
        assert max(worst(slots, truth) for slots, truth in zip(got, oracle, strict=True)) <= 1e-5


def _until_stop(ids):
    end = next((k + 1 for k, i in enumerate(ids) if i in STOP_IDS), len(ids))
    return ids[:end]


def _next_stub(q, x):
    queries, keys = q.expand_queries(), x.expand_keys()
    return (keys.stub == queries.stub + 1) & (keys.value_index == 0) & (queries.stub >= 0)


@pytest.mark.parametrize("family", FAMILIES, ids=_ids)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_family_passes_the_check_at_load(family, dtype):
    family.model(dtype).check()


@pytest.mark.parametrize("refused", REFUSED, ids=_ids)
def test_refused_with_the_reason(refused):
    config = refused.configuration()
    if refused.loaded:
        model = Model(AutoModelForCausalLM.from_config(config, dtype=torch.float32))
        with pytest.raises(UnsupportedModelError, match=re.escape(refused.reason)):
            model.check()
    else:
        with pytest.raises(UnsupportedModelError, match=re.escape(refused.reason)):
            refuse(config)  # before any weight is loaded


def test_what_a_model_is_refused_for_after_its_weights_is_found_at_load(tmp_path):
    """As `loaded` says of some: `Model.load` runs the check."""
    torch.manual_seed(0)
    refused = next(r for r in REFUSED if r.name == "DiffLlama")
    AutoModelForCausalLM.from_config(refused.configuration()).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match=refused.reason):
        Model.load(ModelSpec(str(tmp_path)))


LONGROPE = next(f for f in FAMILIES if f.long_context)
GEMMA3 = next(f for f in FAMILIES if f.name == "Gemma 3")


def test_longrope_uses_one_set_of_factors_for_every_document():
    """transformers takes the long ones for a whole forward pass as soon as one position needs them."""
    short_, long_ = prompts_of(2, [9, 280], attributes=2, max_value_tokens=K_MAX)
    settings = settings_of(*WAYS[2], max_value_tokens=K_MAX, tokens_per_step=1024)
    forced = [[[3] * K_MAX] * 2] * 2

    def moved(model):
        (alone,) = decode(model, [short_], settings, forced=forced[:1])
        return worst(decode(model, [short_, long_], settings, forced=forced)[0], alone)

    assert moved(LONGROPE.model()) < 1e-10
    short_factors = replace(LONGROPE, long_context=False).model()
    assert short_factors.context == 256 < LONGROPE.model().context  # the encoder cuts documents to it; not so here:
    assert moved(short_factors) > 1e-3


def test_long_context_needs_long_factors():
    with pytest.raises(SettingsError, match="'llama' has no RoPE factors for long texts"):
        replace(FAMILIES[0], long_context=True).model()


def test_long_context_needs_one_set_of_them():
    ropes = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {**LONGROPE.facts["rope_parameters"], "original_max_position_embeddings": 256},
    }
    facts = dict(GEMMA3.facts, rope_parameters=ropes, head_dim=8)
    per_layer = replace(GEMMA3, facts=facts)
    assert per_layer.model().context == 256
    with pytest.raises(UnsupportedModelError, match="'gemma3_text' keeps RoPE factors for each kind of layer"):
        replace(per_layer, long_context=True).model()


@pytest.mark.parametrize("kind", sorted(supported.WINDOWED))
def test_a_window_by_any_name_is_not_lost(kind):
    """What does not hand its window to the attention function would be decoded without it."""
    config = SimpleNamespace(layer_types=[kind, "full_attention"], sliding_window=WINDOW)
    assert [_is_windowed(config, layer) for layer in range(2)] == [True, False]


def test_long_context_is_part_of_what_decides_answers():
    facts = [DecoderSpec(ModelSpec("org/name", long_context=long)).as_dict()["model"] for long in (False, True)]
    assert "long_context" not in facts[0] and facts[1]["long_context"]


@pytest.mark.parametrize(
    "spoil, reason",
    [
        ("position", "the position of one token changes"),
        ("state", "by another way than attention"),
        ("order", "the order of tokens in memory"),
        ("scale", "its own attention is not that"),
    ],
)
def test_the_check_at_load_sees_each_mistake(monkeypatch, spoil, reason):
    model = FAMILIES[0].model(torch.float32)
    embed, forward = model.hf.get_input_embeddings(), model._forward

    def spoiled(ids, positions, plan, rows):
        if spoil == "position":
            positions = positions * 2 if positions.max() > 100 else positions
        elif spoil == "order":
            positions = torch.arange(len(ids))
        return forward(ids, positions, plan, rows)

    monkeypatch.setattr(model, "_forward", spoiled)
    if spoil == "state":
        embed.register_forward_hook(lambda module, inputs, output: output + 0.1 * output.cumsum(1))
    if spoil == "scale":
        attend = DensePlan.attend
        monkeypatch.setattr(DensePlan, "attend", lambda self, q, *rest, **kw: attend(self, 2 * q, *rest, **kw))
    with pytest.raises(UnsupportedModelError, match=reason):
        model.check()


def test_prompts_are_longer_than_the_windows():
    for layout, _ in WAYS:
        for prompt in prompts_of(1, [19, 6], schemas=2, attributes=3, max_value_tokens=K_MAX):
            assert len(prompt.shared.prefix) + len(prompt.document) > WINDOW
            assert max(prompt.place(layout).positions) > WINDOW
