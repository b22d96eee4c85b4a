"""Tiny random models and prompts of raw ids: no tokenizer, no download, float64."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, Qwen3Config

from hpd_core.model import Model
from hpd_core.prompt import Prompt, SchemaPrompt
from hpd_core.schema import Attribute, Schema

VOCABULARY = 64
#: A third of the vocabulary ends a value, so that some end at once and others never do.
STOP_IDS = frozenset(range(0, VOCABULARY, 5))

_SHAPE = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=4096,
    # At the usual 0.02 attention is nearly uniform and a wrong mask hides in the noise.
    initializer_range=0.1,
    eos_token_id=0,
    bos_token_id=1,
    pad_token_id=2,
)
CONFIGS = {
    "llama": lambda: LlamaConfig(**_SHAPE),
    "qwen3": lambda: Qwen3Config(**_SHAPE),
    # window of 24 positions: shorter than every prompt here, so that it cuts prefix, document and gaps
    "gemma3": lambda: Gemma3TextConfig(
        **_SHAPE, sliding_window=24, layer_types=["sliding_attention", "full_attention", "sliding_attention"]
    ),
}


def tiny_model(kind: str, dtype: torch.dtype = torch.float64) -> Model:
    torch.manual_seed(7)
    hf = AutoModelForCausalLM.from_config(CONFIGS[kind](), dtype=dtype)
    with torch.no_grad():  # norms start at 1 and biases at 0; give them something to be wrong about
        for parameter in hf.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return Model(hf)


def schema_prompt(rng: random.Random, prefix: int, attributes: int, suffix: int = 0, name: str = "s") -> SchemaPrompt:
    def ids(length: int) -> tuple[int, ...]:
        return tuple(rng.randrange(VOCABULARY) for _ in range(length))

    schema = Schema(name, tuple(Attribute(f"a{n}") for n in range(attributes)))
    stubs = tuple(ids(rng.choice([1, 2, 3, 5])) for _ in range(attributes))
    return SchemaPrompt(schema, ids(prefix), ids(suffix), stubs)


def prompts_of(
    seed: int,
    lengths: Sequence[int],
    *,
    attributes: int = 4,
    prefix: int = 13,
    max_value_tokens: int = 6,
    schemas: int = 1,
    document_block: int = 1,
) -> list[Prompt]:
    """One prompt per document length, over `schemas` different prefixes."""
    rng = random.Random(seed)
    shared = [schema_prompt(rng, prefix, attributes, name=f"s{n}") for n in range(schemas)]
    documents = [tuple(rng.randrange(VOCABULARY) for _ in range(length)) for length in lengths]
    return [
        Prompt(shared[n % schemas], document, max_value_tokens, document_block=document_block)
        for n, document in enumerate(documents)
    ]
