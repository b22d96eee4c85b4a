"""Figures of a benchmark as bars, placed in pixels: the template only draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Pixels: of a line, of the longest bar, and of the labels left of the bars.
LINE, LENGTH, LABELS = 24, 420, 300


@dataclass(frozen=True, slots=True)
class Bar:
    """One engine. y: top of its line. length: of the bar. low, high: ends of its whisker, None for none. All in pixels
    from the beginning of the bars."""

    label: str
    text: str
    y: int
    length: float
    low: float | None = None
    high: float | None = None
    ours: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    bars: tuple[Bar, ...]

    @property
    def height(self) -> int:
        return LINE * len(self.bars)

    @property
    def width(self) -> int:
        return LABELS + LENGTH + 100


def charts(facts: Mapping[str, Any]) -> list[Chart]:
    """Documents per second with slowest and fastest round as whiskers, share of the roofline, FLOPs per document."""
    rows = facts["engines"]
    top = max(row["docs_per_second_spread"][1] for row in rows)
    speed = [
        _bar(n, row, row["docs_per_second"] / top, f"{row['docs_per_second']:.2f}", row["docs_per_second_spread"], top)
        for n, row in enumerate(rows)
    ]
    roof = [_bar(n, row, row["roofline_share"], f"{100 * row['roofline_share']:.0f} %") for n, row in enumerate(rows)]
    most = max(row["needed_flops_per_document"] for row in rows)
    work = [
        _bar(n, row, row["needed_flops_per_document"] / most, f"{row['needed_flops_per_document'] / 1e9:.2f}")
        for n, row in enumerate(rows)
    ]
    return [
        Chart("Documents per second: median, slowest and fastest round", tuple(speed)),
        Chart("Share of the roofline (the full width is 100 %)", tuple(roof)),
        Chart("GFLOP per document that the method needs", tuple(work)),
    ]


def _bar(
    number: int, row: Mapping[str, Any], share: float, text: str, spread: Sequence[float] = (), top: float = 1.0
) -> Bar:
    low, high = (LENGTH * end / top for end in spread) if spread else (None, None)
    length = LENGTH * min(1.0, share)
    return Bar(row["label"], text, number * LINE, length, low, high, row["engine"] == "hpd" and not row["without"])
