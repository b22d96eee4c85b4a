"""How a run shows where it stands: a bar on a terminal, a line now and then in a log, a JSON object per event."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bars

from jobs.console import TerminatedError, exit_of, say
from pipeline.events import Event, Progress
from pipeline.job import JobError, JobSpec

Show = Callable[[Progress], None]
#: Least seconds between progress lines where stderr is no terminal.
LINE_EVERY = 10.0
_FAILURES = (Event.FAILED, Event.GIVEN_UP)


class LogFormat(StrEnum):
    #: A bar on a terminal, lines elsewhere.
    TEXT = "text"
    #: The events of `RunLog` on stderr.
    JSON = "json"


class RunLog:
    """Events as JSON lines: `start`, `pipeline.events.Event`s, and `end` or `error`. docs/monitoring.md has the fields.

    path: a local file that they are appended to. on_stderr: whether they go to stderr as well.
    """

    def __init__(self, path: Path | None, on_stderr: bool) -> None:
        self._path, self._on_stderr = path, on_stderr
        try:
            self._file = path.open("a", encoding="utf-8") if path is not None else None
        except OSError as error:
            raise JobError(f"--log-file {path}: {error.strerror}") from error

    def start(self, job: JobSpec) -> None:
        self.write(
            "start", output=job.output, inputs=list(job.inputs), limit=job.limit, price_per_hour=job.price_per_hour
        )

    def progress(self, state: Progress) -> None:
        facts = {name: value for name, value in asdict(state).items() if name not in ("event", "unit", "reason")}
        more = {
            "rows_per_second": state.rows_per_second,
            "error_share": state.error_share,
            "seconds_left": state.seconds_left,
        }
        told = {name: value for name, value in (("unit", state.unit), ("reason", state.reason)) if value}
        self.write(state.event.value, **told, **facts, **more)

    def end(self, exit_code: int, facts: Mapping[str, Any]) -> None:
        """facts: those of `jobs.summary.summary_facts`."""
        self.write("end", exit_code=exit_code, **facts)

    def write(self, event: str, **facts: Any) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = json.dumps({"time": now, "event": event} | {n: _short(v) for n, v in facts.items()}, ensure_ascii=False)
        if self._on_stderr:
            typer.echo(line, err=True)
        if self._file is not None:
            try:
                self._file.write(line + "\n")
                self._file.flush()
            except OSError as error:  # a full disk is no reason to end a run that writes elsewhere
                say(f"--log-file {self._path}: {error.strerror}: nothing more is logged there")
                self._file = None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _short(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


@contextmanager
def run_log(path: Path | None, form: LogFormat) -> Iterator[RunLog]:
    """The log of a run; an error that ends it is its last event. Raises `JobError` where the file cannot be opened."""
    log = RunLog(path, form is LogFormat.JSON)
    try:
        yield log
    except (Exception, KeyboardInterrupt, TerminatedError) as error:
        code = exit_of(error)
        log.write("error", exit_code=1 if code is None else int(code), reason=str(error) or type(error).__name__)
        raise
    finally:
        log.close()


@contextmanager
def shown(log: RunLog, form: LogFormat) -> Iterator[Show]:
    """A callback that shows a run's progress to people and writes it to the `log`."""
    with _nothing() if form is LogFormat.JSON else _for_people() as show:

        def both(state: Progress) -> None:
            log.progress(state)
            show(state)

        yield both


@contextmanager
def _nothing() -> Iterator[Show]:
    yield lambda state: None


@contextmanager
def _for_people() -> Iterator[Show]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lines(say, time.monotonic)
        return
    columns = (TextColumn("rows"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    with Bars(*columns, console=console, transient=True) as bars:
        task = bars.add_task("rows", total=None, note="starting")

        def show(state: Progress) -> None:
            if state.event is Event.WAITING:
                bars.console.print(state.reason, markup=False, highlight=False)
            bars.update(task, completed=state.rows_done, total=state.rows_total, note=note(state))
            if state.event in _FAILURES:
                bars.console.print(_failure(state), markup=False, highlight=False)

        yield show


def lines(say: Callable[[str], None], clock: Callable[[], float]) -> Show:
    """A line at the beginning and at the end, and between them at most one in `LINE_EVERY` seconds of the `clock`. What
    failed since the line before is counted in it, the last failure with its reason."""
    last: float | None = None
    failed: list[Progress] = []

    def show(state: Progress) -> None:
        nonlocal last
        if state.event is Event.WAITING:
            say(state.reason)
            return
        failed.extend([state] if state.event in _FAILURES else [])
        now = clock()
        if last is not None and now - last < LINE_EVERY and state.rows_done < state.rows_total:
            return
        last = now
        told = f"; {len(failed)} failed, the last: {_failure(failed[-1])}" if failed else ""
        failed.clear()
        say(f"{state.rows_done:,}/{state.rows_total:,} rows, {note(state)}{told}")

    return show


def note(state: Progress) -> str:
    """Everything but the rows, in a line."""
    parts = [f"{state.units_done:,}/{state.units_total:,} units", f"{state.rows_per_second:.2f} rows/s"]
    parts += [f"${state.dollars:.4f}"] if state.dollars else []
    parts += [f"{state.error_share:.1%} in error"]
    parts += [f"round {state.round}"] if state.round > 1 else []
    parts += [f"{_duration(state.seconds)} so far"]
    parts += [f"{_duration(state.seconds_left)} left"] if state.seconds_left else []
    return ", ".join(parts)


def _failure(state: Progress) -> str:
    return f"{state.unit}: {state.reason}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
