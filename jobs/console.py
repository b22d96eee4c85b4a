"""How commands talk: results on stdout, everything else on stderr, and what an exit code means."""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, ParamSpec

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hpd_core import recipe
from hpd_core.prompt import PromptError
from hpd_core.schema import SchemaError
from hpd_core.settings import ModelSpec, SettingsError
from hpd_core.supported import UnsupportedModelError
from pipeline import job
from pipeline.storage import StorageError, StoreUnavailableError

P = ParamSpec("P")
#: Seconds between progress lines where stderr is no terminal.
_LINE_EVERY = 5.0


#: Errors that say what the user must change.
_TO_MEND = (
    job.JobError,
    StorageError,
    SettingsError,
    SchemaError,
    PromptError,
    UnsupportedModelError,
    FileNotFoundError,
)


class Exit(IntEnum):
    COMPLETE = 0
    #: The configuration, the schema, the input or the store cannot be used.
    INPUT = 2
    #: Complete, but a larger share of rows ended in error than the configuration allows.
    TOO_MANY_ERRORS = 3
    #: Rows are missing in the output, or a store did not answer; running the same command again continues.
    INCOMPLETE = 4
    #: `hpd verify`: the output is not what its job committed.
    DAMAGED = 5
    #: Ctrl-C, as shells count it.
    INTERRUPTED = 130


def command(function: Callable[P, None]) -> Callable[P, None]:
    """Turns errors that are the user's to mend into one message on stderr and exit code 2, a store that does not answer
    into exit code 4."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except KeyboardInterrupt:
            say("interrupted: what is committed stays; run the same command again to continue")
            raise typer.Exit(Exit.INTERRUPTED) from None
        except Exception as error:
            if not isinstance(error, _TO_MEND):
                raise
            for line in str(error).splitlines():
                typer.echo(f"error: {line}", err=True)
            passing = isinstance(error, StoreUnavailableError)
            raise typer.Exit(Exit.INCOMPLETE if passing else Exit.INPUT) from error

    return wrapped


def run_alone(function: Callable[..., None]) -> None:
    """Starts one command as a program of its own: `python -m jobs.<name>`."""
    # Typer's own tracebacks show local variables, and with them storage options.
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(function)
    app()


def say(message: str) -> None:
    """A line for people, on stderr."""
    typer.echo(message, err=True)


def say_notice(model: ModelSpec) -> None:
    """The terms that come with a model, where it has any. Called once by each command that loads one."""
    say_notices([(model.name, recipe.notice_of(model))])


def say_notices(notices: Iterable[tuple[str, str]]) -> None:
    """Each line of some notices, given as (whose, text), once."""
    said: set[str] = set()
    for whose, notice in notices:
        for line in notice.splitlines():
            if line not in said:
                say(f"notice of {whose}: {line}")
            said.add(line)


class Output:
    """Where results go: stdout, or stderr while `json_only` keeps stdout for one JSON object on its last line."""

    def __init__(self, json_only: bool, stdout: int) -> None:
        self.json_only = json_only
        self.console = Console(stderr=json_only, soft_wrap=False)
        self._stdout = stdout

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Writes the JSON object, where one was asked for."""
        if self.json_only:
            os.write(self._stdout, (json.dumps(facts, ensure_ascii=False) + "\n").encode())


@contextmanager
def output(json_only: bool) -> Iterator[Output]:
    """With `json_only`, whatever else writes to stdout meanwhile (Ray's relayed worker output) lands on stderr."""
    if sys.stdout is None:  # started with its stdout closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.stdout = open(1, "w", closefd=False, encoding="utf-8")  # noqa: SIM115 (for the life of the process)
    sys.stdout.flush()
    if not json_only:
        yield Output(False, 1)
        return
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield Output(True, stdout)
    finally:
        sys.stdout.flush()
        os.dup2(stdout, 1)
        os.close(stdout)


@contextmanager
def progress_bar() -> Iterator[Callable[[job.Progress], None]]:
    """A callback that shows a run's progress on stderr: a bar on a terminal, else a line every few seconds."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines()
        return
    columns = (
        TextColumn("rows"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("rows", total=None, note="starting")

        def show(state: job.Progress) -> None:
            bar.update(task, completed=state.rows_done, total=state.rows_total, note=_note(state))

        yield show


def _lines() -> Callable[[job.Progress], None]:
    last = 0.0

    def show(state: job.Progress) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _LINE_EVERY or state.rows_done == state.rows_total:
            last = now
            say(f"{state.rows_done}/{state.rows_total} rows, {_note(state)}, {state.seconds:.0f} s")

    return show


def _note(state: job.Progress) -> str:
    parts = [f"{state.units_done}/{state.units_total} units", f"{state.rows_error} rows in error"]
    parts += [f"round {state.round}"] if state.round > 1 else []
    return ", ".join(parts + ([state.message] if state.message else []))
