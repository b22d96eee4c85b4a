"""Whether the totals that a job wrote down are the sums over its units."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def unequal(stored: Mapping[str, Any], wanted: Mapping[str, Any], path: str = "") -> list[str]:
    """One line per number that is not the units' sum. A count that an older version did not know yet is 0; seconds are
    rounded in each unit."""
    lines: list[str] = []
    for key, sum_ in wanted.items():
        value = stored.get(key, {} if isinstance(sum_, Mapping) else 0)
        where = f"{path}.{key}".lstrip(".")
        if isinstance(sum_, Mapping) and isinstance(value, Mapping):
            lines += unequal(value, sum_, where)
            lines += [f"{where}.{k} is {value[k]}, which no unit counts" for k in value if k not in sum_ and value[k]]
        elif isinstance(sum_, float) and isinstance(value, int | float):
            if not math.isclose(value, sum_, rel_tol=1e-4, abs_tol=1e-3):
                lines.append(f"{where} is {value}, and the units' manifests give {sum_}")
        elif value != sum_:
            lines.append(f"{where} is {value}, and the units' manifests give {sum_}")
    return lines
