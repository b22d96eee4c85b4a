"""A GGUF file -> a Hugging Face directory, once per file and user.

transformers parses a GGUF's metadata anew (seconds each time) for the tokenizer, the configuration and the model, and
dequantises the weights in every process. Converted once, all processes of a machine map the same safetensors file.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from hpd_core.folders import check_makeable, made_once

#: Part of every directory's name: raise it when what is written changes.
_FORMAT = 1


def as_directory(file: Path) -> Path:
    """The directory that holds `file`, dequantised to float32, beside Hugging Face's own cache (HF_HOME moves both).

    Made on the first call; actors that start together convert once. Needs 4 bytes per parameter on disk. Raises
    SettingsError naming the cache where it cannot be written.
    """
    return made_once(_directory(file), lambda folder: _convert(file, folder), file.name)


def check_cache(file: Path) -> None:
    """Raises the SettingsError of `as_directory`, as far as it can be told without writing."""
    check_makeable(_directory(file), file.name)


def _directory(file: Path) -> Path:
    from huggingface_hub.constants import HF_HOME

    facts = file.stat()
    key = f"{file.resolve()} {facts.st_size} {facts.st_mtime_ns} {_FORMAT}"
    return Path(HF_HOME) / "hpd-gguf" / f"{file.stem}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


def _convert(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where, name = str(file.parent), file.name
    # float32: bfloat16 from GGUF is known to give garbage in places.
    loaded = AutoModelForCausalLM.from_pretrained(where, gguf_file=name, dtype=torch.float32)
    facts = loaded.config.to_dict()
    facts.pop("quantization_config", None)  # or save_pretrained refuses: the weights are no longer quantised
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(type(loaded.config).from_dict(facts), dtype=torch.float32)
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(where, gguf_file=name).save_pretrained(folder)
