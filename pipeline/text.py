"""Columns of a row -> the text of a document, by a Jinja2 template in its sandbox.

`{{ title }}`, `{{ bullets | lines }}`, `{{ description | html }}`, `{{ details.brand }}`, `{{ (spec | json).Colour }}`;
a column whose name is no identifier is `{{ row["Product name"] }}`. What is null or missing becomes nothing, and lines
left blank are dropped.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.sandbox import SandboxedEnvironment, SecurityError
from selectolax.lexbor import LexborHTMLParser

_MARKUP = re.compile(r"</?[A-Za-z][^<>]*>|<!--|&(?:#\d+|#[xX][0-9A-Fa-f]+|[A-Za-z][A-Za-z0-9]*);")
_BLOCKS = "address,article,blockquote,br,dd,div,dl,dt,figure,h1,h2,h3,h4,h5,h6,hr,li,ol,p,pre,section,table,tr,ul"
_BLANKS = re.compile(r"[^\S\n]+")
#: Name by which a template reaches columns that are no identifiers.
ROW = "row"


class TemplateError(ValueError):
    """A text template that does not parse, uses what a template may not, or names no column."""


def html_text(value: Any) -> str:
    """The text of an HTML fragment: one line per block, cells of a table row apart, scripts and comments left out.

    A text without a tag or a character reference comes back as it is, so that "5 < 7" survives.
    """
    text = plain(value)
    if not _MARKUP.search(text):
        return text
    body = LexborHTMLParser(text).body
    if body is None:
        return ""
    for node in body.css("script,style,template,noscript"):
        node.decompose()
    for node in body.css(_BLOCKS):
        node.insert_before("\n")
        node.insert_after("\n")
    for node in body.css("td,th"):
        node.insert_after(" ")
    return body.text()


def plain(value: Any) -> str:
    """Any column value as text: null, NaN and undefined are empty, a list has a line per item, a struct per field."""
    if value is None or isinstance(value, jinja2.Undefined) or value != value:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return "\n".join(f"{key}: {text}" for key, text in ((k, plain(v)) for k, v in value.items()) if text)
    if isinstance(value, list | tuple):
        return "\n".join(text for text in map(plain, value) if text)
    if isinstance(value, dt.datetime | dt.date):
        return value.isoformat()
    return str(value)


def bullet_lines(value: Any) -> str:
    """A list as one "- item" per line; a single text is one item; nulls and blanks are left out."""
    items = value if isinstance(value, list | tuple) else [value]
    return "\n".join(f"- {text}" for text in (html_text(item).strip() for item in items) if text)


def parsed_json(value: Any) -> Any:
    """The value of a column that holds JSON text; null or blank text is nothing, and so is text that is not JSON."""
    try:
        return json.loads(plain(value) or "null")
    except ValueError:
        return None


class _ColumnEnvironment(SandboxedEnvironment):
    """A sandbox where `struct.field` is the field, never a method of dict, and where no global hides a column."""

    #: `{{ title * 100000000 }}` would take the machine's memory.
    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or not all(isinstance(side, int | float) for side in (left, right)):
            raise SecurityError(f"a template may only multiply numbers, not {type(left).__name__} {operator} ...")
        return super().call_binop(context, operator, left, right)

    def __init__(self) -> None:
        super().__init__(undefined=jinja2.ChainableUndefined, finalize=plain, autoescape=False)
        self.globals.clear()
        self.filters |= {"html": html_text, "lines": bullet_lines, "json": parsed_json}

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, Mapping):
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)


@lru_cache(maxsize=32)
def _compiled(source: str) -> tuple[jinja2.Template, tuple[tuple[str, ...], ...]]:
    environment = _ColumnEnvironment()
    try:
        tree = environment.parse(source)
        template = environment.from_string(source)
    except jinja2.TemplateError as error:
        raise TemplateError(f"text template: {error}") from error
    free = meta.find_undeclared_variables(tree)
    fields = dict.fromkeys(path for path in _paths(tree) if path[0] in free)
    if (ROW,) in fields:
        raise TemplateError(
            f"text template: {ROW!r} must be used with the name of a column, as in {ROW}['Product name']"
        )
    return template, tuple(dict.fromkeys(path[1:] if path[0] == ROW else path for path in fields))


def _paths(node: nodes.Node) -> Iterator[tuple[str, ...]]:
    """Every longest chain `name.field.field` under `node`."""
    chain = _chain(node)
    if chain:
        yield chain
        return
    for child in node.iter_child_nodes():
        yield from _paths(child)


def _chain(node: nodes.Node) -> tuple[str, ...]:
    if isinstance(node, nodes.Name):
        return (node.name,)
    if isinstance(node, nodes.Getattr):
        step = node.attr
    elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
        step = node.arg.value
    else:
        return ()
    inner = _chain(node.node)
    return (*inner, step) if inner else ()


@dataclass(frozen=True, slots=True)
class TextTemplate:
    """A checked template. Holds its source alone, so that it pickles; it is compiled once in each process."""

    source: str

    def __post_init__(self) -> None:
        if not self.fields:
            raise TemplateError("text template: names no column")

    @property
    def fields(self) -> tuple[tuple[str, ...], ...]:
        """Column paths the template reads, in its order: ("details", "brand") for `details.brand`."""
        return _compiled(self.source)[1]

    @property
    def columns(self) -> tuple[str, ...]:
        """Top-level columns it reads, each once, in its order."""
        return tuple(dict.fromkeys(path[0] for path in self.fields))

    def render(self, row: Mapping[str, Any]) -> str:
        """The text of `row` {column: value}; empty where no column of it has any. May raise what a filter raises."""
        text = _compiled(self.source)[0].render({**row, ROW: row})
        lines = (_BLANKS.sub(" ", line).strip() for line in text.splitlines())
        # JSON text may hold half a surrogate pair, which is no character and would stop a tokenizer.
        return "\n".join(line for line in lines if line).encode("utf-8", "replace").decode()
