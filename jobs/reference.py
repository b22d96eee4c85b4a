"""docs/configuration.md, made of the models that read a job's YAML: every key, its type, its default and what it means.

`python -m jobs.reference` prints the page. What a key means is what the docstring of its class says, so that there is
one place to change; a key that no docstring explains is an error.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from hpd_core.confidence import ConfidenceSettings
from hpd_core.model_spec import ModelSpec
from hpd_core.schema import Attribute
from hpd_core.settings import INDIFFERENT, DecodeSettings
from hpd_core.template import PromptTemplate
from pipeline import config
from pipeline.job import JobSpec, OutputOptions, Pool, UnitCaps

_HEAD = """# Configuration

Every key of a job's YAML. Made by `python -m jobs.reference` from the models that check it; not written by hand.
Unknown keys are refused, and `hpd validate --config FILE` checks a file without loading a model. `--set key.key=value`
lays a value over the file. [docs/output.md](output.md) says what the output holds, [conf/](../conf) has whole jobs to
start from.

Keys marked **F** are part of the job's fingerprint: an output that was begun under another value is refused.
"""
_FILTERS = """The filters: `lines` (a list, one line per item), `html` (the text of a fragment), `json` (a text that
holds JSON, as data). A column whose name is no identifier is `{{ row["Product name"] }}`. What is null is nothing, and
blank lines are dropped."""
_OWN = "What is left out is what the model was fine-tuned for; the defaults are those of a model that was not."
_MODEL = """Or just a name: of conf/models.yaml, of a directory, a GGUF file, or a hub id. `smollm2-135m-ave` where
nothing is said."""
_POOL = """Where `threads` is 0 or the model's `dtype` is `auto`, `cpus`, `gpus` and `device` decide them, once per
output."""


@dataclass(frozen=True, slots=True)
class Section:
    """A table of the page. kind: the class with the keys. told_by: classes whose docstrings explain them, too.
    fingerprint: keys whose value decides what is in the output; None for all of them."""

    title: str
    kind: type
    told_by: tuple[type, ...] = ()
    fingerprint: tuple[str, ...] | None = ()
    but: tuple[str, ...] = ()
    note: str = ""


_WEIGHTS = ("source", "revision", "dtype", "prompting", "trust_remote_code", "long_context", "adapter", "quantization")
_COLUMNS = ("keep", "confidence", "statuses", "raw", "spans", "layout", "profile")
_DECODING = tuple(f.name for f in fields(DecodeSettings) if f.name not in INDIFFERENT)
SECTIONS = (
    Section("text", config.TextConfig, fingerprint=None, note=_FILTERS),
    Section("schemas", config.SchemasConfig, fingerprint=None),
    Section("A schema", config.SchemaConfig, fingerprint=None),
    Section("An attribute", config.AttributeConfig, (Attribute,), fingerprint=None),
    Section("input", config.InputConfig),
    Section("output", config.OutputConfig, (OutputOptions,), _COLUMNS),
    Section("model", ModelSpec, (), _WEIGHTS, but=("template",), note=_MODEL),
    Section("prompt", PromptTemplate, fingerprint=None, note=_OWN),
    Section("decode", DecodeSettings, (), _DECODING, note=_OWN),
    Section("confidence", ConfidenceSettings, fingerprint=None),
    Section("pool", Pool, (), ("threads",), note=_POOL),
    Section("units", UnitCaps),
    Section("run", config.RunConfig, (JobSpec,), ("pack_documents",)),
    Section("limits", config.LimitsConfig),
    Section("price", config.PriceConfig),
)


@dataclass(frozen=True, slots=True)
class ConfigKey:
    name: str
    type: str
    default: str
    meaning: str


def explained(kind: type) -> dict[str, str]:
    """{field: what the docstring of `kind` says of it}: the house writes "name: text.", or "name, other: text." for
    several, one after another or on lines of their own."""
    names = "|".join(sorted((re.escape(name) for name in _annotations(kind)), key=len, reverse=True))
    text = " ".join((inspect.getdoc(kind) or "").partition("\n\nThe others: ")[0].split())
    heads = list(re.finditer(rf"(?:^|(?<=[.;] ))((?:(?:{names}), )*(?:{names})): ", text))
    told = {}
    for number, head in enumerate(heads):
        end = heads[number + 1].start() if number + 1 < len(heads) else len(text)
        for name in head.group(1).split(", "):
            told[name] = text[head.end() : end].strip()
    return told


def keys(section: Section) -> list[ConfigKey]:
    """Raises LookupError where no docstring explains a key."""
    told: dict[str, str] = {}
    for kind in (*section.told_by, section.kind):
        told |= explained(kind)
    untold = [name for name in _annotations(section.kind) if name not in section.but and name not in told]
    if untold:
        raise LookupError(f"{section.kind.__name__}: its docstring does not explain {', '.join(untold)}")
    return [
        ConfigKey(name, _spelled(annotation), default, told[name])
        for name, (annotation, default) in _annotations(section.kind).items()
        if name not in section.but
    ]


def page() -> str:
    parts = [_HEAD]
    for section in SECTIONS:
        note = f"{section.note}\n\n" if section.note else ""
        rows = [f"\n## {section.title}\n\n{note}| key | type | default | |\n|---|---|---|---|"]
        for key in keys(section):
            decides = section.fingerprint is None or key.name in section.fingerprint
            mark = " **F**" if decides else ""
            cells = (f"`{key.name}`{mark}", key.type, key.default, key.meaning)
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        parts.append("\n".join(rows) + "\n")
    return "".join(parts)


def _annotations(kind: type) -> Mapping[str, tuple[Any, str]]:
    """{field: (annotation, default as it is written)} of a pydantic model or a dataclass."""
    if issubclass(kind, BaseModel):
        return {name: (f.annotation, _default(_of_pydantic(f))) for name, f in kind.model_fields.items()}
    if not is_dataclass(kind):
        return {}
    hints = typing.get_type_hints(kind)
    return {f.name: (hints[f.name], _default(_of_dataclass(f))) for f in fields(kind) if not f.name.startswith("_")}


def _of_pydantic(field: FieldInfo) -> Any:
    return field.get_default(call_default_factory=True)


def _of_dataclass(field: Any) -> Any:
    if field.default is not MISSING:
        return field.default
    return PydanticUndefined if field.default_factory is MISSING else field.default_factory()


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    text = str(value).replace("\n", "\\n") if not isinstance(value, int) else f"{value}"
    return f"`{text}`"


def _spelled(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _spelled(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_spelled(a) for a in arguments if a is not type(None))
    if origin in (list, tuple):
        return f"list of {_spelled(arguments[0])}"
    if origin is dict or origin is Mapping:
        return "mapping"
    if inspect.isclass(annotation) and issubclass(annotation, StrEnum):
        return ", ".join(f"`{member.value}`" for member in annotation)
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return "section"
    return {str: "text", int: "integer", float: "number", bool: "true or false", object: "see there"}.get(
        annotation, "any"
    )


if __name__ == "__main__":
    print(page(), end="")
