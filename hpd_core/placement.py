"""Where a model's weights go: the device and the dtype that a name stands for, and whether they fit there."""

from __future__ import annotations

from pathlib import Path

import torch

from hpd_core import checkpoint, sizing
from hpd_core.model_spec import ModelSpec, Quantization
from hpd_core.spread import SPREAD, free_by_gpu


def device_named(name: str) -> torch.device:
    """`auto` is the GPU where there is one, `spread` begins on the first of several."""
    if name == SPREAD:
        return torch.device("cuda:0")
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


def dtype_named(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        # Measured on AVX-512 without AMX: float32 beats bfloat16 from 32 rows up.
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return {
        "float32": torch.float32,
        "float64": torch.float64,
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
    }[name]


def check_memory(spec: ModelSpec, folder: Path, dtype: str, device: str, where: torch.device) -> None:
    """Raises SettingsError with the numbers where the weights in `folder` do not fit to where they go, or do not fit
    the machine that they pass through."""
    count = checkpoint.parameters(folder)
    if device == SPREAD:
        by_gpu = free_by_gpu()
        free, place = sum(by_gpu.values()), f"{len(by_gpu)} GPUs together"
    else:
        free = torch.cuda.mem_get_info(where)[0] if where.type == "cuda" else sizing.free_memory()
        place = str(where)
    # Weights come whole into the memory of the machine, and leave it quantised, one layer after another.
    stored = spec.quantization if where.type == "cuda" else Quantization.NONE
    checkpoint.check_memory(spec.name, count, dtype, free, where=place, quantization=stored)
    if where.type == "cuda" and (spec.adapter or checkpoint.are_copied(folder, dtype)):
        checkpoint.check_memory(spec.name, count, dtype, sizing.free_memory(), where=checkpoint.ON_THE_WAY)
