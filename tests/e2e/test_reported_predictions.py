"""The predictions behind the reported scores of the models that ship, made again: the first rows of each test file.

The labelled files may not be passed on, so what is recorded is a digest per row. A model trained anew needs new ones:
`hpd evaluate --dataset FILE --limit 100 --model MODEL --output DIR`, then
`python -m tests.e2e.test_reported_predictions DIR MODEL oa-mine`.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROWS = 100
#: Rows whose predictions may differ on another processor: a tie between two tokens within float32's rounding.
TIES = 1

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def digests(folder: Path) -> list[str]:
    """One per line of an evaluation's predictions."""
    lines = (folder / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    return [hashlib.sha256(line.encode()).hexdigest()[:12] for line in lines]


def recorded(model: str, name: str) -> Path:
    return Path(__file__).with_name("reported") / model / f"{name}.txt"


@pytest.mark.parametrize("name", ["oa-mine", "ae-110k"])
@pytest.mark.parametrize("model", ["smollm2-135m-ave", "smollm2-135m-ave-research"])
def test_a_model_that_ships_predicts_what_was_reported(
    model: str, name: str, tmp_path: Path, real_data: Callable[[str], Path]
) -> None:
    source = real_data(f"ave/{name}/test.jsonl")
    hpd = str(Path(sys.executable).parent / "hpd")
    line = [hpd, "evaluate", "--dataset", str(source), "--limit", str(ROWS), "--model", model]

    done = subprocess.run([*line, "--output", str(tmp_path / "run")], capture_output=True, text=True, timeout=800)

    assert done.returncode == 0, done.stderr[-3000:]
    made, reported = digests(tmp_path / "run"), recorded(model, name).read_text().split()
    assert len(made) == len(reported) == ROWS
    differ = [row for row, (one, other) in enumerate(zip(made, reported, strict=True)) if one != other]
    assert len(differ) <= TIES, (
        f"rows {differ} of {name} are predicted otherwise than when {model}'s scores were reported"
    )
    assert json.loads((tmp_path / "run" / "scores.json").read_text())["rows"] == ROWS


if __name__ == "__main__":
    recorded(*sys.argv[2:]).write_text("\n".join(digests(Path(sys.argv[1]))) + "\n")
