"""The drawing of a training: every logged step and epoch is in it, at its place, in one file without needs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from selectolax.lexbor import LexborHTMLParser

from jobs.training.curve import CURVE, HEIGHT, MOST_POINTS, WIDTH, draw, ticks, write_curve


def step(number: int, epoch: int = 0, loss: float = 1.0, targets: int = 10, rate: float = 0.5) -> dict[str, Any]:
    facts = {"step": number, "steps": 40, "epoch": epoch, "loss": loss, "targets": targets}
    return facts | {"learning_rate": rate, "seconds": 2.0}


def scored(number: int, epoch: int, f1: float, strict: float) -> dict[str, Any]:
    return {"step": number, "epoch": epoch, "score": (f1 + strict) / 2, "f1": f1, "strict_f1": strict, "seconds": 7.0}


def log(folder: Path, lines: Sequence[Mapping[str, Any]], tail: str = "") -> Path:
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)
    return path


@pytest.mark.parametrize("low, high", [(0, 1.94), (59.51, 75.72), (0, 0.001), (3, 3), (0, 520), (0, 0), (99.9, 100)])
def test_ticks_are_few_round_numbers_that_hold_the_values(low: float, high: float) -> None:
    at = ticks(low, high, 5)
    assert 2 <= len(at) <= 7 and at[0] <= low + 1e-9 and at[-1] >= high - 1e-9
    widths = {f"{b - a:e}" for a, b in pairwise(at)}
    assert len(widths) == 1 and float(widths.pop().split("e")[0]) in (1, 2, 5)


def test_every_step_and_epoch_is_drawn_at_its_place() -> None:
    lines = [step(n, epoch=(n - 1) // 4, loss=2.0 - n / 4, rate=n / 8) for n in range(1, 9)]
    losses, rates, scores = draw(lines, [scored(4, 0, 50.0, 40.0), scored(8, 1, 60.0, 55.0)]).panels
    raw, smoothed = losses.lines
    assert raw.points == tuple((WIDTH * n / 8, HEIGHT * (1 - (2 - n / 4) / 2)) for n in range(1, 9))
    assert smoothed.points == raw.points, "few steps are their own mean"
    assert [y for _, y in rates.lines[0].points] == pytest.approx([HEIGHT * (1 - n / 8) for n in range(1, 9)])
    f1, strict = scores.lines
    assert (f1.labels, strict.labels) == (("50.0", "60.0"), ("40.0", "55.0"))
    assert [x for x, _ in f1.points] == [WIDTH / 2, WIDTH] and f1.points[0][1] < strict.points[0][1]
    assert draw(lines, []).epochs == ((0, WIDTH / 2, 1), (WIDTH / 2, WIDTH, 2))


def test_the_smoothed_loss_counts_tokens_and_looks_to_both_sides() -> None:
    lines = [step(n, loss=4.0 if n == 50 else 0.0, targets=30 if n == 50 else 10) for n in range(1, 101)]
    drawing = draw(lines, [])
    assert drawing.window == 5
    top = 4.0
    heights = [top * (1 - y / HEIGHT) for _, y in drawing.panels[0].lines[1].points]
    assert heights[46:53] == pytest.approx([0, *[4 * 30 / 70] * 5, 0])


def test_a_long_log_is_thinned_and_keeps_its_last_step() -> None:
    drawing = draw([step(n) for n in range(1, 5002)], [])
    points = drawing.panels[0].lines[0].points
    assert len(points) <= MOST_POINTS + 1 and points[-1][0] == WIDTH


def test_the_page_needs_nothing_else_and_escapes_what_is_not_ours(tmp_path: Path) -> None:
    lines = [step(1), step(2), scored(2, 0, 71.234, 60.0), step(3, 1), scored(3, 1, 70.0, 60.0)]
    path = write_curve(log(tmp_path, lines, tail='{"step": 4, "ep'), "<b>tuned</b>")
    assert path == tmp_path / CURVE
    text = path.read_text()
    assert "<b>tuned" not in text and not re.search(r"<script|https?://|@import|url\(", text)
    page = LexborHTMLParser(text)
    rows = {row.css_first("th").text(): row.css_first("td").text() for row in page.css("table tr")}
    assert rows["steps"] == "3 of 40" and rows["best epoch"] == "1: F1 71.23, strict F1 60.00"
    assert (rows["seconds in steps"], rows["seconds in validation"]) == ("6", "14")
    assert [node.text() for node in page.css("text.mark.first")] == ["71.2", "70.0"]
    names = [node.text() for node in page.css("text.name")]
    assert names == ["loss, nats per token", "learning rate", "validation, percent"]
    assert all(node.text() for node in page.css("svg text"))


def test_without_validation_or_steps(tmp_path: Path) -> None:
    path = write_curve(log(tmp_path, [step(1)]), "x")
    assert path is not None and "validation, percent" not in path.read_text()
    path.unlink()
    assert write_curve(log(tmp_path, []), "x") is None and write_curve(tmp_path / "no.jsonl", "x") is None
    assert not path.exists()
