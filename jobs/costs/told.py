"""A report as data: prose, tables and pictures whose every number names the field of the JSON that it is read from.

Prose is written as a text with fields in braces, `{estimate.dollars:usd}`: a path into the facts and how to show what
is there. A number cannot stand in a report in any other way, and every form of the report is written from one content.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_FIELD = re.compile(r"\{([\w.]+):(\w+)\}")
NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Figure:
    """A value out of the facts. path: steps with dots between, numbers for places in a list. spec: see `shown`."""

    path: str
    spec: str
    text: str


Pieces = tuple[str | Figure, ...]


@dataclass(frozen=True, slots=True)
class Paragraph:
    """warning: what a reader must not miss."""

    pieces: Pieces
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Grid:
    """A table. numbers: which columns are numbers."""

    heads: tuple[Pieces, ...]
    rows: tuple[tuple[Pieces, ...], ...]
    numbers: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Chapter:
    """parts: paragraphs, tables and pictures (see drawing.py) in order."""

    title: str
    parts: list[Any] = field(default_factory=list)


def tell(facts: Mapping[str, Any], text: str) -> Pieces:
    """`text` with its fields read from the facts. Raises KeyError for a field that is not there, and ValueError for a
    digit outside of one: it could come from anywhere."""
    pieces: list[str | Figure] = []
    at = 0
    for match in _FIELD.finditer(text):
        pieces.append(text[at : match.start()])
        path, spec = match.groups()
        pieces.append(Figure(path, spec, shown(resolve(facts, path), spec)))
        at = match.end()
    pieces.append(text[at:])
    stray = next((piece for piece in pieces if isinstance(piece, str) and re.search(r"[\d{}]", piece)), None)
    if stray is not None:
        raise ValueError(f"a number that is no field stands in {stray!r}")
    return tuple(piece for piece in pieces if piece)


def paragraph(facts: Mapping[str, Any], text: str, *, warning: bool = False) -> Paragraph:
    return Paragraph(tell(facts, " ".join(text.split())), warning)


def grid(facts: Mapping[str, Any], path: str, columns: Sequence[tuple[str, str, str]]) -> Grid:
    """A line per item of the list at `path`. columns: (head, field of the item, spec)."""
    items = resolve(facts, path)
    rows = [
        tuple(tell(facts, f"{{{path}.{number}.{name}:{spec}}}") for _, name, spec in columns)
        for number in range(len(items))
    ]
    heads = tuple(tell(facts, head) for head, _, _ in columns)
    return Grid(heads, tuple(rows), tuple(spec != "text" for _, _, spec in columns))


def resolve(facts: Any, path: str) -> Any:
    """The value at a path. Raises KeyError."""
    for step in path.split("."):
        try:
            facts = facts[int(step)] if isinstance(facts, list | tuple) else facts[step]
        except (KeyError, IndexError, TypeError, ValueError):
            raise KeyError(f"{path}: there is no {step!r}") from None
    return facts


def shown(value: Any, spec: str) -> str:
    """A value for people. spec: text | whole (1,234) | figure (3 digits that count) | usd | usd_fine (to a tenth of
    a cent) | usd_whole (from 100 on without cents) | share (in percent) | times (1.23x)."""
    if value is None:
        return NOTHING
    if spec == "text":
        return str(value)
    if spec == "whole":
        return f"{value:,.0f}"
    if spec == "figure":
        return significant(value)
    if spec == "usd":
        sign, size = "-" if value < 0 else "", abs(value)
        if size >= 1 or not size:
            return f"{sign}${size:,.2f}"
        whole, _, cents = significant(size).partition(".")
        return f"{sign}${whole}.{cents.rstrip('0').ljust(2, '0')}"
    if spec == "usd_fine":
        return f"${value:,.3f}"
    if spec == "usd_whole":
        if abs(value) < 100:
            return shown(value, "usd")
        return f"{'-' if value < 0 else ''}${abs(value):,.0f}"
    if spec == "share":
        return f"{100 * value:.0f} %" if abs(value) >= 0.1 or not value else f"{100 * value:.1f} %"
    if spec == "times":
        return f"{value:.2f}x"
    raise ValueError(f"unknown way to show a number: {spec}")


def significant(value: float, digits: int = 3) -> str:
    """So many digits that count, without an exponent: 1,230, 12.3, 0.000123."""
    if not value:
        return "0"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, places)
    return f"{rounded:,.{max(0, places)}f}"


def figures(chapters: Iterable[Chapter]) -> list[Figure]:
    """All figures of prose and tables."""
    found: list[Figure] = []
    for chapter in chapters:
        for part in chapter.parts:
            groups: Iterable[Pieces] = ()
            if isinstance(part, Paragraph):
                groups = (part.pieces,)
            elif isinstance(part, Grid):
                groups = (*part.heads, *(cell for row in part.rows for cell in row))
            found += [piece for pieces in groups for piece in pieces if isinstance(piece, Figure)]
    return found
