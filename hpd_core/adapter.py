"""LoRA adapters and fine-tuned weights: made, saved, merged. The one file that knows peft."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import peft
import torch
from peft.tuners.lora import LoraLayer
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from hpd_core.checkpoint import ADAPTER
from hpd_core.settings import SettingsError


def add_lora(hf: Any, rank: int, *, dropout: float = 0.0, seed: int = 0) -> Any:
    """Puts LoRA of `rank` (scale 1) on every linear layer but the LM head, in place; nothing else stays trainable.

    Returns peft's wrapper, which knows the adapter; `hf` itself is what runs.
    """
    torch.manual_seed(seed)
    config = peft.LoraConfig(
        r=rank, lora_alpha=rank, lora_dropout=dropout, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    with _own_warnings_only():
        return peft.get_peft_model(hf, config)


def save_lora(wrapped: Any, folder: Path, base_model: str) -> int:
    """Writes the adapter as safetensors in half precision, with peft's own configuration; returns its bytes.

    Loaded weights are float32 again. `base_model` stands in the configuration in place of a path of this machine.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = peft.get_peft_model_state_dict(wrapped, save_embedding_layers=False)
    save_file({name: w.detach().to("cpu", torch.float16).contiguous() for name, w in weights.items()}, _at(folder))
    config = copy.copy(wrapped.peft_config["default"])
    config.base_model_name_or_path = base_model
    config.inference_mode = True
    config.target_modules = sorted(config.target_modules)  # a set: its order would change with every process
    config.save_pretrained(str(folder))
    return _at(folder).stat().st_size


def save_whole(hf: Any, tokenizer: Any, folder: Path) -> int:
    """Writes all weights and the tokenizer as a Hugging Face directory; returns the weights' bytes."""
    config = copy.deepcopy(hf.config)
    if hasattr(config, "quantization_config"):
        # A model that came out of a GGUF file refuses to be saved, although its weights are plain tensors by now.
        del config.quantization_config
    fresh = AutoModelForCausalLM.from_config(config, dtype=hf.dtype)
    fresh.load_state_dict(hf.state_dict())
    fresh.generation_config = hf.generation_config
    fresh.save_pretrained(str(folder))
    if tokenizer is not None:
        tokenizer.save_pretrained(str(folder))
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def merged(hf: Any, folder: Path) -> Any:
    """`hf` with the adapter in `folder` added to its weights.

    Raises SettingsError where the adapter has weights for other layers than the model's, or of other sizes, or for one
    of the two layers that share a weight.
    """
    head = hf.get_output_embeddings()
    is_tied = head is not None and head.weight is hf.get_input_embeddings().weight
    try:
        with _own_warnings_only():
            wrapped = peft.PeftModel.from_pretrained(hf, str(folder), is_trainable=False)
    except (RuntimeError, ValueError, TypeError, KeyError) as error:  # torch's sizes, peft's targets, its configuration
        if isinstance(error, torch.OutOfMemoryError):
            raise
        reason = " ".join(str(error).split())[:400]
        raise SettingsError(f"adapter {folder} does not fit this {hf.config.model_type!r} model: {reason}") from error
    loaded: dict[str, Tensor] = peft.get_peft_model_state_dict(wrapped, save_embedding_layers=False)
    with safe_open(str(_at(folder)), framework="pt") as stored:
        if set(stored.keys()) != set(loaded):
            raise SettingsError(
                f"adapter {folder}: its weights are for other layers than those of {hf.config.model_type!r}"
            )
    ends = (wrapped.get_input_embeddings(), wrapped.get_output_embeddings())
    if is_tied and any(isinstance(layer, LoraLayer) for layer in ends):
        raise SettingsError(
            f"adapter {folder} changes the embeddings or the head of {hf.config.model_type!r}, which share one weight: "
            f"merged into it, what was trained for one would change the other"
        )
    return wrapped.merge_and_unload()


@contextmanager
def _own_warnings_only() -> Iterator[None]:
    """Without transformers' complaint about a name of its own that peft 0.21 asks for."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        yield


def _at(folder: Path) -> Path:
    return folder / ADAPTER
