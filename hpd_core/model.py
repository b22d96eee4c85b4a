"""Weights and forward pass; the one file that knows transformers' model classes.

No model code is forked: attention is registered with transformers' `AttentionInterface`, and the plan of a step travels
as a keyword of the model's own forward down to it. Norms, rotary embeddings, experts, soft-capping of logits stay the
library's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from hpd_core import sizing, source
from hpd_core.attention import Plan
from hpd_core.recipe import folder_of
from hpd_core.settings import ModelSpec

ATTENTION = "hyper_parallel"
#: Keywords that transformers' layers hand to an attention function and that change nothing here.
_IGNORED = frozenset({"position_ids", "use_cache", "output_attentions", "is_causal", "cache", "cache_position"})


class UnsupportedModelError(ValueError):
    """A model whose answers would be wrong under this decoder; the message says why."""


def _hyper_parallel_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    plan: Plan,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: query [1, heads, T, d] -> ([1, T, heads, d], no weights)."""
    unknown = {
        name for name, value in others.items() if name not in _IGNORED and value is not None and value is not False
    }
    if unknown or attention_mask is not None or dropout:
        raise UnsupportedModelError(
            f"{type(module).__name__} asks attention for what this decoder does not do: "
            f"{', '.join(sorted(unknown)) or 'a mask of its own or dropout'}"
        )
    if sliding_window is None and _is_windowed(module.config, module.layer_idx):
        raise UnsupportedModelError(
            f"{type(module).__name__} keeps its sliding window to its own mask, which this decoder replaces"
        )
    out = plan.attend(
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        layer=module.layer_idx,
        scale=scaling,
        window=sliding_window,
        softcap=softcap,
    )
    return out.unsqueeze(0), None


AttentionInterface.register(ATTENTION, _hyper_parallel_attention)


class Model:
    """A decoder-only model of transformers, ready to run steps."""

    def __init__(self, hf: Any) -> None:
        _refuse(hf.config)
        hf.set_attn_implementation(ATTENTION)
        self.hf = hf.eval()
        self.device: torch.device = hf.device
        self.dtype: torch.dtype = hf.dtype

    @classmethod
    def load(cls, spec: ModelSpec, *, device: str = "auto") -> Model:
        """Loads weights: safetensors or GGUF (dequantised by transformers), and merges the spec's adapter into them.

        device: `auto`, `cpu`, `cuda:0` …
        """
        files = source.locate(spec)
        _refuse(source.load_config(files))
        where = device_named(device)
        with _in_silence():
            hf = AutoModelForCausalLM.from_pretrained(
                files.path,
                dtype=dtype_named(spec.dtype, where),
                use_safetensors=True,
                **files.arguments,
            )
        if spec.adapter:
            from hpd_core import adapter  # peft takes seconds to import

            hf = adapter.merged(hf, folder_of(spec.adapter))
        return cls(hf.to(where))

    @torch.inference_mode()
    def step(self, ids: Tensor, positions: Tensor, plan: Plan, rows: Tensor) -> Tensor:
        """One forward pass over a flat axis: ids and positions [T] -> logits [n, vocabulary] of `rows` [n]."""
        result = self.hf(
            input_ids=ids[None], position_ids=positions[None], use_cache=False, logits_to_keep=rows, plan=plan
        )
        logits: Tensor = result.logits[0]
        return logits

    @contextmanager
    def native_attention(self, implementation: str) -> Iterator[Any]:
        """The transformers model under the library's own attention (`eager`, `sdpa`), for oracle and baselines."""
        self.hf.set_attn_implementation(implementation)
        try:
            yield self.hf
        finally:
            self.hf.set_attn_implementation(ATTENTION)

    @property
    def kv_bytes_per_token(self) -> int:
        """Of all layers; see `sizing.kv_bytes_per_token`."""
        return sizing.kv_bytes_per_token(self.hf.config, self.dtype.itemsize)

    def tensor(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)


@contextmanager
def _in_silence() -> Iterator[None]:
    """Without transformers' bar over the weights, which takes a second and is no progress of anybody's work."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def device_named(name: str) -> torch.device:
    """`auto` is the GPU where there is one."""
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


def dtype_named(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        # Measured on AVX-512 without AMX: float32 beats bfloat16 from 32 rows up.
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return {
        "float32": torch.float32,
        "float64": torch.float64,
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
    }[name]


def _is_windowed(config: Any, layer: int) -> bool:
    """Whether the configuration gives this layer a sliding window."""
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return bool(kinds[layer] == "sliding_attention")
    return bool(getattr(config, "sliding_window", None)) and getattr(config, "use_sliding_window", True)


def _refuse(config: Any) -> None:
    """Raises UnsupportedModelError for what cannot be decoded exactly, before any weight is loaded."""
    kind, text = config.model_type, config.get_text_config()
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(f"{kind!r} is an encoder-decoder model; decoder-only models are supported")
    if any(
        getattr(text, name, None)
        for name in ("state_size", "ssm_state_size", "mamba_d_state", "linear_num_value_heads")
    ):
        raise UnsupportedModelError(
            f"{kind!r} has recurrent layers, whose state follows memory order and not positions"
        )
    other = set(getattr(text, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if other:
        raise UnsupportedModelError(f"{kind!r} has layers that are not plain attention: {', '.join(sorted(other))}")
    if getattr(text, "alibi", False):
        raise UnsupportedModelError(f"{kind!r} biases attention by memory order (ALiBi)")
    rope = getattr(text, "rope_parameters", None) or {}
    kinds = {p.get("rope_type") for p in (rope, *(v for v in rope.values() if isinstance(v, dict)))}
    for refused in ("dynamic", "longrope"):
        if refused in kinds:
            raise UnsupportedModelError(
                f"{kind!r} uses {refused!r} RoPE scaling, which transformers recomputes from the largest position of a "
                f"forward pass: an answer would depend on the documents it is packed with"
            )
