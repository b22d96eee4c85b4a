"""The YAML of a job as typed, checked data; compose.py makes a job of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    RootModel,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from hpd_core import recipe
from hpd_core.confidence import ConfidenceSettings
from hpd_core.model_spec import ModelSpec
from hpd_core.schema import ValueType
from hpd_core.settings import AUTO, SIZES, DecodeSettings
from hpd_core.template import PromptTemplate
from pipeline.checked import ConfigError, checked, read_mapping, unknown_key
from pipeline.job import JobSpec, Pool, UnitCaps
from pipeline.models import DEFAULT_MODEL, model_spec
from pipeline.shipped import YamlError, parse_yaml


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def _only_fields_of(kind: type, *, but: Sequence[str] = ()) -> BeforeValidator:
    """Refuses keys that the dataclass `kind` lacks: pydantic itself would drop them in silence."""
    known = [f.name for f in fields(kind) if f.name not in but]

    def check(value: Any) -> Any:
        for key in value if isinstance(value, Mapping) else ():
            if key not in known:
                raise PydanticCustomError(
                    "unknown_key", "{text}", {"text": unknown_key(str(key), known), "key": str(key)}
                )
        return value

    return BeforeValidator(check)


class InputConfig(_Section):
    """path: file, folder or glob, local or a URI, or a list of them. A local file is known by its absolute path without
        `..`; symbolic links keep their names, so what is called `current` may come to point elsewhere.

    limit: only the first so many rows; a larger one extends a run.
    storage: fsspec options by argument name (s3: `key`, `secret`, `anon`, `endpoint_url`, …); written nowhere.
    """

    path: str | list[str] | None = None
    limit: int | None = None
    storage: dict[str, Any] = Field(default_factory=dict)


class OutputConfig(_Section):
    """path: local folder or URI.

    keep: input columns to keep, all by default.
    storage: fsspec options by argument name; written nowhere.

    The others: see pipeline.job.OutputOptions.
    """

    path: str | None = None
    keep: list[str] | None = None
    confidence: bool = False
    statuses: bool = False
    raw: bool = False
    spans: bool = False
    layout: str = "flat"
    profile: str = ""
    storage: dict[str, Any] = Field(default_factory=dict)


class TextConfig(_Section):
    """template: Jinja over the columns of a row, with the filters of pipeline.text.

    category_column: its value picks the schema of a row; without one every row gets `schemas.default`.
    attributes_column: list<string> column in which a row may name the attributes it asks for; null or empty means all.
    """

    template: str
    category_column: str | None = None
    attributes_column: str | None = None


class AttributeConfig(_Section):
    """See hpd_core.schema.Attribute; a bare text in YAML is an open attribute of that name."""

    name: str
    description: str = ""
    values: list[str] = Field(default_factory=list)
    type: ValueType = ValueType.STRING
    column: str = ""
    many: bool = False


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class SchemaConfig(_Section):
    """categories: values of the category column that ask this schema; its own name where none is given.

    attributes: what is asked, in this order; a bare text is an open attribute of that name.
    """

    categories: list[str] = Field(default_factory=list)
    attributes: list[Annotated[AttributeConfig, BeforeValidator(_named)]]


class SchemaFile(RootModel[dict[str, SchemaConfig]]):
    """A file of schemas: {name: schema}."""


class SchemasConfig(_Section):
    """file: YAML of {name: schema}, its path relative to the job's file.

    define: more of them, {name: schema}.
    default: name of the schema for rows whose category is null, blank or of no schema; without it they are errors.
    """

    file: str | None = None
    define: dict[str, SchemaConfig] = Field(default_factory=dict)
    default: str | None = None


_OF_A_JOB: dict[str, Any] = {f.name: f.default for f in fields(JobSpec)}


class RunConfig(_Section):
    """See the fields of pipeline.job.JobSpec with these names."""

    pack_documents: int = _OF_A_JOB["pack_documents"]
    pack_deadline_seconds: float = _OF_A_JOB["pack_deadline_seconds"]
    max_rounds: int = _OF_A_JOB["max_rounds"]
    on_bad_file: str = _OF_A_JOB["on_bad_file"]
    allow_mixed: bool = _OF_A_JOB["allow_mixed"]
    budget_seconds: float | None = _OF_A_JOB["budget_seconds"]
    ray_address: str | None = _OF_A_JOB["ray_address"]
    num_cpus: int | None = _OF_A_JOB["num_cpus"]


class LimitsConfig(_Section):
    """max_error_rate: share of rows that may end in error; with more of them `hpd extract` exits with 3."""

    max_error_rate: float = Field(default=0.05, ge=0, le=1)

    def allow(self, errors: int, rows: int) -> bool:
        """Whether so many of so many rows may end in error."""
        return errors <= self.max_error_rate * rows


class PriceConfig(_Section):
    """machine: a name of conf/prices.yaml.

    dollars_per_hour: what one machine really costs you, in place of the price in that file.
    machines: how many run.
    """

    machine: str | None = None
    dollars_per_hour: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    machines: float = Field(default=1, gt=0, allow_inf_nan=False)


def _model(value: Any) -> Any:
    if isinstance(value, str):
        return model_spec(value)
    if isinstance(value, Mapping) and "name" in value and "source" not in value:
        return replace(model_spec(value["name"]), **{key: v for key, v in value.items() if key != "name"})
    return value


def _as_trained(model: ModelSpec) -> ModelSpec:
    return recipe.decoder_spec(model).model


class JobConfig(_Section):
    """A whole job.

    model: a name of conf/models.yaml, a directory, a GGUF file or a hub id; or the fields of ModelSpec, where a `name`
    without a `source` fills in the rest.
    prompt, decode: what they leave out is what the model was fine-tuned for, or the default. `tokens_per_step`,
        `max_slots` and `kv_mib` may be `auto`: see docs/reliability.md.
    confidence: see hpd_core.confidence.ConfidenceSettings.
    """

    text: TextConfig
    schemas: SchemasConfig
    input: InputConfig = InputConfig()
    output: OutputConfig = OutputConfig()
    model: Annotated[
        ModelSpec, AfterValidator(_as_trained), BeforeValidator(_model), _only_fields_of(ModelSpec, but=["template"])
    ] = Field(default=DEFAULT_MODEL, validate_default=True)
    prompt: Annotated[PromptTemplate, _only_fields_of(PromptTemplate)] = Field(default={}, validate_default=True)
    decode: Annotated[DecodeSettings, _only_fields_of(DecodeSettings)] = Field(default={}, validate_default=True)
    confidence: Annotated[ConfidenceSettings, _only_fields_of(ConfidenceSettings)] = ConfidenceSettings()
    pool: Annotated[Pool, _only_fields_of(Pool)] = Pool()
    units: Annotated[UnitCaps, _only_fields_of(UnitCaps)] = UnitCaps()
    run: RunConfig = RunConfig()
    limits: LimitsConfig = LimitsConfig()
    price: PriceConfig = PriceConfig()

    @field_validator("prompt", "decode", mode="before")
    @classmethod
    def _over_the_models_own(cls, given: Any, info: ValidationInfo) -> Any:
        if not isinstance(given, Mapping) or "model" not in info.data:  # the model's own error says enough
            return given
        for name in SIZES:  # pydantic would name each of the types that it might be
            value = given.get(name)
            if not (value is None or value == AUTO or str(value).lstrip("-").isdecimal()):
                raise ValueError(f"{name} is {value!r}: must be a whole number or {AUTO}")
        own = recipe.decoder_spec(info.data["model"])
        return asdict(own.template if info.field_name == "prompt" else own.settings) | dict(given)

    def public(self) -> dict[str, Any]:
        """JSON-able, without the storage options, which may hold secrets."""
        return self.model_dump(mode="json", exclude={"input": {"storage"}, "output": {"storage"}})


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> JobConfig:
    """Reads a job's YAML with `key.key=value` overrides (values are YAML) laid over it. Raises `ConfigError`."""
    tree, given = _laid_over(path, overrides)
    return checked(JobConfig, tree, str(path), given)


