"""Schema files as those see them who look schemas up by the category of a benchmark row."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hpd_core.schema import Schema
from pipeline.compose import by_category, load_schemas
from pipeline.config import SchemasConfig


def declared_schemas(paths: Iterable[Path]) -> dict[str, Schema]:
    """{category: its schema} of all files. A schema is found under its own name too: rows that got it as a job's
    default have no category but that.

    Raises what `load_schemas` and `by_category` raise.
    """
    return by_category(
        (str(path), schema, [*categories, name])
        for path in paths
        for name, (schema, categories) in load_schemas(SchemasConfig(file=str(path)), ".").items()
    )
