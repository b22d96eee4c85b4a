"""Pieces of Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence


def cell(text: str) -> str:
    """A text inside a table: a bar would end the cell, a line end the table, a '<' might begin a tag."""
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").split())


def bounds(interval: Sequence[float]) -> str:
    return f"{interval[0]:.2f} to {interval[1]:.2f}"


def table_head(names: Sequence[str]) -> list[str]:
    """The first two lines of a table whose first column is text and whose others are numbers."""
    return [table_row(names), "|---|" + "---:|" * (len(names) - 1)]


def table_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
