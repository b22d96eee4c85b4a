"""How sure a decoder was of each answer, kept beside its predictions: confidences.jsonl, written and read again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from hpd_core.reading import ValueStatus
from hpd_core.rows import Row, Value
from jobs.scores.lines import write_lines
from pipeline.job import JobError

FILE = "confidences.jsonl"


@dataclass(frozen=True, slots=True)
class Told:
    """How sure a decoder was of one answer, a value or an absence.

    logprob: mean log-probability per token, None where the decoder tells none (AR). tokens: those that it is the mean
        of, the terminator included.
    confidence: what the output column `__confidence` would say, see `Value.confidence`.
    """

    status: ValueStatus
    logprob: float | None
    tokens: int
    confidence: float | None

    @classmethod
    def of(cls, value: Value) -> Told:
        logprob = value.logprob if isfinite(value.logprob) else None
        return cls(value.status, logprob, value.chosen_tokens, value.confidence)


def told(row: Row) -> dict[str, Told]:
    """{attribute: how sure the decoder was}; empty for a row in error."""
    return {value.attribute: Told.of(value) for value in row.values}


def write_confidences(folder: Path, rows: Sequence[Mapping[str, Told]]) -> None:
    """Writes confidences.jsonl, one object a line as in predictions.jsonl; none where the decoder is never sure of
    anything, and then one of an earlier run is removed."""
    path = folder / FILE
    if any(said.logprob is not None for row in rows for said in row.values()):
        write_lines(path, [{name: asdict(said) for name, said in row.items()} for row in rows])
    else:
        path.unlink(missing_ok=True)


def read_confidences(folder: Path) -> list[dict[str, Told]]:
    """What `write_confidences` wrote. Raises JobError naming file and line of what is wrong."""
    path = folder / FILE
    try:
        with path.open(encoding="utf-8", newline="\n") as lines:
            return [_row(line, f"{path}: line {number}") for number, line in enumerate(lines, 1)]
    except FileNotFoundError:
        raise JobError(f"{folder}: no {FILE}: its decoder tells no confidence, or the run is old") from None
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def _row(line: str, where: str) -> dict[str, Told]:
    try:
        data = json.loads(line)
        return {name: _told(entry) for name, entry in data.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise JobError(f"{where}: not a row of confidences ({type(error).__name__}: {error})") from error


def _told(entry: Mapping[str, Any]) -> Told:
    numbers = [entry[name] for name in ("logprob", "confidence")]
    if not all(number is None or (isinstance(number, float | int) and isfinite(number)) for number in numbers):
        raise ValueError(f"logprob and confidence must be numbers: {numbers}")
    return Told(ValueStatus(entry["status"]), entry["logprob"], int(entry["tokens"]), entry["confidence"])
