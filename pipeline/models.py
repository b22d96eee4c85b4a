"""Models by name, from conf/models.yaml. Registered under the entry point group `hpd_core.models`."""

from __future__ import annotations

import importlib.metadata
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path

from hpd_core.settings import ModelSpec, SettingsError
from pipeline.shipped import shipped

DEFAULT_MODEL = "smollm2-135m"


def named_models() -> dict[str, ModelSpec]:
    """{name: spec}; raises SettingsError naming the entry and the key that conf/models.yaml has wrong."""
    known = [f.name for f in fields(ModelSpec) if f.name != "name"]
    models = {}
    for name, entry in shipped("models.yaml").items():
        unknown = set(entry) - set(known)
        if unknown:
            raise SettingsError(f"conf/models.yaml: {name}: unknown keys {sorted(unknown)}; known are {known}")
        models[name] = ModelSpec(name=name, **entry)
    return models


def model_spec(model: str) -> ModelSpec:
    """A name of conf/models.yaml, a directory, a GGUF file or a hub id as a spec; looks at no file's content.

    Raises SettingsError with the nearest name for a text that is none of these.
    """
    models = named_models()
    if model in models:
        return models[model]
    if Path(model).expanduser().exists() or "/" in model or model.startswith("package:"):
        return ModelSpec(source=model)
    close = get_close_matches(model, models, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known names are {', '.join(models)}"
    raise SettingsError(f"no model {model!r}: neither a name, a path nor a hub id; {hint}")


def check_installed(spec: ModelSpec) -> None:
    """Raises SettingsError with the command that installs it where a `package:` source or a local file is missing."""
    if spec.source.startswith("package:"):
        package = spec.source.removeprefix("package:").partition("/")[0]
        try:
            importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            how = f"; install it with: {spec.install}" if spec.install else ""
            raise SettingsError(f"model {spec.name!r}: package {package!r} is not installed{how}") from None
    elif spec.source.endswith(".gguf") and not Path(spec.source).expanduser().is_file():
        raise SettingsError(f"model {spec.name!r}: no file {spec.source}")
