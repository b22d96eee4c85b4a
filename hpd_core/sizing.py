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


@dataclass(frozen=True, slots=True)
class Measured:
    """A machine as one decoder finds it.

    rates: FLOP/s of the model's MLP-shaped product, by its rows. free_bytes: memory that this decoder may take, weights
    and its share of what several decoders take from one machine already taken off; may be negative.
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
        best = max(self.rates.values())
        shares = ", ".join(f"{rows} {100 * rate / best:.0f} %" for rows, rate in self.rates.items())
        threads = f", {self.threads} thread(s)" if self.device == "cpu" else ""
        return (
            f"{self.device}, {self.dtype}{threads}: {best / 1e9:,.0f} GFLOP/s; of it, by rows of a product: {shares}; "
            f"{self.free_bytes / 2**30:.1f} GiB free beside the weights"
        )


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


def kv_bytes_per_token(config: Any, itemsize: int) -> int:
    """Bytes of one token's keys and values in all layers, of a model's configuration; layers are taken to be alike."""
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return int(2 * text.num_hidden_layers * heads * width * itemsize)


def free_memory() -> int:
    """Bytes that can be had without swapping, under this control group's limit, of which psutil knows nothing."""
    free = int(psutil.virtual_memory().available)
    with suppress(OSError, ValueError):  # "max" where there is no limit
        group = Path("/sys/fs/cgroup")
        limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        free = min(free, max(0, limit - used))
    return free
