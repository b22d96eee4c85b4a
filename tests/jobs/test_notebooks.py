"""The notebooks as they are committed: with outputs, without errors, and without a word of where they were made.

`.ci/run` runs them (`pytest --nbmake notebooks`); with `--overwrite` that writes their outputs.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

REPOSITORY = Path(__file__).resolve().parent.parent.parent
NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))


def code(notebook: Path) -> list[Any]:
    return [cell for cell in nbformat.read(notebook, as_version=4).cells if cell.cell_type == "code"]


def test_they_are_there() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["1-how-it-works", "2-your-catalog", "3-cost-and-quality"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_was_run_from_top_to_bottom_and_tells_nothing_of_its_machine(notebook: Path) -> None:
    cells = code(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert len(outputs) >= len(cells) / 2
    kinds = {(output.output_type, output.get("name")) for output in outputs}
    assert not [kind for kind in kinds if kind[0] == "error" or kind[1] == "stderr"]
    text = notebook.read_text(encoding="utf-8")
    # A path with two folders at least; `</g>` and "rows/s" are none.
    assert not re.findall(r"(?<![\w.<>/:-])/(?:\w[\w.-]*/)+\w[\w.-]*", text)
    assert "warning" not in str(outputs).lower()


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_imports_and_defines_nothing(notebook: Path) -> None:
    trees = [ast.parse(cell.source) for cell in code(notebook)]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    assert not [node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda)]
    assert not [node for node in nodes if isinstance(node, ast.Mult)], "a formula: import it, where a test holds it"
    assert any(isinstance(node, ast.ImportFrom) for node in nodes)
