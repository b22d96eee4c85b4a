"""Where training data comes from: the terms that it brings, and the teacher whose answers it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.job import JobError
from pipeline.manifest import OutputFolder
from pipeline.resume import RUN
from pipeline.storage import Storage

#: A file or folder `x` may have its terms beside it, in `x.notice`.
NOTICE_SUFFIX = ".notice"


def named(data: Path | str) -> str:
    """Name of a file or URI with its folder's (most are called train.jsonl), but never a whole path of a machine."""
    whole = str(data) if "://" in str(data) else Path(data).resolve().as_posix()
    return "/".join(whole.rstrip("/").split("/")[-2:])


def notice_beside(dataset: str) -> str:
    """The text of the file `<dataset>.notice`, "" where there is none. Only local data is looked at."""
    if "://" in dataset:
        return ""
    path = Path(f"{dataset.rstrip('/')}{NOTICE_SUFFIX}")
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise JobError(f"{path}: the notice of {dataset} cannot be read: {error}") from error


def run_of(output: str) -> dict[str, Any]:
    """run.json of an output of `hpd extract`. Raises JobError where there is none."""
    storage = Storage()
    folder = OutputFolder(storage.absolute(output), storage)
    run = folder.read_json(RUN)
    if run is None:
        raise JobError(f"{output}: no {RUN}: not an output of `hpd extract`")
    return dict(run)
