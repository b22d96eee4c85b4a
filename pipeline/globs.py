"""Patterns of inputs: what a pattern stands for is each file and each folder that it matches, as if they were named."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from fsspec.utils import glob_translate

from pipeline.job import JobError

PARQUET_SUFFIXES = (".parquet", ".parq", ".pq")
_WILD = frozenset("*?[")


def is_pattern(path: str) -> bool:
    return bool(_WILD & set(path))


def base(pattern: str) -> str:
    """What the names of all that it matches begin with: the folder before the first wildcard, else itself."""
    parts = pattern.rstrip("/").split("/")
    fixed = next((i for i, part in enumerate(parts) if is_pattern(part)), len(parts))
    return "/".join(parts[:fixed])


def is_data(relative: str) -> bool:
    """Whether a file at this path below an input's folder is data: called Parquet, and not bookkeeping of other tools,
    whose names, or those of its folders, begin with '_' or '.'."""
    parts = relative.split("/")
    return parts[-1].lower().endswith(PARQUET_SUFFIXES) and not any(map(_is_bookkeeping, parts))


def may_find(pattern: str, folder: str) -> bool:
    """Whether `pattern` stands for data files in an output at `folder`, now or once there are some. Raises `JobError`
    for what is no pattern."""
    parts = folder.rstrip("/").split("/")
    places = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
    places += [f"{places[-1]}/data", f"{places[-1]}/data/x.parquet"]
    match = translated(pattern).fullmatch
    return any(match(place) and not is_hidden(place, pattern) for place in places)


def translated(pattern: str) -> re.Pattern[str]:
    """Of the names of what `pattern` matches. Raises `JobError` for what is no pattern."""
    try:
        return re.compile(glob_translate(pattern.rstrip("/")))
    except ValueError as e:
        raise JobError(f"input {pattern}: {e}") from e


def leads(pattern: str, folder: str) -> bool:
    """Whether what `pattern` matches may lie below `folder`, which it may match itself."""
    wanted, steps = pattern.rstrip("/").split("/"), folder.count("/") + 1
    if "**" in wanted[:steps]:
        return True
    return steps <= len(wanted) and translated("/".join(wanted[:steps])).fullmatch(folder) is not None


def _is_bookkeeping(part: str) -> bool:
    return part.startswith(("_", "."))


def is_hidden(name: str, pattern: str) -> bool:
    """Whether a part of `name` that a wildcard matched is bookkeeping which the pattern does not spell."""
    fixed = base(pattern)
    spelled = [part for part in pattern.removeprefix(fixed).split("/") if _is_bookkeeping(part)]
    return any(
        _is_bookkeeping(part) and not any(fnmatchcase(part, wanted) for wanted in spelled)
        for part in name.removeprefix(fixed).split("/")
    )


def is_meant(name: str, last: str) -> bool:
    """Whether a file that the last part of a pattern matches is one that it means."""
    return not last.endswith("*") or name.lower().endswith(PARQUET_SUFFIXES) or "." not in name
