"""What is refused while decoding, should no check at load have seen it; see test_families.py for those."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, PhimoeConfig

from hpd_core.decode import Decoder
from hpd_core.model import Model, UnsupportedModelError
from hpd_core.rows import Counts
from hpd_core.settings import DecodeSettings
from tests.core.tiny import STOP_IDS, VOCABULARY, prompts_of


def test_a_window_kept_to_the_models_own_mask_is_refused():
    """Phi-3.5-MoE gives its sliding window to its mask alone, which the plan of a step replaces."""
    config = PhimoeConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, num_local_experts=2, num_experts_per_tok=2, sliding_window=4, pad_token_id=2,
        bos_token_id=1, eos_token_id=0,
    )  # fmt: skip
    model = Model(AutoModelForCausalLM.from_config(config, dtype=torch.float32))
    decoder = Decoder(model, DecodeSettings(max_value_tokens=2), STOP_IDS)
    with pytest.raises(UnsupportedModelError, match="keeps its sliding window to its own mask"):
        decoder.decode(prompts_of(0, [5], max_value_tokens=2), Counts())
