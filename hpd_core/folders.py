"""Folders that something is going to be written to, seen before it is tried."""

from __future__ import annotations

import os
from pathlib import Path


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
