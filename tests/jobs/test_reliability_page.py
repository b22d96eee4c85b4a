"""docs/reliability.md names the test of each of its claims: all of them exist, so that a reader can run them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "reliability.md").read_text(encoding="utf-8")
#: `folder/test_file.py`, `test_file.py::test_name` or, of the file that the table's page names, `test_name` alone.
NAMED = sorted(set(re.findall(r"`((?:[\w/]+/)?(?:test_\w+\.py)?(?:(?:::)?test_\w+)?)`", PAGE)) - {""})


def names_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


TESTS = {path.relative_to(REPOSITORY / "tests"): names_in(path) for path in REPOSITORY.glob("tests/*/test_*.py")}


def found(named: str) -> bool:
    """Files without a folder are those of tests/pipeline."""
    file, _, test = named.rpartition("::") if "::" in named else (named, "", "")
    if not file.endswith(".py"):
        return any(named in tests for path, tests in TESTS.items() if path.parent.name == "pipeline")
    path = Path(file.removeprefix("tests/") if "/" in file else f"pipeline/{file}")
    return path in TESTS and (not test or test in TESTS[path])


def test_the_page_names_tests() -> None:
    assert len([name for name in NAMED if "test_" in name]) > 80
    assert found("test_run.py") and not found("test_run.py::test_nothing") and not found("faults/test_nothing.py")
    assert not found("test_nothing_of_this_name")


@pytest.mark.parametrize("named", [name for name in NAMED if "test_" in name])
def test_a_test_that_the_page_names_is_there(named: str) -> None:
    assert found(named)


def test_every_row_that_claims_something_names_its_test() -> None:
    """Of the tables whose last column is `test`."""
    rows, tables = [], 0
    for table in re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE):
        head, _, *body = table.splitlines()
        if head.rstrip(" |").endswith("| test"):
            tables += 1
            rows += body
    assert tables >= 5 and len(rows) > 70
    last = {row: row.rstrip(" |").rpartition(" | ")[2] for row in rows}
    assert [row for row, named in last.items() if "test_" not in named and "same" not in named] == []
