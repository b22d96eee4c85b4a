"""The central invariant on a CUDA device, by the same code path as on a CPU. `pytest tests/gpu`; skipped without one.

Not seen to pass on a device yet: see LOG.md.
"""

from __future__ import annotations

import random

import pytest
import torch

from hpd_core import DecodeSettings, HyperParallelDecoder
from hpd_core.decode import Decoder
from hpd_core.model import Model
from hpd_core.rows import Counts
from hpd_core.serial import decode_serial
from tests.core.test_exactness import WAYS, assert_equal, settings_of
from tests.core.test_real_model import SHOES, TITLES
from tests.core.test_trie import assert_same, bounded
from tests.core.tiny import CONFIGS, STOP_IDS, prompts_of, tiny_model

WAYS_TO_RUN = [
    pytest.param(True, True, id="recorded"),
    pytest.param(True, False, id="fast"),
    pytest.param(False, False, id="plain"),
]
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("layout, visibility", WAYS)
@pytest.mark.parametrize("fast, graphs", WAYS_TO_RUN)
def test_equals_the_oracle_in_float64(kind, layout, visibility, fast, graphs):
    model = Model(tiny_model(kind).hf.to("cuda"))
    settings = settings_of(layout, visibility)
    prompts = prompts_of(0, [1, 17, 9, 33, 5], schemas=2)
    decoder = Decoder(model, settings, STOP_IDS, fast=fast, keep_logits=True, graphs=graphs)
    expected = [decode_serial(model, prompt, settings, STOP_IDS) for prompt in prompts]
    for _ in range(3):  # as it is, recorded, replayed
        for slots, right in zip(decoder.decode(prompts, Counts()), expected, strict=True):
            assert_equal(slots, right)
    assert not graphs or (decoder._graphs.records and decoder._graphs._replays)


@pytest.mark.parametrize("layout, visibility", [WAYS[0], WAYS[2]])
@pytest.mark.parametrize("fast, graphs", WAYS_TO_RUN)
def test_closed_values_and_drafts_equal_the_oracle_in_float64(layout, visibility, fast, graphs):
    model = Model(tiny_model("llama").hf.to("cuda"))
    settings = settings_of(layout, visibility, max_value_tokens=8, draft_tokens=3)
    for seed in range(3):
        prompts = bounded(seed)
        decoder = Decoder(model, settings, STOP_IDS, fast=fast, keep_logits=True, graphs=graphs)
        got = decoder.decode(prompts, Counts())
        for prompt, slots in zip(prompts, got, strict=True):
            assert_same(slots, decode_serial(model, prompt, settings, STOP_IDS))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="no second CUDA device")
def test_a_model_on_another_device_than_the_current_one_is_recorded_there():
    prompts, settings = prompts_of(0, [1, 17, 9]), settings_of(*WAYS[2])
    for device in ("cuda:0", "cuda:1"):  # torch keeps what it made for the first recording of a process
        model = Model(tiny_model("llama").hf.to(device))
        decoder = Decoder(model, settings, STOP_IDS, keep_logits=True, graphs=True)
        for _ in range(3):
            got = decoder.decode(prompts, Counts())
        assert decoder.recorded > 0
        for prompt, slots in zip(prompts, got, strict=True):
            assert_equal(slots, decode_serial(model, prompt, settings, STOP_IDS))


def test_a_bounded_arena_is_made_once():
    model = Model(tiny_model("llama").hf.to("cuda"))
    prompts = prompts_of(1, [400, 20, 150, 60, 300, 90, 10, 230, 35, 120] * 3, schemas=3, prefix=70)
    settings = settings_of(*WAYS[2], kv_mib=1, prefix_cache_mib=0, max_slots=48)
    decoder = Decoder(model, settings, STOP_IDS, keep_logits=True, graphs=True)
    eager = Decoder(model, settings, STOP_IDS, keep_logits=True, graphs=False).decode(prompts, Counts())
    for got, right in zip(decoder.decode(prompts, Counts()), eager, strict=True):
        assert_equal(got, right)
    assert decoder._graphs.arena.version == 0 and decoder.recorded > 0


def test_many_documents_of_any_length_answer_the_same_recorded_or_not():
    """Refill, shapes that come again, an arena that grows, ids that are fed before the host has read them."""
    model = Model(tiny_model("qwen3").hf.to("cuda"))
    rng = random.Random(0)
    prompts = prompts_of(5, [rng.randrange(5, 400) for _ in range(150)], schemas=3)
    settings = settings_of(*WAYS[2], tokens_per_step=512, max_slots=96)
    eager, recorded = (
        Decoder(model, settings, STOP_IDS, keep_logits=True, graphs=graphs).decode(prompts, Counts())
        for graphs in (False, True)
    )
    for got, right in zip(recorded, eager, strict=True):
        assert_equal(got, right)


def test_a_real_model_answers_as_on_the_cpu_in_float32():
    answers = []
    for device in ("cpu", "cuda"):
        decoder = HyperParallelDecoder.from_pretrained(
            "smollm2-135m", DecodeSettings(max_value_tokens=12), device=device
        )
        decoder = HyperParallelDecoder(Model(decoder.model.hf.float()), decoder.encoder)
        answers.append([row.as_dict() for row in decoder.extract(TITLES, SHOES)])
    assert answers[0] == answers[1]


def test_half_precision_is_finite_and_finds_brands():
    """bfloat16 is what `auto` takes on a GPU."""
    decoder = HyperParallelDecoder.from_pretrained("smollm2-135m-ave", device="cuda")
    assert decoder.model.dtype == torch.bfloat16
    rows = decoder.extract(TITLES, SHOES)
    assert all(row.status.is_ok for row in rows)
    assert rows[0].as_dict()["Brand"] == "Brightfoot"
