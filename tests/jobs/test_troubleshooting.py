"""docs/troubleshooting.md quotes messages that the code has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from jobs.console import Exit

REPOSITORY = Path(__file__).resolve().parent.parent.parent
PAGE = (REPOSITORY / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
QUOTED = re.findall(r"^\| `(.+?)` \| ", PAGE, re.MULTILINE)


def texts() -> list[str]:
    """Every text of the sources, with what is filled in as `…`."""
    found = []
    for package in ("hpd_core", "pipeline", "jobs"):
        for path in (REPOSITORY / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr | ast.Constant):
                    found.append(shown(node))
    return found


def shown(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(map(shown, values))
    return "…"


@pytest.fixture(scope="module")
def sources() -> str:
    return "\n".join(texts())


def test_messages_are_quoted() -> None:
    assert len(QUOTED) > 80 and len(set(QUOTED)) == len(QUOTED)
    assert not [line for line in PAGE.splitlines() if line.startswith("| `") and line.count(" | ") != 1]


@pytest.mark.parametrize("message", QUOTED)
def test_a_quoted_message_still_stands_in_the_sources(message: str, sources: str) -> None:
    assert message in sources


def test_every_exit_code_is_explained() -> None:
    codes = {int(code) for row in re.findall(r"^\| ([\d, ]+) \| ", PAGE, re.MULTILINE) for code in row.split(", ")}
    assert {int(code) for code in Exit} <= codes
