"""The answers that an endpoint gave, one JSON line each, as they come: what is paid for is not asked again."""

from __future__ import annotations

import fcntl
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from pipeline.job import JobError


@dataclass(frozen=True, slots=True)
class Entry:
    """One answer. key: of the question, a digest of what was sent. reason: why it was not accepted, or "".

    input_tokens, output_tokens: as the endpoint reported them, None where it did not.
    """

    key: str
    text: str
    reason: str
    input_tokens: int | None
    output_tokens: int | None


@dataclass(frozen=True, slots=True)
class Spent:
    """What some answers took. unreported: answers whose tokens the endpoint did not say."""

    answers: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    unreported: int = 0

    def plus(self, entry: Entry) -> Spent:
        unknown = entry.input_tokens is None or entry.output_tokens is None
        return Spent(
            self.answers + 1,
            self.input_tokens + (entry.input_tokens or 0),
            self.output_tokens + (entry.output_tokens or 0),
            self.unreported + unknown,
        )


class Journal:
    """An open file of answers, held by one process at a time.

    accepted: {key: text} of the answers that were accepted. spent: by all answers in it, those of earlier runs too.
    A line that a kill left half written is cut off. Raises JobError for a file that is none, or is held.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.accepted: dict[str, str] = {}
        self.spent = Spent()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = path.open("a+b")
        except OSError as error:
            raise JobError(f"{path}: {error.strerror or error}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read()
        except BlockingIOError as error:
            self._file.close()
            raise JobError(f"{path}: another run writes to it right now") from error
        except BaseException:
            self._file.close()
            raise

    def add(self, entry: Entry) -> None:
        line = json.dumps(asdict(entry)) + "\n"  # ASCII: half a surrogate pair, which a model may write, is no UTF-8
        self._file.write(line.encode())
        self._file.flush()
        self._keep(entry)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def _keep(self, entry: Entry) -> None:
        self.spent = self.spent.plus(entry)
        if not entry.reason:
            self.accepted[entry.key] = entry.text

    def _read(self) -> None:
        self._file.seek(0)
        whole = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                self._file.truncate(whole)
                break
            whole += len(line)
            try:
                self._keep(Entry(**json.loads(line)))
            except (ValueError, TypeError) as error:
                raise JobError(f"{self.path}: line {number}: no answer of an endpoint ({error})") from error
        self._file.seek(0, 2)
