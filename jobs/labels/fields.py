"""Fields that sellers filled in -> labels: an attribute's value is a template over the columns of its row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from hpd_core.schema import Document, Schema
from jobs.labels.label import Kept, Label, WholeWords, label_of
from jobs.labels.run import LabelRun
from pipeline.catalog import Product, Rows
from pipeline.checked import ConfigError, read_mapping, unknown_key
from pipeline.job import RowFault
from pipeline.reader import CatalogReader, check_template, python_rows
from pipeline.text import TemplateError, TextTemplate


@dataclass(frozen=True)
class FieldLabels:
    """reader: text and schema of a row. templates: {schema: {attribute: what its value is}}."""

    reader: CatalogReader
    templates: Mapping[str, Mapping[str, TextTemplate]]

    @classmethod
    def load(cls, path: Path, reader: CatalogReader) -> FieldLabels:
        """Of a YAML file `schema: {attribute: template}`. Raises ConfigError naming file, schema and attribute."""
        declared = reader.declared()
        templates: dict[str, dict[str, TextTemplate]] = {}
        for name, sources in read_mapping(path).items():
            if name not in declared:
                raise ConfigError(f"{path}: {unknown_key(str(name), list(declared)).replace('key', 'schema', 1)}")
            templates[name] = _templates(f"{path}: {name}", sources, declared[name])
        if not any(templates.values()):
            raise ConfigError(f"{path}: names no attribute")
        return cls(reader, templates)

    def columns(self) -> tuple[str, ...]:
        """Input columns that are read, each once."""
        of_fields = (column for t in self._all() for column in t.columns)
        return tuple(dict.fromkeys((*self.reader.columns(), *of_fields)))

    def check(self, schema: pa.Schema) -> None:
        """Raises ValueError naming what the input `schema` lacks."""
        self.reader.check(schema)
        for template in self._all():
            check_template(template, schema)

    def label(self, rows: Rows, run: LabelRun) -> None:
        """Every row goes into `run`, in order."""
        for place, row in zip(rows.places, python_rows(rows.table), strict=True):
            category, item = self.reader.of_row(row)
            product = Product(rows.file, place, category, item)
            if isinstance(item, RowFault):
                run.reject(product, item.status.value, item.reason)
            elif not isinstance(row, RowFault):  # one that cannot be read is its own item
                self._label(product, item, row, run)

    def _label(self, product: Product, document: Document, row: Mapping[str, Any], run: LabelRun) -> None:
        source = WholeWords(document.text)
        templates = self.templates.get(document.schema.name, {})
        labels: list[Label] = []
        for attribute in document.schema:
            if attribute.name not in templates:
                continue
            try:
                said = templates[attribute.name].render(row)
            except Exception as error:  # whatever a template does with the values of a row
                run.reject(product, "error", f"{attribute.name}: {type(error).__name__}: {error}")
                return
            label = label_of(attribute, source, said or None)
            if label.kept is not Kept.ABSENT:  # empty, or a word for it: nobody has said that there is no value
                labels.append(label)
        if labels:
            run.add(product, document, labels)
        else:
            run.reject(product, "no_field", "every field that could give a label is empty")

    def _all(self) -> list[TextTemplate]:
        return [template for templates in self.templates.values() for template in templates.values()]


def _templates(where: str, sources: Any, schema: Schema) -> dict[str, TextTemplate]:
    if not isinstance(sources, Mapping):
        raise ConfigError(f"{where}: must hold a template per attribute, holds {type(sources).__name__}")
    known = [attribute.name for attribute in schema]
    found = {}
    for name, source in sources.items():
        if name not in known:
            raise ConfigError(f"{where}: {unknown_key(str(name), known).replace('key', 'attribute', 1)}")
        if not isinstance(source, str):
            raise ConfigError(f"{where}: {name}: must be a template over columns, is {type(source).__name__}")
        try:
            found[name] = TextTemplate(source)
        except TemplateError as error:
            raise ConfigError(f"{where}: {name}: {error}") from error
    return found
