"""What a decoder ran on, as people name it: a price or a speed means nothing without it."""

from __future__ import annotations

import platform
import sys
from functools import lru_cache
from pathlib import Path

from pipeline.job import Decoder


def device_name(decoder: Decoder, device: str, threads: int) -> str:
    """Name of the GPU, or of the processor with the number of threads.

    device: what was asked for; where the decoder knows its own, as the real one does, that counts.
    """
    own = own_device(decoder, device)
    torch = sys.modules.get("torch")
    if own.startswith("cuda") and torch is not None:
        several = f"{torch.cuda.device_count()} x " if device == "spread" else ""
        return f"{several}{torch.cuda.get_device_name(own)}"
    return f"{processor()}, {threads} thread{'s' if threads != 1 else ''}"


def own_device(decoder: Decoder, device: str) -> str:
    """Where a decoder's model lies, as torch names it; `device` where it has none, as a fake."""
    return str(getattr(getattr(decoder, "model", None), "device", device))


def commit_of(decoder: Decoder) -> str:
    """Commit of a model that came from the hub, empty where it did not: a revision may be a branch, which moves."""
    config = getattr(getattr(getattr(decoder, "model", None), "hf", None), "config", None)
    return str(getattr(config, "_commit_hash", None) or "")


@lru_cache(maxsize=1)
def processor() -> str:
    """The processor's model, as the kernel names it; its architecture where nobody says more."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = next((line.partition(":")[2] for line in lines if line.startswith("model name")), "")
    return " ".join((named or platform.processor() or platform.machine() or "an unknown processor").split())
