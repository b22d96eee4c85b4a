"""A checked configuration -> the `JobSpec` that `pipeline.run.run` takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hpd_core import recipe
from hpd_core.confidence import with_confidence
from hpd_core.schema import Attribute, Schema, SchemaError
from hpd_core.spec import DecoderSpec
from pipeline.checked import ConfigError, checked, read_mapping, unknown_key
from pipeline.config import JobConfig, PriceConfig, SchemaConfig, SchemaFile, SchemasConfig
from pipeline.job import JobSpec, OutputOptions
from pipeline.prices import machine_prices
from pipeline.reader import CatalogReader
from pipeline.text import TextTemplate


def compose(
    config: JobConfig,
    origin: str | Path,
    *,
    inputs: Sequence[str] = (),
    output: str | None = None,
    limit: int | None = None,
) -> JobSpec:
    """The job of `config`, read from the file `origin`, to which schema files are relative.

    inputs, output and limit win over the configuration's. Raises `ConfigError` naming the file and the key.
    """
    given = [config.input.path] if isinstance(config.input.path, str) else config.input.path or []
    paths = tuple(inputs or given)
    target = output if output is not None else config.output.path
    rows = limit if limit is not None else config.input.limit
    if not paths:
        raise ConfigError(f"{origin}: input.path: no input; set it or give --input")
    if not all(path.strip() for path in paths):  # an unset shell variable; the current folder must be asked for as "."
        raise ConfigError(f"{origin}: input.path: one of the inputs is an empty text")
    if not target:
        raise ConfigError(f"{origin}: output.path: no output; set it or give --output")
    try:
        reader = catalog_reader(config, origin)
        keep = config.output.keep
        decoder = DecoderSpec(config.model, config.decode, config.prompt)
        recipe.check(decoder)
        config.confidence.check_names(a.name for schema in reader.declared().values() for a in schema)
        decoder = with_confidence(decoder, config.confidence)
        run = config.run.model_dump()
        return JobSpec(
            inputs=paths,
            output=target,
            decoder=decoder,
            reader=reader,
            schemas=tuple(reader.declared().values()),
            input_storage=config.input.storage,
            output_storage=config.output.storage,
            units=config.units,
            pool=config.pool,
            output_options=OutputOptions(
                columns=None if keep is None else tuple(keep),
                confidence=config.output.confidence,
                statuses=config.output.statuses,
                raw=config.output.raw,
                spans=config.output.spans,
                layout=config.output.layout,
                profile=config.output.profile,
            ),
            limit=rows,
            price_per_hour=price_per_hour(config.price, origin),
            config=_effective(config.public(), input={"path": list(paths), "limit": rows}, output={"path": target}),
            **run,
        )
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{origin}: {error}") from error


def catalog_reader(config: JobConfig, origin: str | Path) -> CatalogReader:
    """The row reader of a configuration. Raises `ConfigError` for its schemas, ValueError for its template."""
    named = load_schemas(config.schemas, origin)
    schemas = by_category((f"{origin}: schemas", s, categories or [name]) for name, (s, categories) in named.items())
    default = config.schemas.default
    if default is not None and default not in named:
        raise ConfigError(f"{origin}: schemas.default: {unknown_key(default, list(named)).replace('key', 'schema', 1)}")
    return CatalogReader(
        template=TextTemplate(config.text.template),
        schemas=schemas if config.text.category_column else {},
        default=named[default][0] if default is not None else None,
        category_column=config.text.category_column,
        attributes_column=config.text.attributes_column,
    )


def by_category(entries: Iterable[tuple[str, Schema, Iterable[str]]]) -> dict[str, Schema]:
    """{category: schema} of (where it stands, schema, its categories).

    Raises `ConfigError` naming both schemas and where they stand, where two of them claim one category.
    """
    found: dict[str, tuple[Schema, str]] = {}
    for where, schema, categories in entries:
        for category in dict.fromkeys(categories):
            if category in found:
                other, there = found[category]
                raise ConfigError(
                    f"{where}: category {category!r} is of schema {schema.name!r}, and of {other.name!r} in {there}"
                )
            found[category] = schema, where
    return {category: schema for category, (schema, _) in found.items()}


def load_schemas(config: SchemasConfig, origin: str | Path) -> dict[str, tuple[Schema, list[str]]]:
    """{name: (schema, categories)}, those of the file first. Raises `ConfigError` naming file, schema and attribute."""
    parts: list[tuple[str, dict[str, SchemaConfig]]] = []
    if config.file:
        path = Path(origin).parent / config.file
        parts.append((str(path), checked(SchemaFile, read_mapping(path), str(path)).root))
    parts.append((f"{origin}: schemas.define", config.define))
    schemas: dict[str, tuple[Schema, list[str]]] = {}
    for where, entries in parts:
        for name, entry in entries.items():
            if name in schemas:
                raise ConfigError(f"{where}: schema {name!r} is declared twice")
            try:
                attributes = tuple(Attribute(**a.model_dump() | {"values": tuple(a.values)}) for a in entry.attributes)
                # Without edge blanks, as the reader takes what a row says.
                schemas[name] = Schema(name, attributes), [category.strip() for category in entry.categories]
            except SchemaError as error:
                raise ConfigError(f"{where}: {'' if name in str(error) else name + ': '}{error}") from error
    if not schemas:
        raise ConfigError(f"{origin}: schemas: no schema; give a file or define one")
    return schemas


def price_per_hour(price: PriceConfig, origin: str | Path) -> float:
    """Dollars per hour of all machines; nothing where no price is set."""
    if price.dollars_per_hour is not None:
        return price.dollars_per_hour * price.machines
    if price.machine is None:
        return 0.0
    known = machine_prices()
    if price.machine not in known:
        raise ConfigError(
            f"{origin}: price.machine: {unknown_key(price.machine, list(known)).replace('key', 'machine', 1)}"
        )
    return known[price.machine].dollars_per_hour * price.machines


def _effective(public: dict[str, Any], **given: dict[str, Any]) -> dict[str, Any]:
    """The sections of `public` with what the command line gave in their place."""
    return public | {section: public[section] | values for section, values in given.items()}
