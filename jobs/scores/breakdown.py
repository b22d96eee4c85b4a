"""Scores of the parts of a run: per category, and per attribute of a category."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.scores.dataset import BenchmarkRow
from jobs.scores.scoring import Outcome, Scores, outcomes, tally


@dataclass(frozen=True, slots=True)
class Part:
    """Scores of one category, or of one attribute of it (the same name in two categories is two attributes)."""

    category: str
    attribute: str | None
    scores: Scores

    @property
    def key(self) -> tuple[str, str | None]:
        return self.category, self.attribute

    def as_dict(self) -> dict[str, Any]:
        """A line of a table. gold, predicted, correct and extra are slots, the rest is percent.

        precision and f1 leave out `extra`, values for attributes that a row's gold does not name; strict_f1 does not.
        """
        names = {"category": self.category} | ({} if self.attribute is None else {"attribute": self.attribute})
        return names | {
            "gold": self.scores.gold,
            "predicted": self.scores.predicted,
            "correct": self.scores.vc,
            "extra": self.scores.extra,
            "precision": self.scores.precision,
            "recall": self.scores.recall,
            "f1": self.scores.f1,
            "strict_f1": self.scores.strict_f1,
        }


def by_category(rows: Sequence[BenchmarkRow], predictions: Sequence[Mapping[str, str | None]]) -> list[Part]:
    """One part per category, in the order of the rows."""
    found: dict[str, list[Outcome]] = defaultdict(list)
    for row, said in zip(rows, predictions, strict=True):
        found[row.category] += [outcome for _, outcome in outcomes(row.gold, said)]
    return [Part(category, None, tally(slots)) for category, slots in found.items()]


def by_attribute(rows: Sequence[BenchmarkRow], predictions: Sequence[Mapping[str, str | None]]) -> list[Part]:
    """One part per attribute that a row's gold names or that has a value, `in_order`."""
    found: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for row, said in zip(rows, predictions, strict=True):
        for attribute, outcome in outcomes(row.gold, said):
            found[row.category, attribute].append(outcome)
    parts = [Part(category, attribute, tally(slots)) for (category, attribute), slots in found.items()]
    return in_order(parts, [row.category for row in rows])


def in_order(parts: Iterable[Part], categories: Iterable[str]) -> list[Part]:
    """Attributes by category, as `categories` come; in each the ones with most gold values first, then by name."""
    places = {category: place for place, category in enumerate(dict.fromkeys(categories))}
    return sorted(parts, key=lambda part: (places[part.category], -part.scores.gold, part.attribute or ""))
