"""One model over several GPUs of one process: whole layers, one GPU after another, by accelerate.

For models that do not fit one GPU; the GPUs work in turn, so that it buys memory and no speed. Hidden states travel
from layer to layer, KV lies where its layer does, and the plan of a step follows (`StepPlan.on`). Checked on a CPU with
devices that are only told apart (tests/core/test_spread.py); not seen to run on GPUs yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hpd_core.settings import SettingsError

#: Device name for all GPUs that this process sees.
SPREAD = "spread"


def free_by_gpu() -> dict[int, int]:
    """Free bytes of each GPU that this process sees; raises SettingsError where there are fewer than two."""
    count = torch.cuda.device_count()
    if count < 2:
        raise SettingsError(f"a model is to be spread over several GPUs, and this process sees {count}")
    return {number: torch.cuda.mem_get_info(number)[0] for number in range(count)}


def device_map(hf: Any, free: Mapping[int, int]) -> dict[str, int]:
    """{module: GPU}, about as many bytes on each, no layer cut in two. free: bytes by GPU.

    Raises SettingsError with the numbers where the layers cannot be laid so.
    """
    from accelerate import infer_auto_device_map

    whole = [m for m in hf.modules() if type(m).__name__ in hf._no_split_modules]
    parts = [*whole, hf.get_input_embeddings(), hf.get_output_embeddings()]
    largest, total = max(map(_bytes, parts)), _bytes(hf)
    # accelerate keeps room for the largest layer on the first one. The last takes what whole layers leave over.
    room = {number: min(size, total // len(free) + largest) for number, size in free.items()}
    room[max(free)] = free[max(free)]
    placed = infer_auto_device_map(hf, max_memory=room, no_split_module_classes=list(hf._no_split_modules))
    if not all(isinstance(place, int) for place in placed.values()):  # else "cpu" or "disk"
        sizes = ", ".join(f"{size / 2**30:,.1f}" for size in free.values())
        raise SettingsError(
            f"the model does not fit: {total / 2**30:,.1f} GiB of weights in layers of up to {largest / 2**30:,.1f} "
            f"GiB, and the GPUs have {sizes} GiB free"
        )
    return dict(placed)


def spread(hf: Any) -> Any:
    """`hf` with its layers on the GPUs that this process sees. Raises what `device_map` raises."""
    from accelerate import dispatch_model

    return dispatch_model(hf, device_map=device_map(hf, free_by_gpu()))


def is_spread(hf: Any) -> bool:
    return len(set(getattr(hf, "hf_device_map", {}).values())) > 1


def _bytes(module: Any) -> int:
    return sum(p.nbytes for p in module.parameters())
