"""How far two people or models who judged the same things agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import TypeVar

V = TypeVar("V", bound=Hashable)


def cohen_kappa(pairs: Mapping[tuple[V, V], int]) -> float | None:
    """Cohen's kappa (Cohen 1960): what of the agreement is more than chance, from -1 to 1, in 3 decimals.

    pairs: {(verdict of one, verdict of the other): how often}. None where both gave one and the same verdict
    throughout, which leaves nothing to chance, and where there is no pair.
    """
    mine: Counter[V] = Counter()
    theirs: Counter[V] = Counter()
    same = 0
    for (one, other), count in pairs.items():
        mine[one] += count
        theirs[other] += count
        same += count if one == other else 0
    total = mine.total()
    by_chance = sum(mine[verdict] * theirs[verdict] for verdict in mine)
    if by_chance == total**2:  # whole numbers, so that 1 is 1
        return None
    expected = by_chance / total**2
    return round((same / total - expected) / (1 - expected), 3)
