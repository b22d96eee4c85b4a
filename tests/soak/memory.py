"""Resident memory of drivers and actors, and whether it grows with the rows that they have seen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil

#: Samples that a process must have, and of them the first share, which is imports and first buffers.
LEAST, WARM = 12, 0.5
#: Rows that all of them together must have seen: what a process gains over fewer says nothing.
LEAST_ROWS = 100_000


@dataclass(frozen=True)
class Sample:
    """role: `driver` | `actor`. process: its id with the time of its start. rows: that the job had done.

    bytes: resident and its own. Blocks that it has mapped from Ray's object store are not: they come and go.
    """

    role: str
    process: str
    rows: int
    bytes: int


def sample(role: str, process: psutil.Process, rows: int) -> Sample | None:
    """What `process` holds now; None where it has ended."""
    try:
        memory: Any = process.memory_info()
        return Sample(role, f"{process.pid}@{process.create_time():.0f}", rows, memory.rss - memory.shared)
    except psutil.Error:
        return None


def slope(samples: Iterable[Sample]) -> float | None:
    """Bytes that a process gains per row of the job: one slope through the second halves of all lives that are long
    enough, each with a level of its own. None where these have seen too little."""
    lives: defaultdict[str, list[Sample]] = defaultdict(list)
    for one in samples:
        lives[one.process].append(one)
    x, y, seen = [], [], 0
    for life in lives.values():
        settled = life[int(len(life) * WARM) :]
        if len(life) >= LEAST and settled[-1].rows > settled[0].rows:
            seen += settled[-1].rows - settled[0].rows
            x += list(_centred([s.rows for s in settled]))
            y += list(_centred([s.bytes for s in settled]))
    return float(np.dot(x, y) / np.dot(x, x)) if seen >= LEAST_ROWS else None


def _centred(values: Sequence[int]) -> np.ndarray:
    return np.asarray(values, float) - np.mean(values)
