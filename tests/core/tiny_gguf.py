"""A tiny model directory as a GGUF file in float32, as llama.cpp's converter writes Llama."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_OTHERS = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}


def write_gguf(
    folder: Path,
    file: Path,
    *,
    without: str = "",
    architecture: str = "llama",
    more: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
) -> Path:
    """`folder` as `file`. without: a tensor that is left out, by its name in the GGUF file. more: writes what else."""
    facts = json.loads((folder / "config.json").read_text())
    tokens = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    writer = gguf.GGUFWriter(str(file), architecture)
    writer.add_context_length(facts["max_position_embeddings"])
    writer.add_embedding_length(facts["hidden_size"])
    writer.add_block_count(facts["num_hidden_layers"])
    writer.add_feed_forward_length(facts["intermediate_size"])
    writer.add_head_count(facts["num_attention_heads"])
    writer.add_head_count_kv(facts["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(facts["rms_norm_eps"])
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(facts["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    listed = sorted(tokens, key=tokens.__getitem__)
    listed[0] = listed[1] + listed[2]  # for the one merge, without which an array of strings has no type
    writer.add_token_list(listed)
    writer.add_token_merges([f"{listed[1]} {listed[2]}"])
    writer.add_eos_token_id(facts["eos_token_id"])
    heads = {"attn_q": facts["num_attention_heads"], "attn_k": facts["num_key_value_heads"]}
    for name, weight in load_file(folder / "model.safetensors").items():
        new = _OTHERS.get(name) or _in_layer(name)
        if new.split(".")[-2] in heads:
            weight = _permuted(weight, heads[new.split(".")[-2]])
        if new != without:
            writer.add_tensor(new, weight)
    more(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _in_layer(name: str) -> str:
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{_NAMES[rest.removesuffix('.weight')]}.weight"


def _permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a head with its two halves interleaved, the order that llama.cpp's RoPE takes."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
