"""How commands talk: results on stdout, everything else on stderr, and what an exit code means."""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, ParamSpec

import typer
from rich.console import Console

from hpd_core import recipe
from hpd_core.checkpoint import ModelUnavailableError
from hpd_core.model_spec import ModelSpec
from hpd_core.prompt import PromptError
from hpd_core.schema import SchemaError
from hpd_core.settings import SettingsError
from hpd_core.supported import UnsupportedModelError
from pipeline.job import JobError, RayNotStartedError
from pipeline.lease import LeaseError
from pipeline.storage import StorageError, StoreUnavailableError

P = ParamSpec("P")

#: What may go away by itself, so that the same command is to be tried again.
_PASSING = (StoreUnavailableError, ModelUnavailableError, LeaseError, RayNotStartedError)
#: Errors that say what the user must change.
_TO_MEND = (
    JobError,
    RayNotStartedError,
    LeaseError,
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
    #: Rows are missing in the output, a store did not answer, or another driver writes the output; running the same
    #: command again continues.
    INCOMPLETE = 4
    #: `hpd verify`: the output is not what its job committed.
    DAMAGED = 5
    #: Ctrl-C, as shells count it.
    INTERRUPTED = 130


class TerminatedError(BaseException):
    """SIGTERM. Nobody's error: no handler of errors may take it for one."""


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises `TerminatedError` in the body, once: another one while it cleans up changes nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise TerminatedError

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def command(function: Callable[P, None]) -> Callable[P, None]:
    """Turns errors that are the user's to mend into one message on stderr and exit code 2, those that may pass by
    themselves into exit code 4."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except KeyboardInterrupt:
            say("interrupted: what is committed stays; run the same command again to continue")
            raise typer.Exit(Exit.INTERRUPTED) from None
        except TerminatedError:
            say("terminated: what is committed stays; run the same command again to continue")
            raise typer.Exit(Exit.INCOMPLETE) from None
        except Exception as error:
            code = exit_of(error)
            if code is None:
                raise
            for line in str(error).splitlines():
                typer.echo(f"error: {line}", err=True)
            raise typer.Exit(code) from error

    return wrapped


def exit_of(error: BaseException) -> Exit | None:
    """The exit code that an error ends a command with; None of one that is a bug, which Python exits with 1 for."""
    if isinstance(error, KeyboardInterrupt):
        return Exit.INTERRUPTED
    if isinstance(error, TerminatedError):
        return Exit.INCOMPLETE
    if not isinstance(error, _TO_MEND):
        return None
    return Exit.INCOMPLETE if isinstance(error, _PASSING) else Exit.INPUT


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
