"""Trees from YAML -> pydantic models, with errors that a person can act on: file, key, nearest known key."""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, RootModel, ValidationError

from hpd_core.settings import did_you_mean
from pipeline.job import JobError
from pipeline.shipped import YamlError, parse_yaml

M = TypeVar("M", bound=BaseModel)


class ConfigError(JobError):
    """A configuration that cannot be read; the message names the file and the key."""


def unknown_key(key: str, known: Sequence[str]) -> str:
    """ "unknown key 'layot'; did you mean 'layout'?", or all known keys where none is near."""
    return f"unknown key {key!r}; {did_you_mean(key, known, 'keys')}"


def shown_override(override: str) -> str:
    """How messages name `--set KEY=VALUE`: by the key, since the value may be a secret, of a misspelt key too. What is
    no such pair is not shown."""
    key, equals, _ = override.partition("=")
    shown = re.split(r"[^\w.-]", key.strip(), maxsplit=1)[0]  # what else is in it may be a value: storage:{secret:x=}
    return f"--set {shown}" if equals else "--set"


def read_mapping(path: str | Path) -> dict[str, Any]:
    """A YAML file that must hold a mapping. Raises `ConfigError` naming the file."""
    try:
        tree = parse_yaml(Path(path).read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError, YamlError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(str(error) if isinstance(error, YamlError) else f"{path}: {reason}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: must hold a mapping of keys, holds {type(tree).__name__}")
    return tree


def checked(kind: type[M], tree: Any, origin: str, overrides: Mapping[tuple[str, ...], str] | None = None) -> M:
    """`tree` as `kind`; raises `ConfigError` with one line per wrong key, each naming `origin` or the override."""
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            location = tuple(problem["loc"])
            source = next((o for k, o in (overrides or {}).items() if k[: len(location)] == location), origin)
            lines.append(f"{source}: {_problem(kind, location, dict(problem))}")
        raise ConfigError("\n".join(dict.fromkeys(lines))) from error


def _problem(kind: type[BaseModel], location: tuple[str | int, ...], problem: Mapping[str, Any]) -> str:
    key = ".".join(str(step) for step in location)
    if problem["type"] == "model_type":
        return f"{key}: must be a section of the keys {', '.join(_keys_at(kind, location))}"
    if problem["type"] == "string_type":
        return f"{key}: must be text; a number, a date, yes and no need quotes to be one"
    if problem["type"] == "extra_forbidden":
        parent = ".".join(str(step) for step in location[:-1])
        return (f"{parent}: " if parent else "") + unknown_key(str(location[-1]), _keys_at(kind, location[:-1]))
    message = str(problem["msg"]).removeprefix("Value error, ")
    return f"{key}: {message}" if key else message


def _keys_at(kind: Any, location: Sequence[str | int]) -> list[str]:
    """Known keys of the section at `location`."""
    for step in location:
        if isinstance(kind, type) and issubclass(kind, RootModel):
            kind = kind.model_fields["root"].annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            kind = kind.model_fields[str(step)].annotation
        else:
            kind = typing.get_args(kind)[-1]
        while typing.get_origin(kind) is Annotated:
            kind = typing.get_args(kind)[0]
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []
