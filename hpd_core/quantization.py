"""What each kind of quantised weights needs, without torch: wrong combinations are refused before a weight is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from hpd_core.model_spec import ModelSpec, Quantization
from hpd_core.settings import SettingsError
from hpd_core.supported import UnsupportedModelError

#: Weights that share one scale under int4-weight-only, along a row of a matrix.
INT4_GROUP = 32
_TORCHAO = "pip install 'hpd-catalog[quantization]'"


@dataclass(frozen=True, slots=True)
class QuantizedKind:
    """package: whose kernels run. install: how to get it. bytes_per_weight: with scales, those of rows left out.

    dtypes: model dtypes that the kernels work with. cuda: why a GPU is needed, "" where none is. rounds_activations:
    whether activations are rounded as well, each token by a scale of its own.
    """

    package: str
    install: str
    bytes_per_weight: float
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    cuda: str = ""
    rounds_activations: bool = False


KINDS: Mapping[Quantization, QuantizedKind] = {
    Quantization.INT8_WEIGHT_ONLY: QuantizedKind("torchao", _TORCHAO, 1.0),
    Quantization.INT8_DYNAMIC: QuantizedKind("torchao", _TORCHAO, 1.0, rounds_activations=True),
    # bfloat16 scale and zero of each group. In float32 the CPU kernel has no vector code: 60 times as long (AVX2).
    Quantization.INT4_WEIGHT_ONLY: QuantizedKind("torchao", _TORCHAO, 0.5 + 4 / INT4_GROUP, ("bfloat16",)),
    Quantization.FLOAT8_DYNAMIC: QuantizedKind(
        "torchao",
        _TORCHAO,
        1.0,
        ("bfloat16",),
        "8-bit floats are multiplied by GPUs of compute capability 8.9 or newer only",
        rounds_activations=True,
    ),
    # Blocks of 64 with a float32 scale.
    Quantization.NF4_WEIGHT_ONLY: QuantizedKind(
        "bitsandbytes", "pip install bitsandbytes", 0.5 + 4 / 64, cuda="its kernels are made for CUDA"
    ),
}


#: Checkpoints that come quantised and that transformers makes plain weights of while it reads them (gpt-oss, DeepSeek
#: V3 and others): quant_method of config.json -> the class of transformers that is told to.
DEQUANTISED = {"mxfp4": "Mxfp4Config", "fp8": "FineGrainedFP8Config"}


def stored_as(name: str, facts: Mapping[str, Any]) -> str:
    """How the weights of a checkpoint are stored, by its configuration: a key of `DEQUANTISED`, or "" for plain ones.

    Raises UnsupportedModelError for other kinds: nobody looks whether their kernels give each token a scale of its own.
    """
    stored = facts.get("quantization_config")
    if not stored:
        return ""
    method = str(stored.get("quant_method"))
    if method not in DEQUANTISED:
        raise UnsupportedModelError(
            f"model {name!r} comes quantised (quant_method {method!r} of config.json); take its weights in 16 bits, "
            f"and model.quantization for fewer. Of quantised ones {' and '.join(sorted(DEQUANTISED))} are read, as "
            f"plain weights"
        )
    return method


def rounds_activations(quantization: Quantization) -> bool:
    return quantization in KINDS and KINDS[quantization].rounds_activations


def check(spec: ModelSpec, *, dtype: str, on_gpu: bool, gpus: float = 1) -> None:
    """Raises SettingsError where weights of `spec` in `dtype` cannot be quantised as it asks.

    on_gpu: on one, or on a CPU. gpus: several where the model is to be spread over them.
    """
    kind = KINDS.get(spec.quantization)
    if kind is None:
        return
    asked = f"model {spec.name!r}: quantization {spec.quantization.value}"
    if gpus > 1:
        raise SettingsError(
            f"{asked} is for a model on one GPU, and this one is to be spread over several; quantised it may fit one: "
            "pool.gpus 1"
        )
    if kind.cuda and not on_gpu:
        raise SettingsError(f"{asked} needs a CUDA device: {kind.cuda}. On a CPU take int8-weight-only")
    if dtype not in kind.dtypes:
        raise SettingsError(f"{asked} works with dtype {' or '.join(kind.dtypes)}, not with {dtype}: set model.dtype")


def check_installed(spec: ModelSpec) -> None:
    """Raises SettingsError that says how to install what quantises the weights of `spec`, where it is missing."""
    kind = KINDS.get(spec.quantization)
    if kind is not None and find_spec(kind.package) is None:
        raise SettingsError(
            f"model {spec.name!r}: quantization {spec.quantization.value} needs {kind.package}, which is not "
            f"installed: {kind.install}"
        )
