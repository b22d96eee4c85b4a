"""A GGUF file -> a Hugging Face directory, once per file and user.

transformers parses a GGUF's metadata anew (seconds each time) for the tokenizer, the configuration and the model, and
dequantises the weights in every process. Converted once, all processes of a machine map the same safetensors file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

#: Part of every directory's name: raise it when what is written changes.
_FORMAT = 1


def as_directory(file: Path) -> Path:
    """The directory that holds `file`, dequantised to float32, beside Hugging Face's own cache (HF_HOME moves both).

    Made under a lock on the first call, so that actors that start together convert once. Needs 4 bytes per parameter
    on disk. Raises OSError where the cache cannot be written.
    """
    from filelock import FileLock
    from huggingface_hub.constants import HF_HOME

    facts = file.stat()
    key = f"{file.resolve()} {facts.st_size} {facts.st_mtime_ns} {_FORMAT}"
    folder = Path(HF_HOME) / "hpd-gguf" / f"{file.stem}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".converting-"))
            try:
                _convert(file, work)
                os.replace(work, folder)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return folder


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
