"""Writes the tables of `docs/models.md` from the matrix of `families.py`: `python -m tests.core.support_table`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.core.families import FAMILIES, REFUSED

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"


def current() -> str:
    """The page with its tables as they should be."""
    text = PAGE.read_text(encoding="utf-8")
    supported = [(f.name, f"`{f.configuration().model_type}`", f.note) for f in FAMILIES]
    refused = [(r.name, f"`{r.configuration().model_type}`", _reason(r.reason, r.loaded)) for r in REFUSED]
    text = _between(text, "supported", _table(("models", "`model_type`", "what is special"), supported))
    return _between(text, "refused", _table(("models", "`model_type`", "said at load"), refused))


def _reason(reason: str, loaded: bool) -> str:
    return f"… {reason} …" + (" (once its weights are read)" if loaded else "")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _between(text: str, name: str, content: str) -> str:
    pattern = re.compile(f"(<!-- {name}: [^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)
    assert pattern.search(text), f"{PAGE}: no marker of the table {name!r}"
    return pattern.sub(lambda m: m[1] + content + "\n" + m[2], text, count=1)


if __name__ == "__main__":
    PAGE.write_text(current(), encoding="utf-8")
