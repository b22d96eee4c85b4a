"""Quantises the weights of a loaded model, in place. The one file that knows torchao and bitsandbytes.

What is quantised is every linear layer but the LM head. Head and embeddings stay as they are: in tied models they are
one matrix, which is looked up as well as multiplied, and the head decides between near values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hpd_core.model_spec import ModelSpec, Quantization
from hpd_core.quantization import INT4_GROUP, KINDS, check_installed
from hpd_core.settings import SettingsError
from hpd_core.supported import UnsupportedModelError

#: Share of the weights beside embeddings and head that linear layers must hold, or quantising them is not worth it.
_LEAST_SHARE = 0.5
_FLOAT8_CAPABILITY = (8, 9)


def quantize(hf: Any, spec: ModelSpec, device: torch.device) -> None:
    """Quantises `hf` as `spec` asks, layer by layer on `device`, where its layers then are; `hf` may lie elsewhere.

    Raises SettingsError where the library or the device is missing, UnsupportedModelError where the weights are not in
    linear layers or do not divide into groups, or where tokens would share the scale of their activations.
    """
    if spec.quantization is Quantization.NONE:
        return
    check_installed(spec)
    layers = _layers(hf)
    _check_layers(hf, layers, spec)
    if spec.quantization is Quantization.FLOAT8_DYNAMIC:
        _check_float8(spec, device)
    if spec.quantization is Quantization.NF4_WEIGHT_ONLY:
        _to_nf4(hf, layers, device)
        return
    config = _config(spec.quantization, device)
    from torchao.quantization import quantize_

    chosen = {id(layer) for layer in layers.values()}
    # `device`: one layer after another goes there, so that a GPU never holds all weights unquantised.
    quantize_(hf, config, lambda module, _: id(module) in chosen, device=device)
    if KINDS[spec.quantization].rounds_activations:
        _check_tokens_apart(hf.config.model_type, layers, spec)


def weight_bytes(hf: Any, quantization: Quantization, dtype: torch.dtype) -> int:
    """Bytes of the weights of `hf` once they are quantised; `hf` may lie on torch's meta device."""
    whole = sum(p.numel() for p in hf.parameters())
    if quantization is Quantization.NONE:
        return whole * dtype.itemsize
    linear = sum(layer.weight.numel() for layer in _layers(hf).values())
    return int(linear * KINDS[quantization].bytes_per_weight) + (whole - linear) * dtype.itemsize


def _layers(hf: Any) -> dict[str, nn.Linear]:
    head = hf.get_output_embeddings()
    return {n: m for n, m in hf.named_modules() if isinstance(m, nn.Linear) and m is not head}


def _check_layers(hf: Any, layers: dict[str, nn.Linear], spec: ModelSpec) -> None:
    kind, asked = hf.config.model_type, spec.quantization.value
    apart = {id(m.weight): m.weight.numel() for m in (hf.get_input_embeddings(), hf.get_output_embeddings())}
    body = sum(p.numel() for p in hf.parameters()) - sum(apart.values())
    linear = sum(layer.weight.numel() for layer in layers.values())
    if linear < _LEAST_SHARE * body:
        raise UnsupportedModelError(
            f"{kind!r} cannot be quantised to {asked}: linear layers hold {100 * linear / max(1, body):.0f} % of its "
            f"weights; experts, say, lie in tensors of another kind"
        )
    if spec.quantization is Quantization.INT4_WEIGHT_ONLY:
        for name, layer in layers.items():
            if layer.in_features % INT4_GROUP:
                raise UnsupportedModelError(
                    f"{kind!r} cannot be quantised to {asked}: rows of {name} have {layer.in_features} weights, which "
                    f"do not divide into groups of {INT4_GROUP}"
                )


def _config(quantization: Quantization, device: torch.device) -> Any:
    """torchao's configuration: scales of weights per output row (int4: per group), of activations per token."""
    from torchao import quantization as ao

    if quantization is Quantization.INT8_WEIGHT_ONLY:
        return ao.Int8WeightOnlyConfig(granularity=ao.PerRow(), set_inductor_config=False)
    if quantization is Quantization.INT8_DYNAMIC:
        return ao.Int8DynamicActivationInt8WeightConfig(granularity=ao.PerRow(), set_inductor_config=False)
    if quantization is Quantization.FLOAT8_DYNAMIC:
        return ao.Float8DynamicActivationFloat8WeightConfig(granularity=ao.PerRow(), set_inductor_config=False)
    if device.type == "cuda":
        from torchao.quantization.quantize_.workflows import Int4PackingFormat

        packing = Int4PackingFormat.TILE_PACKED_TO_4D
        return ao.Int4WeightOnlyConfig(group_size=INT4_GROUP, int4_packing_format=packing, set_inductor_config=False)
    # What torchao 0.18 has for int4 on a CPU, packed; its other configurations hold four bits in a byte there.
    from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig

    return PrototypeInt4WeightOnlyConfig(group_size=INT4_GROUP, set_inductor_config=False)


def _check_float8(spec: ModelSpec, device: torch.device) -> None:
    capability = torch.cuda.get_device_capability(device)
    if capability < _FLOAT8_CAPABILITY:
        needed, found = (".".join(map(str, numbers)) for numbers in (_FLOAT8_CAPABILITY, capability))
        raise SettingsError(
            f"model {spec.name!r}: quantization {spec.quantization.value} needs compute capability {needed}, and "
            f"{torch.cuda.get_device_name(device)} has {found}; take int8-weight-only"
        )


@torch.inference_mode()
def _check_tokens_apart(kind: str, layers: dict[str, nn.Linear], spec: ModelSpec) -> None:
    """A document's answer must not depend on what it is packed with: one token, a thousand times as large, may not move
    the others. One layer of each shape."""
    for name, layer in {layer.weight.shape: (name, layer) for name, layer in layers.items()}.values():
        weight = layer.weight
        rows = torch.linspace(-1, 1, 32 * layer.in_features, device=weight.device, dtype=weight.dtype).view(32, -1)
        large = rows.clone()
        large[5] *= 1000
        moved = layer(large) != layer(rows)
        moved[5] = False
        if moved.any():
            raise UnsupportedModelError(
                f"{kind!r} cannot be quantised to {spec.quantization.value} here: in {name} tokens share a scale, so "
                f"that an answer would depend on the documents it is packed with"
            )


def _to_nf4(hf: Any, layers: dict[str, nn.Linear], device: torch.device) -> None:
    import bitsandbytes

    for name, layer in layers.items():
        packed = bitsandbytes.nn.Linear4bit(
            layer.in_features,
            layer.out_features,
            bias=layer.bias is not None,
            compute_dtype=layer.weight.dtype,
            quant_type="nf4",
        )
        packed.weight = bitsandbytes.nn.Params4bit(layer.weight.data, requires_grad=False, quant_type="nf4")
        packed.bias = layer.bias
        hf.set_submodule(name, packed.to(device))  # moving it is what quantises it
