"""Weights and forward pass; the one file that knows transformers' model classes.

No model code is forked: attention is registered with transformers' `AttentionInterface`, and the plan of a step travels
as a keyword of the model's own forward down to it. Norms, rotary embeddings, experts, soft-capping of logits stay the
library's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AttentionInterface, AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.utils import logging as transformers_logging

from hpd_core import checkpoint, quantization, selfcheck, source, supported
from hpd_core.attention import Plan
from hpd_core.explained import explained
from hpd_core.model_spec import ModelSpec, Quantization
from hpd_core.placement import check_memory, device_named, dtype_named
from hpd_core.products import Scoring
from hpd_core.quantization import DEQUANTISED
from hpd_core.recipe import folder_of
from hpd_core.selfcheck import DensePlan
from hpd_core.spread import SPREAD, is_spread, spread
from hpd_core.supported import UnsupportedModelError

ATTENTION = "hyper_parallel"
#: Keywords that transformers' layers hand to an attention function and that change nothing here.
_IGNORED = frozenset({"position_ids", "use_cache", "output_attentions", "is_causal", "cache", "cache_position"})


class _PlanLostError(TypeError):
    """Attention was called without the plan of the step."""


def _hyper_parallel_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    plan: Plan | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: query [1, heads, T, d] -> ([1, T, heads, d], no weights). s_aux [heads]: what
    `Scoring` calls sinks."""
    if plan is None:
        raise _PlanLostError(f"{type(module).__name__} was called without a plan: its layers drop keywords")
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
        scoring=Scoring(scaling, window=sliding_window, softcap=softcap, sinks=s_aux),
    )
    return out.unsqueeze(0), None


AttentionInterface.register(ATTENTION, _hyper_parallel_attention)


