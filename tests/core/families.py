"""The families of models that the decoder is held to, as tiny random models of transformers' own configurations, and
those that it refuses. `docs/models.md` has its tables from here: `python -m tests.core.support_table`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedConfig

from hpd_core.model import Model
from tests.core.tiny import VOCABULARY

WINDOW = 16  # shorter than every prompt of the matrix: it cuts prefix, document and gaps
_ALTERNATING = ["sliding_attention", "full_attention"]
_PLAIN = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=512,
    # At the usual 0.02 attention is nearly uniform and a wrong mask hides in the noise.
    initializer_range=0.1,
    tie_word_embeddings=False,
    eos_token_id=0,
    bos_token_id=1,
    pad_token_id=2,
)
_GROUPED = dict(_PLAIN, num_key_value_heads=2)
_WIDE = dict(_GROUPED, head_dim=12)  # heads wider than hidden_size / heads
_EXPERTS = dict(num_experts_per_tok=2, moe_intermediate_size=16)
_GPT2 = dict(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, initializer_range=0.1, eos_token_id=0)


@dataclass(frozen=True)
class Family:
    """name: as people call it. config: class of transformers. note: what it has that Llama has not.

    tolerance: of logits against the oracle; larger where transformers itself computes a part in float32.
    """

    name: str
    config: str
    facts: Mapping[str, Any]
    note: str = ""
    long_context: bool = False
    tolerance: float = 1e-10

    def configuration(self) -> PreTrainedConfig:
        made: PreTrainedConfig = getattr(transformers, self.config)(**self.facts)
        return made

    def model(self, dtype: torch.dtype = torch.float64) -> Model:
        torch.manual_seed(7)
        hf = AutoModelForCausalLM.from_config(self.configuration(), dtype=dtype)
        with torch.no_grad():  # norms start at 1 and biases at 0; give them something to be wrong about
            for parameter in hf.parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
        return Model(hf, long_context=self.long_context)


def _rope(kind: str, **facts: Any) -> dict[str, Any]:
    return dict(_GROUPED, rope_parameters={"rope_type": kind, "rope_theta": 10000.0, **facts})


_LONGROPE = dict(
    _rope("longrope", short_factor=[1.0, 1.1, 1.2, 1.3], long_factor=[2.0, 3.0, 5.0, 9.0]),
    original_max_position_embeddings=256,
)

FAMILIES = (
    Family("Llama 2, 3, SmolLM2, TinyLlama", "LlamaConfig", _GROUPED),
    Family("Mistral", "MistralConfig", dict(_WIDE, sliding_window=WINDOW), "sliding window in every layer"),
    Family("Mixtral", "MixtralConfig", dict(_GROUPED, num_local_experts=4, num_experts_per_tok=2), "experts"),
    Family(
        "Ministral",
        "MinistralConfig",
        dict(_WIDE, sliding_window=WINDOW, layer_types=_ALTERNATING),
        "alternating windows",
    ),
    Family("Qwen2, Qwen2.5", "Qwen2Config", _GROUPED, "biases"),
    Family(
        "Qwen2 with a window",
        "Qwen2Config",
        dict(_GROUPED, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1),
        "window in the upper layers",
    ),
    Family("Qwen3", "Qwen3Config", _WIDE, "query and key norms"),
    Family("Qwen3-MoE", "Qwen3MoeConfig", dict(_WIDE, num_experts=4, **_EXPERTS), "experts"),
    Family("Gemma 1", "GemmaConfig", _WIDE),
    Family(
        "Gemma 2",
        "Gemma2Config",
        dict(
            _WIDE,
            sliding_window=WINDOW,
            query_pre_attn_scalar=12,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=3.0,
        ),
        "soft-capping, alternating windows",
        tolerance=1e-5,
    ),
    Family(
        "Gemma 3",
        "Gemma3TextConfig",
        dict(_WIDE, sliding_window=WINDOW, layer_types=_ALTERNATING, query_pre_attn_scalar=12),
        "alternating windows, another RoPE base in each",
    ),
    Family(
        "Gemma 4",
        "Gemma4TextConfig",
        dict(_WIDE, sliding_window=WINDOW, layer_types=_ALTERNATING, vocab_size_per_layer_input=VOCABULARY),
        "alternating windows, embeddings per layer",
    ),
    Family(
        "Gemma 4 with layers that share keys",
        "Gemma4TextConfig",
        dict(
            _WIDE,
            num_hidden_layers=4,
            num_kv_shared_layers=2,
            sliding_window=WINDOW,
            layer_types=_ALTERNATING * 2,
            vocab_size_per_layer_input=VOCABULARY,
        ),
        "the upper layers take keys and values of lower ones",
    ),
    Family("Phi-2", "PhiConfig", _PLAIN, "partial RoPE, parallel layers"),
    Family("Phi-3", "Phi3Config", dict(_GROUPED, sliding_window=WINDOW), "one matrix for query, key, value; window"),
    Family("Phi-4", "Phi3Config", dict(_GROUPED, sliding_window=None), "one matrix for query, key, value"),
    Family("SmolLM3", "SmolLM3Config", dict(_GROUPED, no_rope_layers=[1, 0]), "layers without RoPE"),
    Family("OLMo 2", "Olmo2Config", _GROUPED, "norms behind the layers"),
    Family(
        "OLMo 3", "Olmo3Config", dict(_GROUPED, sliding_window=WINDOW, layer_types=_ALTERNATING), "alternating windows"
    ),
    Family(
        "Granite 3",
        "GraniteConfig",
        dict(_GROUPED, logits_scaling=0.5, attention_multiplier=0.2, residual_multiplier=0.5, embedding_multiplier=3.0),
        "scaled logits, attention and residuals",
    ),
    Family(
        "Cohere 2 (Command R7B, Aya)",
        "Cohere2Config",
        dict(_GROUPED, sliding_window=WINDOW, layer_types=_ALTERNATING, logit_scale=1.5),
        "RoPE in windowed layers only, scaled logits",
    ),
    Family(
        "EXAONE 4",
        "Exaone4Config",
        dict(_GROUPED, sliding_window=WINDOW, layer_types=_ALTERNATING),
        "RoPE in windowed layers only",
    ),
    Family("GLM-4", "Glm4Config", _WIDE, "interleaved RoPE"),
    Family("Nemotron", "NemotronConfig", _GROUPED, "layers that drop keywords"),
    Family("Starcoder 2", "Starcoder2Config", dict(_GROUPED, sliding_window=WINDOW), "window in every layer"),
    Family("GPT-NeoX, Pythia", "GPTNeoXConfig", _PLAIN, "partial RoPE, parallel layers"),
    Family("StableLM 2", "StableLmConfig", _GROUPED, "partial RoPE; layers that drop keywords"),
    Family(
        "DeepSeek V3 (latent attention)",
        "DeepseekV3Config",
        dict(
            _PLAIN,
            num_key_value_heads=4,
            q_lora_rank=16,
            kv_lora_rank=16,
            qk_rope_head_dim=8,
            qk_nope_head_dim=8,
            v_head_dim=12,
            n_routed_experts=4,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=1,
            **_EXPERTS,
        ),
        "values of another width than keys, experts",
        tolerance=1e-5,
    ),
    Family(
        "gpt-oss",
        "GptOssConfig",
        dict(_WIDE, num_local_experts=4, num_experts_per_tok=2, sliding_window=WINDOW, layer_types=_ALTERNATING),
        "attention sinks, alternating windows, experts",
    ),
    Family("GPT-2", "GPT2Config", dict(_GPT2, n_positions=256), "learned positions, up to the end of their table"),
    Family(
        "OPT",
        "OPTConfig",
        dict(
            vocab_size=VOCABULARY,
            hidden_size=32,
            word_embed_proj_dim=32,
            ffn_dim=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=256,
            init_std=0.1,
        ),
        "learned positions, up to the end of their table",
    ),
    Family("RoPE scaling: linear", "LlamaConfig", _rope("linear", factor=4.0)),
    Family(
        "RoPE scaling: llama3",
        "LlamaConfig",
        _rope("llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64),
    ),
    Family("RoPE scaling: YaRN", "Qwen3Config", _rope("yarn", factor=4.0, original_max_position_embeddings=128)),
    Family(
        "RoPE scaling: longrope (Phi-3-128k)",
        "Phi3Config",
        _LONGROPE,
        "short factors; documents are cut to their length",
    ),
    Family(
        "RoPE scaling: longrope of partial RoPE (Phi-4-mini)",
        "Phi3Config",
        dict(
            _rope("longrope", short_factor=[1.0, 1.1, 1.2], long_factor=[2.0, 3.0, 5.0], partial_rotary_factor=0.75),
            original_max_position_embeddings=256,
        ),
        "short factors; documents are cut to their length",
    ),
    Family(
        "RoPE scaling: longrope, `long_context: true`",
        "Phi3Config",
        _LONGROPE,
        "long factors for every document",
        long_context=True,
    ),
)


@dataclass(frozen=True)
class Refused:
    """name: as people call it. reason: words of the message. loaded: refused by the check of the loaded weights, where
    its configuration does not tell."""

    name: str
    config: str
    facts: Mapping[str, Any]
    reason: str
    loaded: bool = False

    def configuration(self) -> PreTrainedConfig:
        made: PreTrainedConfig = getattr(transformers, self.config)(**self.facts)
        return made


_RECURRENT = "layers in place of attention"
_HYBRID = "is a hybrid model"
_OWN_MASK = "a mask of their own"
_NO_INTERFACE = "does not go through transformers' AttentionInterface"

REFUSED = (
    Refused("T5, BART and other encoder-decoders", "T5Config", {}, "is an encoder-decoder model"),
    Refused("Mamba", "MambaConfig", {}, _RECURRENT),
    Refused("Mamba 2", "Mamba2Config", {}, _RECURRENT),
    Refused("RWKV", "RwkvConfig", {}, _RECURRENT),
    Refused("RecurrentGemma, Griffin", "RecurrentGemmaConfig", {}, _HYBRID),
    Refused("Jamba", "JambaConfig", {}, _HYBRID),
    Refused("Zamba 2", "Zamba2Config", {}, _HYBRID),
    Refused("Bamba", "BambaConfig", {"attn_layer_indices": [1]}, _HYBRID),
    Refused("Falcon-H1", "FalconH1Config", {}, _RECURRENT),
    Refused("Nemotron-H", "NemotronHConfig", {}, _HYBRID),
    Refused("Granite 4 hybrid", "GraniteMoeHybridConfig", {"layer_types": ["mamba", "attention"] * 16}, _HYBRID),
    Refused("Qwen3-Next", "Qwen3NextConfig", {}, _HYBRID),
    Refused("LFM2", "Lfm2Config", {"layer_types": ["conv", "full_attention"] * 16}, _HYBRID),
    Refused("MiniMax-Text-01", "MiniMaxConfig", {}, _HYBRID),
    Refused("Llama 4", "Llama4TextConfig", {}, _OWN_MASK),
    Refused("DeepSeek V3.2", "DeepseekV32Config", {}, _OWN_MASK),
    Refused("GLM-5", "GlmMoeDsaConfig", {}, _OWN_MASK),
    Refused("BLOOM", "BloomConfig", {}, "ALiBi"),
    Refused("MPT", "MptConfig", {}, "ALiBi"),
    Refused("Falcon with ALiBi", "FalconConfig", {"alibi": True}, "ALiBi"),
    Refused("Falcon", "FalconConfig", {}, _NO_INTERFACE),
    Refused("GPT-Neo", "GPTNeoConfig", {}, _NO_INTERFACE),
    Refused("XGLM", "XGLMConfig", {}, _NO_INTERFACE),
    Refused("RoPE scaling: dynamic", "LlamaConfig", _rope("dynamic", factor=4.0), "'dynamic' RoPE scaling"),
    Refused("Vision and audio models without text output", "ViTConfig", {}, "is no causal language model"),
    Refused("BERT, RoBERTa and other encoders", "BertConfig", _PLAIN, "cannot be decoded exactly", loaded=True),
    Refused(
        "Phi-3.5-MoE",
        "PhimoeConfig",
        dict(_GROUPED, num_local_experts=2, num_experts_per_tok=2, sliding_window=WINDOW),
        "keeps its sliding window to its own mask",
        loaded=True,
    ),
    Refused("DiffLlama", "DiffLlamaConfig", _GROUPED, "layer 0 runs more than once", loaded=True),
    Refused("Doge", "DogeConfig", _GROUPED, "a mask of its own", loaded=True),
)
