"""Where training data comes from: the terms that it brings, and the teacher whose answers it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobs.options import short_name
from pipeline.job import JobError
from pipeline.manifest import OutputFolder
from pipeline.resume import RUN
from pipeline.storage import Storage

#: A file or folder `x` may have its terms beside it, in `x.notice`.
NOTICE_SUFFIX = ".notice"


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


def teacher_facts(output: str, run: Mapping[str, Any]) -> dict[str, Any]:
    """What a student's hpd.json says of the teacher that wrote `output`, from its run.json.

    fingerprint: of the extraction. weights, adapter: digests, whatever the files are called elsewhere; adapter "" for
    none. model: the name that the job gave, "" where it was no YAML. Raises JobError where run.json lacks one of them.
    """
    try:
        decoder = run["facts"]["decoder"]
        facts = {
            "output": short_name(output),
            "fingerprint": run["fingerprint"],
            "decoder": run["facts"]["decoder_name"],
            "model": model_name(str((run.get("config", {}).get("model") or {}).get("name", ""))),
            "weights": decoder["model"]["source"],
            **{name: decoder["model"][name] for name in ("revision", "adapter", "dtype")},
            "prompt": decoder["template"],
            "settings": decoder["settings"],
        }
    except (KeyError, TypeError) as error:
        raise JobError(f"{output}/{RUN}: does not tell which model wrote it ({error!r})") from error
    # Units of other jobs are in the folder too, and are not taught.
    also = {name: run[name] for name in ("mixed_with", "notice") if name in run}
    return facts | also


def model_name(name: str) -> str:
    """As in conf/models.yaml, a hub id, or the end of a path."""
    return short_name(name) if name.startswith((".", "/", "~")) else name
