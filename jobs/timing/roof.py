"""The machine's matrix rate, measured in the same run. Imports torch: import it where it is needed."""

from __future__ import annotations

import time

import torch
from torch.nn import functional

#: Rows of the product: around the rows of an HPD step.
ROWS = (128, 256, 512)


@torch.inference_mode()
def gemm_rate(hidden: int, intermediate: int, dtype: torch.dtype, seconds: float) -> float:
    """Best FLOP/s of `F.linear` at the model's MLP shape, [rows, hidden] x [hidden, intermediate], over `ROWS`.

    One weight, again and again: it stays in the processor's cache, which no real forward pass enjoys, so that the roof
    is rather too high. seconds: how long each number of rows is tried, in five parts of which the fastest counts.
    """
    weight = torch.randn(intermediate, hidden, dtype=dtype)
    best = 0.0
    for rows in ROWS:
        x = torch.randn(rows, hidden, dtype=dtype)
        flops = 2 * rows * hidden * intermediate
        functional.linear(x, weight)
        for _ in range(5):
            done, started = 0, time.perf_counter()
            while time.perf_counter() - started < seconds / 5:
                functional.linear(x, weight)
                done += 1
            best = max(best, done * flops / (time.perf_counter() - started))
    return best
