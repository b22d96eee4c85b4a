"""One name, one meaning: a reader who meets a class name in a command knows which class it is."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

#: What a process of a training takes, and the work of a round: the one is never seen where the other is.
_APART = {"Work"}


def test_no_public_class_of_the_jobs_shares_its_name(repository: Path) -> None:
    homes = defaultdict(list)
    for package in "hpd_core", "pipeline", "jobs":
        for path in sorted((repository / package).rglob("*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes[node.name].append(path.relative_to(repository).as_posix())
    shared = {name: files for name, files in homes.items() if len(files) > 1 and "jobs/" in " ".join(files)}
    assert {name: files for name, files in shared.items() if name not in _APART} == {}
