"""Schema files as those see them who look schemas up by the category of a benchmark row."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hpd_core.schema import Schema
from pipeline.checked import ConfigError
from pipeline.compose import load_schemas
from pipeline.config import SchemasConfig


def declared_schemas(paths: Iterable[Path]) -> dict[str, Schema]:
    """{category: its schema} of all files. A schema is found under its own name too: rows that got it as a job's
    default have no category but that.

    Raises ConfigError naming the files and both schemas where two of them claim one category, and what `load_schemas`
    raises.
    """
    found: dict[str, tuple[Schema, Path]] = {}
    for path in paths:
        for name, (schema, categories) in load_schemas(SchemasConfig(file=str(path)), ".").items():
            for category in dict.fromkeys([*categories, name]):
                if category in found:
                    other, where = found[category]
                    raise ConfigError(
                        f"{path}: category {category!r} is of schema {name!r}, and of {other.name!r} in {where}"
                    )
                found[category] = schema, path
    return {category: schema for category, (schema, _) in found.items()}
