"""Whether an actor stays as fast, and as small, however long it lives: figures of `jobs.benchmark_steady`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from jobs.timing.scale_report import line_through

#: Share of the rows after which caches and allocators are taken to be full.
_WARM = 0.1


def speed_figures(passes: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
    """passes: (few rows, many rows) as `bare.Pass`, one pair a round. Speed of many over few: in documents, and in
    tokens, which other lengths among the further rows do not move."""

    def ratios(unit: str) -> dict[str, float]:
        rates = [tuple(getattr(p, unit) / p.seconds for p in pair) for pair in passes]
        rounds = [many / few for few, many in rates]
        whole = median(many for _, many in rates) / median(few for few, _ in rates)
        return {"median": whole, "low": min(rounds), "high": max(rounds)}

    return {
        "rows": [p.documents for p in passes[0]],
        "seconds": [[p.seconds for p in pair] for pair in passes],
        "docs_per_second": [median(pair[n].documents / pair[n].seconds for pair in passes) for n in (0, 1)],
        "many_over_few": {"documents": ratios("documents"), "tokens": ratios("tokens")},
    }


def memory_figures(samples: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """samples: (rows done, bytes resident) after each unit. Growth is that of a line through what comes after the first
    tenth of the rows."""
    rows = samples[-1][0]
    warm = [(done, size) for done, size in samples if done >= _WARM * rows]
    line = line_through(warm)
    return {
        "rows": rows,
        "mib_warm": round(warm[0][1] / 2**20, 1),
        "mib_end": round(warm[-1][1] / 2**20, 1),
        "mib_most": round(max(size for _, size in samples) / 2**20, 1),
        "mib_per_100_000_rows": None if line is None else round(line["slope"] * 1e5 / 2**20, 2),
        "samples": [(done, round(size / 2**20, 1)) for done, size in samples],
    }
