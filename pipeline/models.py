"""Models by name, from conf/models.yaml. Registered under the entry point group `hpd_core.models`."""

from __future__ import annotations

from dataclasses import fields

from hpd_core import source
from hpd_core.model_spec import ModelSpec
from hpd_core.settings import SettingsError
from hpd_core.template import PromptTemplate
from pipeline.shipped import shipped

#: What decodes where nothing is said, and the model as published that it was trained from.
DEFAULT_MODEL, BASE_MODEL = "smollm2-135m-ave", "smollm2-135m"


def named_models() -> dict[str, ModelSpec]:
    """{name: spec}; raises SettingsError naming the entry and the key that conf/models.yaml has wrong."""
    known = [f.name for f in fields(ModelSpec) if f.name != "name"]
    models = {}
    for name, entry in shipped("models.yaml").items():
        unknown = set(entry) - set(known)
        if unknown:
            raise SettingsError(f"conf/models.yaml: {name}: unknown keys {sorted(unknown)}; known are {known}")
        template = entry.get("template")
        try:
            if template is not None:
                entry = entry | {"template": PromptTemplate(**template)}
            models[name] = ModelSpec(name=name, **entry)
        except (TypeError, SettingsError) as error:
            raise SettingsError(f"conf/models.yaml: {name}: {error}") from error
    return models


def model_spec(model: str) -> ModelSpec:
    """A name of conf/models.yaml, a directory, a GGUF file, a hub id or an adapter as a spec; see source.model_spec.

    Works in a checkout that is not installed too, where no entry point tells the decoder of these names.
    """
    return source.model_spec(model, named_models())
