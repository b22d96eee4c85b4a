"""Pictures of a cost report, placed in units of a drawing that is as wide as a phone: the template only draws."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.costs.told import Pieces, tell
from jobs.scores.axes import ticks

#: Units of a picture: whole width; of a plane, its drawing area and the room left of it; of a bar, its pitch.
WIDTH = 360
AREA_WIDTH, AREA_HEIGHT, LEFT = 284, 180, 56
PITCH = 34
#: Points of a plane at most: more say no more, and make the page heavy.
MOST_POINTS = 400


@dataclass(frozen=True, slots=True)
class Beam:
    """One bar. length, second: of the bar and of a thin one below it, low, high: ends of a whisker; all in units."""

    label: Pieces
    value: Pieces
    length: float
    second: float | None = None
    low: float | None = None
    high: float | None = None
    ours: bool = False


@dataclass(frozen=True, slots=True)
class Bars:
    """Labelled bars below each other. legend: names of bar and thin bar, where there are both."""

    title: str
    beams: tuple[Beam, ...]
    legend: tuple[str, str] | None = None

    @property
    def height(self) -> int:
        return PITCH * len(self.beams) + (20 if self.legend else 4)


@dataclass(frozen=True, slots=True)
class Plane:
    """Two axes. points: dots; line: a curve; band: the outline of an interval about it; all (x, y), y downwards.
    across, up: ticks (place, label)."""

    title: str
    x_name: str
    y_name: str
    across: tuple[tuple[float, str], ...]
    up: tuple[tuple[float, str], ...]
    points: tuple[tuple[float, float], ...] = ()
    line: tuple[tuple[float, float], ...] = ()
    band: tuple[tuple[float, float], ...] = ()

    @staticmethod
    def path(points: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def bars(
    facts: Mapping[str, Any],
    title: str,
    path: str,
    label: str,
    value: tuple[str, str],
    *,
    second: str = "",
    legend: tuple[str, str] | None = None,
    ours: str = "",
    most: int = 40,
) -> Bars:
    """A bar per item of the list at `path`. label: a text over the item's fields, `{name:text}`; value: (field, spec);
    second: a field for a thin bar; ours: the value of the field `name` that is told apart by its colour."""
    items = _list(facts, path)
    shares = [float(item[value[0]]) for item in items] + [float(item[second]) for item in items if second]
    top = max([*shares, 1e-300])
    beams = []
    for number, item in enumerate(items[:most]):
        where = f"{path}.{number}"
        beams.append(
            Beam(
                label=tell(facts, label.replace("{", f"{{{where}.")),
                value=tell(facts, f"{{{where}.{value[0]}:{value[1]}}}"),
                length=max(0.5, WIDTH * 0.98 * float(item[value[0]]) / top),
                second=max(0.5, WIDTH * 0.98 * float(item[second]) / top) if second else None,
                ours=bool(ours) and item.get("name") == ours,
            )
        )
    return Bars(title, tuple(beams), legend)


def curve(title: str, sizes: Sequence[Mapping[str, Any]]) -> Plane:
    """Dollars over corpus size, both in powers of ten, with the interval as a band."""
    dollars = [value for size in sizes for value in (size["dollars"], size["low"], size["high"]) if value]
    left, right = (math.log10(sizes[place]["documents"]) for place in (0, -1))
    bottom, top = math.floor(math.log10(min(dollars))), math.ceil(math.log10(max(dollars)))
    top = max(top, bottom + 1)

    def place(documents: float, value: float) -> tuple[float, float]:
        x = (math.log10(documents) - left) / (right - left) * AREA_WIDTH
        return x, AREA_HEIGHT * (top - math.log10(value)) / (top - bottom)

    line = tuple(place(size["documents"], size["dollars"]) for size in sizes)
    band: tuple[tuple[float, float], ...] = ()
    if all(size["low"] for size in sizes):
        band = tuple(place(s["documents"], s["low"]) for s in sizes)
        band += tuple(place(s["documents"], s["high"]) for s in reversed(sizes))
    across = [(place(10.0**n, 10.0**bottom)[0], _power(n)) for n in range(math.ceil(left), math.floor(right) + 1)]
    every = math.ceil((top - bottom) / 6)
    up = [(AREA_HEIGHT * (top - n) / (top - bottom), f"${_power(n)}") for n in range(bottom, top + 1, every)]
    return Plane(title, "documents", "dollars", tuple(across), tuple(up), line=line, band=band)


def scatter(title: str, x_name: str, y_name: str, found: Sequence[tuple[float, float]]) -> Plane:
    """Dots; every so-manieth where there are many."""
    found = found[:: math.ceil(len(found) / MOST_POINTS)]
    x_at, y_at = (ticks(0, max(point[axis] for point in found), 5) for axis in (0, 1))
    right, top = x_at[-1], y_at[-1]
    places = tuple((AREA_WIDTH * x / right, AREA_HEIGHT * (1 - y / top)) for x, y in found)
    across = tuple((AREA_WIDTH * x / right, f"{x:.6g}") for x in x_at)
    up = tuple((AREA_HEIGHT * (1 - y / top), f"{y:.6g}") for y in y_at)
    return Plane(title, x_name, y_name, across, up, points=places)


def _power(n: int) -> str:
    """10 to the n for an axis."""
    names = {3: "k", 6: "M", 9: "G"}
    if 3 <= n < 12:
        return f"{10 ** (n % 3)}{names[n - n % 3]}"
    return f"{10.0**n:g}"


def _list(facts: Mapping[str, Any], path: str) -> list[Any]:
    found: Any = facts
    for step in path.split("."):
        found = found[step]
    return list(found)
