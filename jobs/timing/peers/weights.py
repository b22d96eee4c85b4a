"""The model's weights as a Hugging Face folder that any engine reads: float32, the adapter merged."""

from __future__ import annotations

import hashlib
from pathlib import Path

from hpd_core import recipe, source
from hpd_core.folders import made_once
from hpd_core.model_spec import ModelSpec

#: Part of every folder's name: raise it when what is written changes.
_FORMAT = 1


def merged_folder(spec: ModelSpec) -> Path:
    """The folder of `spec`, made on the first call, beside Hugging Face's own cache (HF_HOME moves both).

    Raises SettingsError where the cache cannot be written, and what loading the model raises.
    """
    from huggingface_hub.constants import HF_HOME

    adapter = recipe.content_hash(spec.adapter) if spec.adapter else ""
    key = f"{source.identity(spec)} {adapter} {_FORMAT}"
    name = f"merged-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    return made_once(Path(HF_HOME) / "hpd-peers" / name, lambda folder: _write(spec, folder), spec.name)


def _write(spec: ModelSpec, folder: Path) -> None:
    from dataclasses import replace

    from hpd_core.adapter import save_whole
    from hpd_core.model import Model

    model = Model.load(replace(spec, dtype="float32"), device="cpu")
    save_whole(model.hf, source.load_tokenizer(source.locate(spec, weights=False)), folder)
