"""`absent_margin`: what would end a value of which nothing is written has to win by so many nats, and nothing else
changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpd_core.confidence import identity
from hpd_core.decode import Decoder
from hpd_core.model_spec import ModelSpec
from hpd_core.rows import Counts
from hpd_core.serial import decode_serial
from hpd_core.settings import DecodeSettings, SettingsError
from hpd_core.spec import DecoderSpec
from hpd_core.template import PromptTemplate
from tests.core.test_exactness import WAYS, assert_equal, settings_of
from tests.core.test_trie import bounded
from tests.core.tiny import CONFIGS, STOP_IDS, prompts_of, tiny_model
from tests.core.tiny_folder import write_tiny_model

#: Beyond every difference of logits of the tiny models.
EVER, NEVER = -1e3, 1e3


def decode(model, prompts, settings, *, fast=True):
    return Decoder(model, settings, STOP_IDS, fast=fast, keep_logits=True).decode(prompts, Counts())


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("layout, visibility", WAYS)
@pytest.mark.parametrize("margin", [0.4, -0.4])
def test_slots_equal_the_oracle(kind, layout, visibility, margin):
    model = tiny_model(kind)
    settings = settings_of(layout, visibility, tokens_per_step=24, absent_margin=margin)
    for seed, prompts in enumerate((prompts_of(3, [19, 6, 30]), bounded(4))):
        oracle = [decode_serial(model, p, settings, STOP_IDS) for p in prompts]
        for slots, truth in zip(decode(model, prompts, settings, fast=bool(seed)), oracle, strict=True):
            assert [s.ids for s in slots] == [s.ids for s in truth]
            if not seed:
                assert_equal(slots, truth)


def test_a_large_margin_answers_always_and_a_negative_one_never():
    model, prompts = tiny_model("llama"), prompts_of(5, [12, 7, 20, 9])
    plain = settings_of(*WAYS[0])
    always, never = (decode(model, prompts, replace(plain, absent_margin=m)) for m in (NEVER, EVER))
    assert not any(slot.ids[0] in STOP_IDS for slots in always for slot in slots)
    assert all(len(slot.ids) == 1 and slot.ids[0] in STOP_IDS for slots in never for slot in slots)


def test_only_the_first_token_is_weighed_and_probabilities_stay_the_models_own():
    """A value that is begun ends as it did, whatever the margin."""
    model, prompts = tiny_model("llama"), prompts_of(6, [12, 7, 20, 9])
    plain = settings_of(*WAYS[0])
    before, after = (decode(model, prompts, replace(plain, absent_margin=m)) for m in (0.0, NEVER))
    pairs = [pair for a, b in zip(before, after, strict=True) for pair in zip(a, b, strict=True)]
    begun = [(one, other) for one, other in pairs if one.ids[0] not in STOP_IDS]
    assert any(one.ids[-1] in STOP_IDS for one, _ in begun)
    for one, other in begun:
        assert one.ids == other.ids and other.logprobs == pytest.approx(one.logprobs)


def test_it_needs_a_prompt_that_says_absent_by_an_end_alone():
    model = ModelSpec("anything")
    with pytest.raises(SettingsError, match="absent_margin: this prompt writes 'n/a' for absent"):
        DecoderSpec(model, DecodeSettings(absent_margin=1.0), PromptTemplate())
    DecoderSpec(model, DecodeSettings(absent_margin=1.0), PromptTemplate(absent=""))


def test_a_margin_is_part_of_what_decides_answers_and_of_what_a_calibration_was_fitted_with(tmp_path):
    model, template = ModelSpec(str(write_tiny_model(tmp_path))), PromptTemplate(absent="")
    spec = DecoderSpec(model, DecodeSettings(), template)
    with_margin = replace(spec, settings=DecodeSettings(absent_margin=0.5))
    assert type(DecodeSettings(absent_margin=1).absent_margin) is float  # one fingerprint, however it is written
    assert "absent_margin" not in spec.as_dict()["settings"]  # old outputs keep their fingerprint
    assert with_margin.as_dict()["settings"]["absent_margin"] == 0.5
    assert identity(spec.as_dict())["absent_margin"] is None and identity(with_margin.as_dict())["absent_margin"] == 0.5
    for wrong in (float("nan"), float("inf"), "much", True):
        with pytest.raises(SettingsError, match=r"absent_margin is .*: must be a finite number of nats"):
            DecodeSettings(absent_margin=wrong)
