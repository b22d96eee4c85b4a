"""Checkpoints that come quantised: two kinds are read as plain weights, the others are refused by name."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GptOssConfig

from hpd_core import ModelSpec, checkpoint, source
from hpd_core.model import Model
from hpd_core.model_spec import Quantization
from hpd_core.supported import UnsupportedModelError
from tests.core.tiny_folder import write_tiny_model

_FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def rewrite(folder, change, **config):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))


def test_fp8_is_read_as_plain_weights(tmp_path):
    write_tiny_model(tmp_path, hidden_size=128)
    expected = {}

    def quantise(weights):
        for name in [n for n in weights if "proj" in n]:
            weight = weights[name]
            blocks = [-(-size // 128) for size in weight.shape]
            scale = torch.full(blocks, float(weight.abs().max()) / 448)
            weights[name] = (weight / scale[0, 0]).to(torch.float8_e4m3fn)
            weights[name + "_scale_inv"] = scale
            expected[name] = weights[name].float() * scale[0, 0]

    stored = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    rewrite(tmp_path, quantise, quantization_config=stored)
    hf = Model.load(ModelSpec(str(tmp_path))).hf
    found = dict(hf.named_parameters())
    assert len(expected) == 14 and all(torch.equal(found[name], weight) for name, weight in expected.items())
    assert hf.dtype == torch.float32


def test_mxfp4_is_read_as_plain_weights_and_counted_as_such(tmp_path):
    """As gpt-oss is published: two numbers of four bits in a byte, one exponent for 32 of them."""
    config = GptOssConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_local_experts=2, num_experts_per_tok=1, layer_types=["full_attention"],
        eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path)
    plain, expected = checkpoint.parameters(tmp_path), {}

    def quantise(weights):
        for name in [n for n in weights if n.endswith(("gate_up_proj", "down_proj"))]:
            experts, inputs, outputs = weights.pop(name).shape
            blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
            scales = torch.randint(120, 126, (experts, outputs, inputs // 32), dtype=torch.uint8)
            weights[name + "_blocks"], weights[name + "_scales"] = blocks, scales
            numbers = torch.stack([_FP4[(blocks & 15).long()], _FP4[(blocks >> 4).long()]], -1).flatten(-2)
            numbers = numbers * 2.0 ** (scales.float() - 127)[..., None]
            expected[name] = numbers.flatten(-2).transpose(1, 2)

    rewrite(tmp_path, quantise, quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": []})
    found = dict(Model.load(ModelSpec(str(tmp_path))).hf.named_parameters())
    assert len(expected) == 2 and all(torch.equal(found[name], weight) for name, weight in expected.items())
    assert plain <= checkpoint.parameters(tmp_path) < 1.05 * plain  # the exponents come on top


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "compressed-tensors"])
def test_other_kinds_are_refused_before_any_weight_is_read(tmp_path, method):
    folder = shutil.copytree(write_tiny_model(tmp_path / "a"), tmp_path / "b")
    rewrite(folder, lambda weights: None, quantization_config={"quant_method": method, "bits": 4})
    for ask in (source.check_loadable, Model.load):
        with pytest.raises(UnsupportedModelError, match=f"comes quantised .quant_method '{method}' .* fp8 and mxfp4"):
            ask(ModelSpec(str(folder)))


def test_what_was_read_as_plain_weights_can_be_quantised_by_us(tmp_path):
    pytest.importorskip("torchao")
    write_tiny_model(tmp_path, hidden_size=128)
    stored = {"quant_method": "fp8", "weight_block_size": [128, 128]}

    def quantise(weights):
        for name in [n for n in weights if "proj" in n]:
            weights[name + "_scale_inv"] = torch.ones([-(-size // 128) for size in weights[name].shape])
            weights[name] = weights[name].to(torch.float8_e4m3fn)

    rewrite(tmp_path, quantise, quantization_config=stored)
    hf = Model.load(ModelSpec(str(tmp_path), quantization=Quantization.INT8_WEIGHT_ONLY)).hf
    assert "Int8" in type(hf.model.layers[0].mlp.up_proj.weight).__name__
