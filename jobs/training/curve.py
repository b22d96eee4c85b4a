"""The log of a training as a drawing: loss, learning rate and validation scores over the same steps."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from jobs.scores.axes import ticks
from jobs.scores.pages import training_page, write_page

CURVE = "curve.html"
#: Size of a panel's drawing area in the picture's own units, and room to its left for numbers.
WIDTH, HEIGHT, LEFT = 720, 170, 64
#: Most points of one line; a longer log is drawn at every so-manieth step.
MOST_POINTS = 1500
#: (key of the log, name, look of the curve)
_SCORES = (("f1", "F1", "first"), ("strict_f1", "strict F1", "second"))


@dataclass(frozen=True, slots=True)
class Line:
    """One curve. kind: names its look in the template. points: (x, y) in the panel, y downwards; labels: one per point
    that has a mark, in the curve's own unit, none for a line without marks."""

    name: str
    kind: str
    points: tuple[tuple[float, float], ...]
    labels: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in self.points)


@dataclass(frozen=True, slots=True)
class Panel:
    """One axis of values over the common axis of steps. ticks: (y, label)."""

    title: str
    lines: tuple[Line, ...]
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class Drawing:
    """All panels. steps: ticks of the common axis, (x, label). epochs: (x of its begin, x of its end, number from 1).
    window: most steps that one point of the smoothed loss is the mean of."""

    panels: tuple[Panel, ...]
    steps: tuple[tuple[float, str], ...]
    epochs: tuple[tuple[float, float, int], ...]
    window: int


def write_curve(log: Path, heading: str) -> Path | None:
    """Draws a training's log into a page beside it, whole whether or not the training was resumed; its path, None where
    no step is logged yet."""
    lines = _read(log)
    steps = [line for line in lines if "loss" in line]
    if not steps:
        return None
    scored = [line for line in lines if "score" in line]
    best = max(scored, key=lambda line: line["score"], default=None)
    tail = steps[-_window(len(steps)) :]
    facts = {
        "steps": f"{steps[-1]['step']:,} of {steps[-1]['steps']:,}",
        "loss": f"{_mean(tail):.3f} nats per token, mean of the last {len(tail)} steps",
        "seconds in steps": f"{sum(line['seconds'] for line in steps):,.0f}",
        "seconds in validation": f"{sum(line['seconds'] for line in scored):,.0f}" if scored else "",
        "best epoch": f"{best['epoch'] + 1}: {_of(best)}" if best else "",
        "last epoch": f"{scored[-1]['epoch'] + 1}: {_of(scored[-1])}" if scored else "",
    }
    page = training_page(
        {name: text for name, text in facts.items() if text}, draw(steps, scored), (WIDTH, HEIGHT, LEFT), heading
    )
    path = log.with_name(CURVE)
    write_page(path, page)
    return path


def draw(steps: Sequence[Mapping[str, Any]], scored: Sequence[Mapping[str, Any]]) -> Drawing:
    """steps: log lines of steps, at least one. scored: log lines of validated epochs."""
    last = steps[-1]["step"]
    window = _window(len(steps))
    every = math.ceil(len(steps) / MOST_POINTS)
    ends = [*(b["step"] - 1 for a, b in pairwise(steps) if a["epoch"] != b["epoch"]), last]
    begins = [steps[0]["step"] - 1, *ends[:-1]]
    numbers = dict.fromkeys(line["epoch"] + 1 for line in steps)
    half = window // 2
    smoothed = [(line["step"], _mean(steps[max(0, n - half) : n + half + 1])) for n, line in enumerate(steps)]

    def thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        """Every so-manieth point, the last one always."""
        return [*points[:-1:every], points[-1]]

    raw = thin([(line["step"], line["loss"]) for line in steps])
    rates = thin([(line["step"], line["learning_rate"]) for line in steps])
    losses = [("each step", "raw", raw), ("smoothed", "first", thin(smoothed))]
    panels = [
        _panel("loss, nats per token", losses, last, zero=True),
        _panel("learning rate", [("learning rate", "first", rates)], last, zero=True),
    ]
    curves = [(name, kind, [(line["step"], line[key]) for line in scored]) for key, name, kind in _SCORES]
    if scored:
        panels.append(_panel("validation, percent", curves, last, marks=True))
    return Drawing(
        tuple(panels),
        tuple((_x(step, last), f"{step:,.0f}") for step in ticks(0, last, 6) if step <= last),
        tuple((_x(a, last), _x(b, last), n) for a, b, n in zip(begins, ends, numbers, strict=True)),
        window,
    )


def _panel(
    title: str,
    curves: Sequence[tuple[str, str, Sequence[tuple[float, float]]]],
    last: float,
    *,
    zero: bool = False,
    marks: bool = False,
) -> Panel:
    values = [y for _, _, points in curves for _, y in points if math.isfinite(y)]
    at = ticks(0 if zero else min(values, default=0), max(values, default=1), 5)
    bottom, top = at[0], at[-1]
    lines = []
    for name, kind, points in curves:
        known = [(x, y) for x, y in points if math.isfinite(y)]
        places = tuple((_x(x, last), HEIGHT * (top - y) / (top - bottom)) for x, y in known)
        lines.append(Line(name, kind, places, tuple(f"{y:.1f}" for _, y in known) if marks else ()))
    return Panel(title, tuple(lines), tuple((HEIGHT * (top - y) / (top - bottom), f"{y:.6g}") for y in at))


def _x(step: float, last: float) -> float:
    return WIDTH * step / last


def _window(steps: int) -> int:
    return min(51, steps // 25) // 2 * 2 + 1  # odd: as many steps before as behind


def _mean(steps: Sequence[Mapping[str, Any]]) -> float:
    """Loss per token of several steps together: each counts as often as it had tokens to learn."""
    tokens = sum(line["targets"] for line in steps)
    return sum(line["loss"] * line["targets"] for line in steps) / max(1, tokens)


def _of(line: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {line[key]:.2f}" for key, name, _ in _SCORES)


def _read(log: Path) -> list[dict[str, Any]]:
    lines = []
    for text in log.read_text(encoding="utf-8").splitlines() if log.exists() else ():
        try:
            lines.append(json.loads(text))
        except ValueError:  # a kill came while it was written; a resumed run drops it from the log
            continue
    return lines