class Model:
    """A decoder-only model of transformers, ready to run steps."""

    def __init__(self, hf: Any, *, long_context: bool = False, rounds_activations: bool = False) -> None:
        """long_context: see ModelSpec. rounds_activations: see `quantization.QuantizedKind`; the check bears more."""
        refuse(hf.config)
        self.context = source.context_length(hf.config, long_context=long_context)
        if long_context:
            _take_long_factors(hf)
        if hf.dtype == torch.float64 and hf._can_set_experts_implementation():
            hf.set_experts_implementation("eager")  # the grouped products of torch know no float64
        hf.set_attn_implementation(ATTENTION)
        self.hf = hf.eval()
        self.device: torch.device = hf.device
        self.dtype: torch.dtype = hf.dtype
        self._rounds_activations = rounds_activations
        self.is_spread = is_spread(hf)
        self._carried: Plan | None = None

    @classmethod
    def load(cls, spec: ModelSpec, *, device: str = "auto") -> Model:
        """Loads weights: safetensors or GGUF (dequantised by transformers), merges the spec's adapter into them and
        quantises what comes of it as the spec asks.

        device: `auto`, `cpu`, `cuda:0` …, `spread` for all GPUs that this process sees. Raises UnsupportedModelError
        before any weight is read where the configuration tells, and after a few forward passes over a dozen tokens
        where only they do; SettingsError where the weights do not fit or cannot be quantised there.
        """
        files = source.locate(spec)
        config = source.load_config(files)
        refuse(config)
        where = device_named(device)
        dtype = dtype_named(spec.dtype, where)
        arguments = dict(files.arguments)
        if stored := quantization.stored_as(spec.name, config.to_dict()):
            arguments["quantization_config"] = getattr(transformers, DEQUANTISED[stored])(dequantize=True)
        name = str(dtype).removeprefix("torch.")
        quantization.check(spec, dtype=name, on_gpu=where.type == "cuda", gpus=2 if device == SPREAD else 1)
        quantization.check_installed(spec)
        if Path(files.path).is_dir():
            check_memory(spec, Path(files.path), name, device, where)
        else:
            source.check_hub_weights(spec.name, files)
        with _in_silence(), explained(files.path, "weights"):
            hf, found = AutoModelForCausalLM.from_pretrained(
                files.path,
                dtype=dtype,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # `check_complete` names them
                **arguments,
            )
        checkpoint.check_complete(files.path, found["missing_keys"], found["mismatched_keys"])
        if spec.adapter:
            from hpd_core import adapter  # peft takes seconds to import

            hf = adapter.merged(hf, folder_of(spec.adapter))
        if spec.quantization is not Quantization.NONE:
            from hpd_core.quantize import quantize  # torchao takes seconds to import

            quantize(hf, spec, where)
        hf = spread(hf) if device == SPREAD else hf.to(where)
        rounded = quantization.rounds_activations(spec.quantization)
        model = cls(hf, long_context=spec.long_context, rounds_activations=rounded)
        model.check()
        return model

    def as_current(self) -> AbstractContextManager[Any]:
        """Its GPU as CUDA's current device: graphs are recorded, and events noted, on that one, whatever tensors they
        are about. On a CPU nothing."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    @torch.inference_mode()
    def step(self, ids: Tensor, positions: Tensor, plan: Plan, rows: Tensor) -> Tensor:
        """One forward pass over a flat axis: ids and positions [T] -> logits [n, vocabulary] of `rows` [n]."""
        try:
            return self._forward(ids, positions, plan, rows)
        except _PlanLostError:  # in the first layer, before anything was written
            self._carry_plans()
        return self._forward(ids, positions, plan, rows)

    def _forward(self, ids: Tensor, positions: Tensor, plan: Plan, rows: Tensor) -> Tensor:
        self._carried = plan
        if self.is_spread:  # the last hidden states lie on another GPU, and an index on the CPU is taken everywhere
            rows = rows.cpu()
        try:
            result = self.hf(
                input_ids=ids[None], position_ids=positions[None], use_cache=False, logits_to_keep=rows, plan=plan
            )
        finally:
            self._carried = None
        logits: Tensor = result.logits[0]
        return logits

    def _carry_plans(self) -> None:
        """Hands the plan to every attention module itself: some models' layers drop keywords on the way (StableLM)."""

        def add_plan(module: Any, arguments: Any, keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
            return None if self._carried is None else (arguments, keywords | {"plan": self._carried})

        for module in self.hf.modules():
            if hasattr(module, "layer_idx") and "ttention" in type(module).__name__:
                module.register_forward_pre_hook(add_plan, with_kwargs=True)

    def check(self) -> None:
        """Runs the model on a few tokens; raises UnsupportedModelError where its answers would be wrong."""

        def forward(ids: Tensor, positions: Tensor, plan: Plan) -> Tensor:
            return self.step(ids, positions, plan, torch.arange(len(ids), device=self.device))

        def native(ids: Tensor) -> Tensor:
            with self.native_attention() as hf:
                logits: Tensor = hf(input_ids=ids[None], use_cache=False).logits[0]
                return logits

        config = self.hf.config
        selfcheck.check(
            config.model_type,
            forward,
            native,
            vocabulary=config.get_text_config().vocab_size,
            context=self.context,
            device=self.device,
            dtype=self.dtype,
            rounds_activations=self._rounds_activations,
        )

    @contextmanager
    def native_attention(self, implementation: str = "sdpa") -> Iterator[Any]:
        """The transformers model under the library's own attention, for oracle and baselines.

        implementation: `eager`, or `sdpa`, in whose place comes `eager` for models that have no other (soft-capping).
        """
        self.hf.set_attn_implementation(implementation if self.hf._supports_sdpa else "eager")
        try:
            yield self.hf
        finally:
            self.hf.set_attn_implementation(ATTENTION)

    @cached_property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's keys and values in all layers, as seen in a forward pass over one token.

        Layers differ in ways that every configuration has words of its own for: latent attention, wider heads where
        there is no window.
        """
        first = self.tensor([0])
        plan = DensePlan(torch.ones(1, 1, dtype=torch.bool, device=self.device))
        self.step(first, first, plan, first)
        return plan.bytes_per_token

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


def _take_long_factors(hf: Any) -> None:
    """Fixes longrope to its long factors, whatever the positions of a forward pass. Raises UnsupportedModelError where
    they are kept for each kind of layer."""
    for module in hf.modules():
        kind = getattr(module, "rope_type", None)
        if isinstance(kind, Mapping) and "longrope" in kind.values():
            raise UnsupportedModelError(
                f"{hf.config.model_type!r} keeps RoPE factors for each kind of layer, and long_context fixes those of "
                f"a model with one set: leave it out, and documents are cut to the original length"
            )
        if kind == "longrope":
            original = module.config.rope_parameters["original_max_position_embeddings"]
            factors, _ = ROPE_INIT_FUNCTIONS["longrope"](module.config, module.inv_freq.device, seq_len=original + 1)
            module.inv_freq.copy_(factors)
            module.original_inv_freq.copy_(factors)


def _is_windowed(config: Any, layer: int) -> bool:
    """Whether the configuration gives this layer a sliding window."""
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return kinds[layer] in supported.WINDOWED
    return bool(getattr(config, "sliding_window", None)) and getattr(config, "use_sliding_window", True)


def refuse(config: Any) -> None:
    """Raises UnsupportedModelError for what cannot be decoded exactly, before any weight is loaded."""
    supported.refuse(config.to_dict())
    kind = config.model_type
    known = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if known is None and not getattr(config, "auto_map", None):
        raise UnsupportedModelError(f"{kind!r} is no causal language model of this version of transformers")
    if known is not None and not known._can_set_attn_implementation():
        raise UnsupportedModelError(
            f"{kind!r} cannot be decoded exactly: its attention does not go through transformers' AttentionInterface"
        )