def config_tree(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The same as it was written, unchecked: to be put into another file. It holds the storage options."""
    return _laid_over(path, overrides)[0]


def _laid_over(path: str | Path, overrides: Sequence[str]) -> tuple[dict[str, Any], dict[tuple[str, ...], str]]:
    """(the YAML with its overrides, {steps of a key: the override that set it})."""
    tree = read_mapping(path)
    _spell_out_model(tree)
    given: dict[tuple[str, ...], str] = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        steps = tuple(key.strip().split("."))
        if not equals or not all(steps):
            raise ConfigError(f"{override_name(override)}: must be written key.key=value")
        try:
            # A template is no YAML unless it is quoted, and nothing else begins like one.
            is_template = value.lstrip().startswith(("{{", "{%"))
            _put(tree, steps, value if is_template else parse_yaml(value, override_name(override)))
        except YamlError as error:
            raise ConfigError(str(error)) from error
        except TypeError:
            raise ConfigError(f"{override_name(override)}: {'.'.join(steps[:-1])} is no section of keys") from None
        _spell_out_model(tree)
        given[steps] = override_name(override)
    return tree, given


def override_name(override: str) -> str:
    """What messages call an override. Where storage options are, and a store's secret may be, it has no value."""
    key, equals, _ = override.partition("=")
    hidden = equals and {"input", "output", "storage"} & set(key.strip().split("."))
    return f"--set {key}=…" if hidden else f"--set {override}"


def _spell_out_model(tree: dict[str, Any]) -> None:
    """`model: x` becomes `model: {name: x}`, so that `--set model.dtype=…` keeps the name."""
    model = tree.setdefault("model", DEFAULT_MODEL)
    if isinstance(model, str):
        tree["model"] = {"name": model}


def _put(tree: dict[str, Any], steps: Sequence[str], value: Any) -> None:
    for step in steps[:-1]:
        tree = tree.setdefault(step, {})
        if not isinstance(tree, dict):
            raise TypeError(step)
    tree[steps[-1]] = value
