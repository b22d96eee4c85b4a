"""What it takes to train the same weights again, for hpd.json: options, versions, digests of data and weights."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any

from hpd_core import source
from hpd_core.model_spec import ModelSpec
from jobs.options import short_name
from jobs.training.labelled import DataSet, Kind, data_fingerprint
from jobs.training.origin import model_name

#: What computes a training; everything else it stands on is theirs.
PACKAGES = ("hpd-catalog", "torch", "transformers", "tokenizers", "peft", "safetensors", "numpy")
#: Options that say where things go or how they are shown, not what is trained.
_ELSEWHERE = ("output_folder", "resume", "json_")
#: Options that are names of files, whose content counts.
_FILES = ("validation", "schemas", "job", "exclude")


def reproduction(options: Mapping[str, Any], sets: Sequence[DataSet], model: ModelSpec) -> dict[str, Any]:
    """JSON-able. options: of `hpd finetune` by parameter name, defaults included.

    options: as given, files by their last two names; what a seed cannot make equal (device, threads, processes) is
    among them. versions: of Python and PACKAGES. weights: digest of the base model. data: per data set its rows, what
    of them may be taught, and `taught`, a digest of that in its order; of benchmark files also SHA-256. files: SHA-256
    of the others, by option.
    """
    files = {}
    for option in _FILES:
        given = options.get(option) or []
        paths = given if isinstance(given, list) else [given]
        if paths:
            files[option] = [_sha256(path) for path in paths]
    shown = {name: _shown(name, value) for name, value in options.items() if name not in _ELSEWHERE}
    return {
        "options": {name: value for name, value in shown.items() if value is not None},
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "machine": platform.machine(),
        "weights": source.identity(model),
        "data": [_facts(data) for data in sets],
        "files": files,
    }


def _facts(data: DataSet) -> dict[str, Any]:
    known = [row.values.get(a.name, ()) for row in data.rows for a in row.document.schema]
    return {
        "name": short_name(data.name),
        "kind": data.kind.name.lower(),
        "rows": len(data.rows),
        "values": sum(bool(texts) for texts in known),
        "absences": sum(texts == () for texts in known),
        "unknown": sum(texts is None for texts in known),
        "taught": data_fingerprint(data.rows, {"kind": data.kind}),
        **({"sha256": _sha256(data.name)} if data.kind is Kind.BENCHMARK else {}),
    }


def _shown(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_shown(name, item) for item in value] or None
    if isinstance(value, Enum):
        return value.value
    if name == "model":
        return model_name(value)
    return short_name(value) if isinstance(value, Path) or name == "dataset" else value


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # this project in a checkout that is not installed
        return None


def _sha256(path: Path | str) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
