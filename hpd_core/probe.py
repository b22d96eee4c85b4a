"""Measures a machine for `sizing.py`: the rate of the model's products by their rows, and the memory that is free."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM

from hpd_core import source
from hpd_core.model import Model
from hpd_core.placement import device_named, dtype_named
from hpd_core.quantize import weight_bytes
from hpd_core.settings import AUTO, DecodeSettings
from hpd_core.sizing import ROWS, Measured, free_memory
from hpd_core.spec import DecoderSpec
from hpd_core.spread import SPREAD, free_by_gpu

#: Bytes of different weights that are multiplied in turn. A model's own do not stay in the processor's cache either.
_BEYOND_CACHE = 256 * 2**20
#: What configurations call the width of the MLP: most; GPT-2, whose own may be None; OPT; Falcon.
_INTERMEDIATE = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
_ROUNDS = 5
_SECONDS = 2.0


def measure(spec: DecoderSpec, *, device: str = "auto", threads: int | None = None, sharing: float = 1.0) -> Measured:
    """The machine as a decoder of `spec` will find it, as far as its settings are `auto`, without loading weights.

    device: `auto`, `cpu`, `cuda:0` …  threads: of torch, as it stands where None. sharing: decoders that share the
    memory of this machine, or of its GPU. Raises what `source.locate` raises.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    config = source.load_config(source.locate(spec.model))
    where = device_named(device)
    dtype = dtype_named(spec.model.dtype, where)
    with torch.device("meta"):
        hf = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=spec.model.trust_remote_code)
        weights = weight_bytes(hf, spec.model.quantization, dtype)
    # Spread over several, each GPU holds its part of every token's KV: the fullest one decides.
    by_gpu = free_by_gpu() if device == SPREAD else {0: _free(where)}
    free = int(len(by_gpu) * min(by_gpu.values()) / sharing) - weights
    return _measured(config, where, dtype, free, spec.settings)


def measure_loaded(model: Model, settings: DecodeSettings) -> Measured:
    """The machine as a model finds it whose weights are loaded already, as far as `settings` are `auto`."""
    return _measured(model.hf.config, model.device, model.dtype, _free(model.device), settings)


def _measured(config: Any, device: torch.device, dtype: torch.dtype, free: int, settings: DecodeSettings) -> Measured:
    found: dict[int, float] = {}
    if AUTO in (settings.tokens_per_step, settings.max_slots):  # KV is decided by memory alone
        found = rates(*mlp_shape(config), dtype, device)
    name = str(device) if device.type == "cpu" else torch.cuda.get_device_name(device)
    return Measured(found, free, name, str(dtype).removeprefix("torch."), torch.get_num_threads())


def mlp_shape(config: Any) -> tuple[int, int]:
    """(hidden, intermediate) size of a model's MLP; four times as wide as the model where no name of it is known."""
    text = config.get_text_config()
    sizes = (getattr(text, name, None) for name in _INTERMEDIATE)
    known = next((size for size in sizes if isinstance(size, int) and size > 0), None)
    return text.hidden_size, known or 4 * text.hidden_size


def _free(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory()


@torch.inference_mode()
def rates(
    hidden: int,
    intermediate: int,
    dtype: torch.dtype,
    device: torch.device,
    rows: Sequence[int] = ROWS,
    seconds: float = _SECONDS,
) -> dict[int, float]:
    """{rows: FLOP/s} of [rows, hidden] x [hidden, intermediate], by the lower quartile of many calls: whatever else
    runs slows most of them down. seconds: of all calls together, about.

    On CPU in the time that this thread, one of those that share the work, ran itself: on a busy machine every long call
    is interrupted, and no short one. Not the fastest call: in it the other threads may have done this one's share.
    """
    size = intermediate * hidden * dtype.itemsize
    weights = [
        torch.full((intermediate, hidden), 0.01, dtype=dtype, device=device)
        for _ in range(max(1, min(256, _BEYOND_CACHE // size)))
    ]
    inputs = {n: torch.full((n, hidden), 0.01, dtype=dtype, device=device) for n in rows}
    # A launch returns before its work is done, and waiting for it costs as much as a small product: many at once.
    on_gpu = device.type == "cuda"
    burst, wait = (32, torch.cuda.synchronize) if on_gpu else (1, lambda: None)
    clock = time.perf_counter if on_gpu else time.thread_time
    turn, calls = itertools.cycle(weights), {n: list[float]() for n in rows}
    for _, (n, x) in itertools.product(range(_ROUNDS), inputs.items()):
        functional.linear(x, next(turn))
        wait()
        end = time.perf_counter() + seconds / _ROUNDS / len(rows)
        while True:
            started = clock()
            for _ in range(burst):
                functional.linear(x, next(turn))
            wait()
            calls[n].append((clock() - started) / burst)
            if time.perf_counter() >= end:
                break
    return {n: 2 * n * hidden * intermediate / sorted(each)[len(each) // 4] for n, each in calls.items()}
