"""A told report as Markdown. Pictures are in the page; here their figures stand in tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from jobs.costs.drawing import Bars
from jobs.costs.told import Chapter, Figure, Grid, Paragraph, Pieces
from jobs.scores.markdown import cell


def markdown(heading: str, chapters: Sequence[Chapter], show: Callable[[Figure], str] = lambda f: f.text) -> str:
    """show: how a figure is written."""

    def text(pieces: Pieces) -> str:
        return "".join(show(piece) if isinstance(piece, Figure) else piece for piece in pieces)

    lines = [f"# {cell(heading)}"]
    for chapter in chapters:
        lines += ["", f"## {chapter.title}"]
        for part in chapter.parts:
            if isinstance(part, Paragraph):
                told = cell(text(part.pieces))
                lines += ["", f"**Note.** {told}" if part.warning else told]
            elif isinstance(part, Grid):
                lines += ["", _line(text(head) for head in part.heads)]
                lines.append(f"|{'|'.join('---:' if number else '---' for number in part.numbers)}|")
                lines += [_line(text(pieces) for pieces in row) for row in part.rows]
            elif isinstance(part, Bars):
                lines += ["", _line([part.title, ""]), "|---|---:|"]
                lines += [_line([text(beam.label), text(beam.value)]) for beam in part.beams]
    return "\n".join([*lines, ""])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(map(cell, cells))} |"
