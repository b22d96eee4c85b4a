"""The most memory that a process, and its GPU, held for a while: what a machine must have for the same work."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

#: Names in `Metrics.peak_memory`: resident memory of the actor's process; what its tensors took of a GPU.
RESIDENT, DEVICE = "resident", "device"


def forget_peak(device: str = "") -> None:
    """Begins to look for the peak anew. device: of the decoder, as torch names it."""
    with suppress(OSError):  # not ours to write in some containers: the peak is then that of the whole life
        Path("/proc/self/clear_refs").write_text("5")
    torch = sys.modules.get("torch")
    if device.startswith("cuda") and torch is not None:
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: str = "") -> dict[str, int]:
    """{`RESIDENT` or `DEVICE`: bytes} since `forget_peak`; without what nobody can tell here."""
    found = {}
    if resident := resident_bytes("VmHWM"):
        found[RESIDENT] = resident
    torch = sys.modules.get("torch")
    if device.startswith("cuda") and torch is not None:
        found[DEVICE] = int(torch.cuda.max_memory_allocated(device))
    return found


def resident_bytes(name: str) -> int:
    """VmRSS (now) or VmHWM (the most) of this process; 0 on other systems than Linux."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)
