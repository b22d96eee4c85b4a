"""JSON lines files that a run writes at its end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """JSON lines, whole or not at all."""
    beside = path.with_name(path.name + ".part")
    with beside.open("w", encoding="utf-8", newline="\n") as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    beside.replace(path)
