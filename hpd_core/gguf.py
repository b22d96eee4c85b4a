"""A GGUF file -> a Hugging Face directory, once per file and user.

transformers parses a GGUF's metadata anew (seconds each time) for the tokenizer, the configuration and the model, and
dequantises the weights in every process. Converted once, all processes of a machine map the same safetensors file.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from pathlib import Path

from hpd_core import checkpoint, gguf_rules
from hpd_core.folders import check_makeable, made_once
from hpd_core.gguf_header import GgufHeader, read_header
from hpd_core.settings import SettingsError
from hpd_core.sizing import free_memory
from hpd_core.supported import UnsupportedModelError

#: Part of every directory's name: raise it when what is written changes, or what is refused.
_FORMAT = 2
_BYTES = 4  # of a parameter in float32

log = logging.getLogger(__name__)


def as_directory(file: Path) -> Path:
    """The directory that holds `file`, dequantised to float32, beside Hugging Face's own cache (HF_HOME moves both).

    Made on the first call; actors that start together convert once. Needs 4 bytes per parameter on disk, and in memory
    while it works. Raises SettingsError naming the cache where it cannot be written, or with the numbers where it does
    not fit; ModelNotFoundError where the file is none of GGUF, or cut short; UnsupportedModelError, before a weight is
    unpacked, where it cannot be decoded exactly, or where transformers would make another model of it.
    """
    return made_once(_directory(file), lambda folder: _fill(file, folder), file.name)


def check(file: Path) -> int:
    """Parameters of `file`; raises what `as_directory` raises, as far as it can be told without writing."""
    folder = _directory(file)
    check_makeable(folder, file.name)
    if folder.is_dir():
        return checkpoint.parameters(folder)
    header = read_header(file)
    gguf_rules.refuse(file, header)
    _check_room(file, folder, header.parameters)
    return header.parameters


def _directory(file: Path) -> Path:
    from huggingface_hub.constants import HF_HOME

    facts = file.stat()
    key = f"{file.resolve()} {facts.st_size} {facts.st_mtime_ns} {_FORMAT}"
    return Path(HF_HOME) / "hpd-gguf" / f"{file.stem}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


def _fill(file: Path, folder: Path) -> None:
    header = read_header(file)
    gguf_rules.refuse(file, header)
    _check_room(file, folder, header.parameters)
    said = "%s: its %.0f million parameters (%s) are dequantised to float32, once: %s in %s"
    size = _gib(_BYTES * header.parameters)
    log.info(said, file.name, header.parameters / 1e6, header.architecture, size, folder.parent)
    _convert(file, header, folder)


def _check_room(file: Path, folder: Path, parameters: int) -> None:
    needed = _BYTES * parameters
    there = next(part for part in folder.parents if part.is_dir())
    places = ((free_memory(), "memory"), (shutil.disk_usage(there).free, f"disk under {there} (HF_HOME moves it)"))
    for free, where in places:
        if needed > free:
            raise SettingsError(
                f"{file.name} cannot be unpacked: its {parameters / 1e6:,.0f} million parameters take {_gib(needed)} "
                f"in float32, and there are {_gib(free)} of free {where}"
            )


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"


def _convert(file: Path, header: GgufHeader, folder: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from hpd_core.model import refuse

    where, name = str(file.parent), file.name
    # float32: bfloat16 from GGUF is known to give garbage in places.
    try:
        config = AutoConfig.from_pretrained(where, gguf_file=name)
        refuse(config)  # what its header does not tell: classes that attend by themselves
        loaded, found = AutoModelForCausalLM.from_pretrained(
            where,
            config=config,
            gguf_file=name,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
        tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=name)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{file}: {error}") from error
    # An architecture that it does not know.
    except (ValueError, KeyError, TypeError, IndexError) as error:
        reason = " ".join(str(error).split())
        raise SettingsError(f"transformers cannot read {file}: {type(error).__name__}: {reason}") from error
    checkpoint.check_complete(str(file), found["missing_keys"], found["mismatched_keys"])
    for module in loaded.modules():
        if isinstance(frequencies := getattr(module, "inv_freq", None), torch.Tensor):
            gguf_rules.check_rotary(file, header, 2 * frequencies.numel())
    facts = loaded.config.to_dict()
    facts.pop("quantization_config", None)  # or save_pretrained refuses: the weights are no longer quantised
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(type(loaded.config).from_dict(facts), dtype=torch.float32)
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
