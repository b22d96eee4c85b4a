"""What `auto` settings become, by arithmetic on what `probe.py` measures where the model is to run. Knows no torch.

Decided once: whoever decodes is handed numbers, and a job keeps them, so that all its actors and reruns use the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from hpd_core.settings import AUTO, SIZES, DecodeSettings

#: Numbers of rows that are tried: a step is one of these.
ROWS = (32, 64, 128, 256, 512, 1024, 2048)
#: A step is large enough where its products run at this share of the best rate.
NEAR = 0.9
#: Open slots per row of a step. Fewer than 1 leave rows empty; a document that is prefilled holds slots for a while
#: before they feed a row.
SLOTS_PER_ROW = 2
#: Share of the free memory that KV may take. The rest is for shared prefixes, a step's activations and logits, and
#: whatever else runs.
KV_SHARE = 0.5
_LEAST_KV_MIB = 16
_GROUP = Path("/sys/fs/cgroup")
#: Of a control group's memory.stat, as the kernel's guide to cgroup v2 names them.
_RECLAIMABLE = ("inactive_file", "active_file", "slab_reclaimable")


@dataclass(frozen=True, slots=True)
class Measured:
    """A machine as one decoder finds it.

    rates: FLOP/s of the model's MLP-shaped product, by its rows; empty where nothing is decided by them.
    free_bytes: memory that this decoder may take, weights and its share of what several decoders take from one machine
        already taken off; may be negative.
    """

    rates: Mapping[int, float]
    free_bytes: int
    device: str
    dtype: str
    threads: int

    def as_dict(self) -> dict[str, Any]:
        """JSON-able, in GFLOP/s and MiB."""
        return {
            "device": self.device,
            "dtype": self.dtype,
            "threads": self.threads,
            "gflops_by_rows": {str(rows): round(rate / 1e9, 1) for rows, rate in self.rates.items()},
            "free_mib": self.free_bytes // 2**20,
        }

    def __str__(self) -> str:
        threads = f", {self.threads} thread(s)" if self.device == "cpu" else ""
        speed = ""
        if self.rates:
            best = max(self.rates.values())
            shares = ", ".join(f"{rows} {100 * rate / best:.0f} %" for rows, rate in self.rates.items())
            speed = f"{best / 1e9:,.0f} GFLOP/s; of it, by rows of a product: {shares}; "
        free = f"{self.free_bytes / 2**30:.1f} GiB free beside the weights"
        return f"{self.device}, {self.dtype}{threads}: {speed}{free}"


def knee(rates: Mapping[int, float], near: float = NEAR) -> int:
    """The fewest rows whose rate is at least `near` of the best one."""
    best = max(rates.values())
    return min(rows for rows, rate in rates.items() if rate >= near * best)


def decided(settings: DecodeSettings, measured: Measured) -> DecodeSettings:
    """`settings` with numbers in place of `auto`."""
    if settings.tokens_per_step == AUTO:
        settings = replace(settings, tokens_per_step=knee(measured.rates))
    if settings.kv_mib == AUTO:
        settings = replace(settings, kv_mib=max(_LEAST_KV_MIB, int(measured.free_bytes * KV_SHARE) >> 20))
    if settings.max_slots == AUTO:
        settings = replace(settings, max_slots=SLOTS_PER_ROW * settings.step_rows)
    return settings


def reused(settings: DecodeSettings, before: Mapping[str, Any]) -> DecodeSettings:
    """`settings` with what was decided `before`, as a job's facts keep it, in place of `auto`; as they are where there
    was nothing before."""
    if not before:
        return settings
    known: dict[str, Any] = {name: before.get(name) for name in SIZES if getattr(settings, name) == AUTO}
    return replace(settings, **known)


def defaults(settings: DecodeSettings) -> DecodeSettings:
    """`settings` with the defaults in place of `auto`, for whoever has nothing to decode."""
    return reused(settings, asdict(DecodeSettings()))


def shown(settings: DecodeSettings) -> str:
    kv = "any amount" if settings.kv_mib is None else f"{settings.kv_mib:,} MiB"
    return f"{settings.tokens_per_step:,} tokens per step, {settings.max_slots:,} slots, {kv} of KV"


def free_memory(group: Path = _GROUP) -> int:
    """Bytes that can be had without swapping, under the limit of a control group (version 2), of which psutil knows
    nothing. group: its folder."""
    free = int(psutil.virtual_memory().available)
    with suppress(OSError, ValueError):  # "max" where there is no limit
        limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        free = min(free, max(0, limit - used + _reclaimable(group)))
    return free


def _reclaimable(group: Path) -> int:
    """Bytes that a control group counts as used and gives back where they are wanted: pages of files that were read,
    as the weights of a model are, would else look like memory that is taken."""
    with suppress(OSError, ValueError):
        facts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return sum(int(facts.get(name, 0)) for name in _RECLAIMABLE)
    return 0
