"""The working directory of a submitted job: this project's packages and the job's own files, nothing beside them."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from jobs.cluster.submission import CONFIG_IN_PACKAGE
from pipeline.config import JobConfig
from pipeline.job import JobError, JobSpec
from pipeline.storage import Storage

#: What runs on the cluster. Tests, docs, samples, results and environments stay at home.
PACKAGES = ("hpd_core", "pipeline", "jobs", "conf")
#: Ray refuses a working directory whose ZIP reaches 100 MiB. Counted before compression: weights do not compress.
LIMIT_BYTES = 100 * 2**20
_IGNORED = ("__pycache__", ".*", "*.pyc", "*.tmp", "node_modules")
#: Where adapters ship, each in a folder of its own that is larger than all code together.
_ADAPTERS = PurePosixPath("conf/adapters")


@dataclass(frozen=True, slots=True)
class Package:
    """folder: what is uploaded. bytes: of its files, before compression."""

    folder: Path
    files: int
    bytes: int


def located(job: JobSpec) -> JobSpec:
    """`job` with absolute paths: on the cluster the current folder is another one."""
    source, target = Storage(job.input_storage), Storage(job.output_storage)
    return replace(job, inputs=tuple(map(source.absolute, job.inputs)), output=target.absolute(job.output))


def build(folder: Path, tree: Mapping[str, Any], config: JobConfig, job: JobSpec, origin: Path) -> Package:
    """Fills the empty `folder`. tree: the configuration as written, `job`: as located.

    Raises `JobError` naming what cannot travel: a model by a relative path, or more bytes than Ray takes.
    """
    _check_model(config, origin)
    for name in PACKAGES:
        at = Path(str(import_module(name).__file__)).parent
        shutil.copytree(at, folder / name, ignore=_left_out(at, name, config.model.adapter))
    written = copy.deepcopy(dict(tree))
    _section(written, "input").update(path=list(job.inputs), limit=job.limit)
    _section(written, "output").update(path=job.output)
    # "local" would be a Ray of its own inside the job.
    _section(written, "run").update(ray_address="auto")
    (folder / "job").mkdir()
    if config.schemas.file:
        _section(written, "schemas").update(file="schemas.yaml")  # relative to the job's file
        shutil.copy(origin.parent / config.schemas.file, folder / "job/schemas.yaml")
    if config.confidence.file:
        _section(written, "confidence").update(file="job/calibration.json")  # relative to the current folder
        shutil.copy(Path(config.confidence.file).expanduser(), folder / "job/calibration.json")
    text = yaml.safe_dump(written, allow_unicode=True, sort_keys=False)
    (folder / CONFIG_IN_PACKAGE).write_text(text, encoding="utf-8")
    return measured(folder)


def _left_out(at: Path, package: str, adapter: str) -> Callable[[str, list[str]], set[str]]:
    """For `copytree` of a package that lies `at` some folder: what does not travel. Of adapters, all but the job's."""
    ignored = shutil.ignore_patterns(*_IGNORED)
    named = PurePosixPath(adapter.removeprefix("resource:"))

    def names(folder: str, found: list[str]) -> set[str]:
        place = PurePosixPath(package) / Path(folder).relative_to(at).as_posix()
        others = {n for n in found if place == _ADAPTERS and place / n not in (named, *named.parents)}
        return ignored(folder, found) | others

    return names


def measured(folder: Path, limit: int = LIMIT_BYTES) -> Package:
    """Raises `JobError` naming the largest files where there are more bytes than `limit`."""
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in _files(folder)}
    total = sum(sizes.values())
    if total >= limit:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
        named = ", ".join(f"{name} ({sizes[name] / 2**20:.1f} MiB)" for name in largest)
        raise JobError(
            f"the package has {total / 2**20:.1f} MiB, and Ray takes less than {limit / 2**20:.0f}; the largest files: "
            f"{named}. Put models and adapters where all nodes see them and name them by their absolute path"
        )
    return Package(folder, len(sizes), total)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _section(tree: dict[str, Any], name: str) -> dict[str, Any]:
    if not isinstance(tree.get(name), dict):  # a bare `input:` is None
        tree[name] = {}
    return tree[name]


def _check_model(config: JobConfig, origin: Path) -> None:
    for key, path in (("source", config.model.source), ("adapter", config.model.adapter)):
        if not path or path.startswith(("package:", "resource:")) or Path(path).expanduser().is_absolute():
            continue
        if Path(path).exists():
            raise JobError(
                f"{origin}: model.{key}: {path} lies below the current folder of this machine and does not travel; "
                "put it where all nodes see it and give its absolute path, or take a hub id"
            )
