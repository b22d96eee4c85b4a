"""Folders that something is going to be written to: seen before it is tried, and filled whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from hpd_core.settings import SettingsError


def made_once(folder: Path, fill: Callable[[Path], None], what: str) -> Path:
    """`folder`, filled by `fill` where it is not there yet: under a lock, so that processes that start together fill it
    once, and beside it first, so that it is never seen half full. What a process that was killed has left is removed.

    what: whose files they are, for the SettingsError where its parent cannot be written.
    """
    from filelock import FileLock

    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(f"{folder}.lock").acquire()
    except OSError as error:
        raise no_cache(what, folder.parent, str(error)) from error
    with lock:
        if not folder.is_dir():
            _fill(folder, fill, what)
    return folder


def _fill(folder: Path, fill: Callable[[Path], None], what: str) -> None:
    """Under the lock of `folder`: the one who has it is alone with the name that it fills, whatever lies there."""
    work = folder.with_name(f".filling-{folder.name}")
    try:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()  # with the usual mode, which others of the machine may read where the umask lets them
    except OSError as error:
        raise no_cache(what, folder.parent, str(error)) from error
    try:
        fill(work)
        os.replace(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def check_makeable(folder: Path, what: str) -> None:
    """Raises the SettingsError of `made_once`, as far as it can be told without writing."""
    if not folder.is_dir() and (reason := unwritable(folder.parent)):
        raise no_cache(what, folder.parent, reason)


def no_cache(what: str, cache: Path, reason: str) -> SettingsError:
    return SettingsError(
        f"the weights of {what} are unpacked into {cache}, which cannot be written ({reason}): "
        "set HF_HOME to a folder that can"
    )


def unwritable(folder: Path) -> str:
    """Why `folder` cannot be written, or made where it does not exist; empty where it can. Writes nothing.

    The answer is that of its nearest part that exists, and a guess: the superuser may be told otherwise when writing.
    """
    folder = Path(os.path.abspath(folder))
    there = next(part for part in (folder, *folder.parents) if os.path.lexists(part))
    if not there.is_dir():
        return f"{there} is no folder"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there} is not writable" if there == folder else f"{there} is not writable, so that it cannot be made"
    return ""
