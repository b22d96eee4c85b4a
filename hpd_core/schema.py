"""What is asked of what: documents, attributes and schemas.

Everything here is plain data checked on construction; nothing knows a tokenizer or a tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from hpd_core.typed import ValueType, parse

_CONTROL = re.compile(r"[\x00-\x1f\x7f\u2028\u2029]")


class SchemaError(ValueError):
    """A schema, attribute or document that cannot be asked as it is written."""


#: Stands between the values of an attribute that may have several.
SEPARATOR = ";"


def slug(name: str) -> str:
    """Column name for an attribute name: lower case, runs of anything but letters and digits become one '_'."""
    text = re.sub(r"[^\w]+|_+", "_", name.strip().lower()).strip("_")
    if not text:
        raise SchemaError(f"attribute name {name!r} has no letter or digit to make a column name from; set 'column'")
    return text


@dataclass(frozen=True, slots=True)
class Attribute:
    """One question asked of every document of a schema.

    name: the key the model reads, as in a data sheet ("Screen size"); one line, no edge blanks.
    description: one line of help for the model, may be empty.
    values: closed list of allowed values, each readable as the type; empty means open.
    type: declared type of the value.
    column: output column; the slug of the name where it is not given.
    many: it may have several values, which the model is told to separate by `SEPARATOR`.
    """

    name: str
    description: str = ""
    values: tuple[str, ...] = ()
    type: ValueType = ValueType.STRING
    column: str = ""
    many: bool = False

    def __post_init__(self) -> None:
        if not self.name or self.name != self.name.strip() or _CONTROL.search(self.name):
            raise SchemaError(f"attribute name {self.name!r}: must be one line, not empty, without edge blanks")
        if ":" in self.name:
            raise SchemaError(f"attribute name {self.name!r}: must not contain ':', which ends the key in the prompt")
        if _CONTROL.search(self.description):
            raise SchemaError(f"attribute {self.name!r}: description must be one line")
        object.__setattr__(self, "values", tuple(self.values))
        object.__setattr__(self, "type", ValueType(self.type))
        if not self.column:
            object.__setattr__(self, "column", slug(self.name))
        for value in self.values:
            if not value.strip() or value != value.strip() or _CONTROL.search(value):
                raise SchemaError(
                    f"attribute {self.name!r}: closed value {value!r} must be one line without edge blanks"
                )
            if self.many and SEPARATOR in value:
                raise SchemaError(
                    f"attribute {self.name!r}: closed value {value!r} holds {SEPARATOR!r}, the separator of several"
                )
            if parse(self.type, value) is None:  # it could only ever be invalid
                raise SchemaError(f"attribute {self.name!r}: closed value {value!r} cannot be read as {self.type}")
        if len(set(self.values)) != len(self.values):
            raise SchemaError(f"attribute {self.name!r}: closed values repeat")


@dataclass(frozen=True, slots=True)
class Schema:
    """Ordered list of attributes asked of one category of documents.

    Order matters: the prompt lists attributes in this order, and in the `gaps` layout answers may depend on it.
    """

    name: str
    attributes: tuple[Attribute, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "attributes", tuple(self.attributes))
        if not self.attributes:
            raise SchemaError(f"schema {self.name!r} has no attribute")
        for field in ("name", "column"):
            seen: dict[str, str] = {}
            for attribute in self.attributes:
                key = getattr(attribute, field)
                if key in seen:
                    both = f"attributes {seen[key]!r} and {attribute.name!r}"
                    raise SchemaError(f"schema {self.name!r}: {both} share the {field} {key!r}")
                seen[key] = attribute.name

    def __iter__(self) -> Iterator[Attribute]:
        return iter(self.attributes)

    def __len__(self) -> int:
        return len(self.attributes)

    def select(self, names: Iterable[str]) -> Schema:
        """The same schema narrowed (and reordered) to `names`.

        A name that the schema does not declare becomes an open string attribute, so that a row may ask for more than
        the catalog's columns; see `declares`.
        """
        known = {a.name: a for a in self.attributes}
        wanted = dict.fromkeys(names)
        used = {known[n].column for n in wanted if n in known}
        chosen: list[Attribute] = []
        for name in wanted:
            if name in known:
                chosen.append(known[name])
                continue
            attribute = Attribute(name)
            while attribute.column in used:
                attribute = replace(attribute, column=attribute.column + "_")
            used.add(attribute.column)
            chosen.append(attribute)
        return Schema(self.name, tuple(chosen))

    def declares(self, name: str) -> bool:
        return any(a.name == name for a in self.attributes)


@dataclass(frozen=True, slots=True)
class Document:
    """One product's text and the schema to ask of it."""

    text: str
    schema: Schema
