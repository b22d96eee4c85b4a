"""What a model's configuration says about whether it can be decoded exactly. Plain facts: no torch, no transformers.

Rules on what a configuration holds, not a list of names: a new hybrid is refused like the known ones. What no
configuration tells is found by running the loaded model once; see `selfcheck.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

#: Kinds of layers in which a token sees no further than a sliding window.
WINDOWED = frozenset({"sliding_attention", "sliding", "local"})
#: Kinds of layers in which a token reads others through attention alone.
_ATTENTION = WINDOWED | {"full_attention", "attention", "full", "global"}
#: Those in which a mask picks keys by more than positions and a window: by chunks, or the likeliest ones.
_OWN_MASK = frozenset({"chunked_attention", "window_attention", "indexed_attention", "minimax_m3_sparse"})
#: Where configurations list the kind of every layer.
_LAYER_LISTS = ("layer_types", "layers_block_type", "block_types", "attention_types", "hybrid_override_pattern")
#: Letters of `hybrid_override_pattern` (Nemotron-H): attention and the two kinds of plain layers.
_PATTERN = {"M": "mamba", "*": "attention", "-": "attention", "E": "attention"}
#: Kinds of RoPE that transformers has functions for, and names that some of its configurations turn into these.
ROPES = frozenset({"default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional", "su", "mrope"})
#: What only recurrent or convolutional layers have.
_STATES = (
    "state_size",
    "ssm_state_size",
    "mamba_d_state",
    "linear_num_value_heads",
    "linear_attn_config",
    "lru_width",
    "conv_L_cache",
    "rescale_every",
)
#: What says where attention stands among such layers.
_MIXED = ("attn_layer_period", "attn_layer_indices", "attention_layers_idx", "hybrid_layer_ids")


class UnsupportedModelError(ValueError):
    """A model whose answers would be wrong under this decoder; the message says why."""


def refuse(facts: Mapping[str, Any]) -> None:
    """Raises UnsupportedModelError for a configuration (as JSON) that cannot be decoded exactly, with the reason."""
    kind, text = str(facts.get("model_type")), _of_text(facts)
    if facts.get("is_encoder_decoder") or text.get("is_encoder_decoder"):
        raise UnsupportedModelError(f"{kind!r} is an encoder-decoder model; decoder-only models are supported")
    _refuse_other_layers(kind, text)
    if kind == "bloom" or text.get("alibi") or (text.get("attn_config") or {}).get("alibi"):
        raise UnsupportedModelError(
            f"{kind!r} biases attention by memory order (ALiBi), and the decoder appends tokens in another order than "
            f"that of their positions"
        )
    for scaling in _scalings(text):
        if scaling not in ROPES and not facts.get("auto_map"):  # which may bring its own
            raise UnsupportedModelError(
                f"{kind!r} uses {scaling!r} RoPE scaling, which transformers does not know: rope_type is one of "
                f"{', '.join(sorted(ROPES))}"
            )
        if "dynamic" in scaling:
            raise UnsupportedModelError(
                f"{kind!r} uses {scaling!r} RoPE scaling, which transformers recomputes from the largest position of a "
                f"forward pass: an answer would depend on the documents it is packed with"
            )


def original_length(facts: Mapping[str, Any]) -> int | None:
    """Positions up to which longrope takes its short factors; None for a model without longrope."""
    text = _of_text(facts)
    if "longrope" not in set(_scalings(text)):
        return None
    ropes = [text.get("rope_parameters") or text.get("rope_scaling") or {}, text, facts]
    ropes += [inner for inner in ropes[0].values() if isinstance(inner, Mapping)]
    lengths = [r["original_max_position_embeddings"] for r in ropes if r.get("original_max_position_embeddings")]
    return min(lengths) if lengths else None


def _of_text(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a multimodal configuration that is the language model's; the whole of any other."""
    inner = facts.get("text_config")
    return inner if isinstance(inner, Mapping) else facts


def _refuse_other_layers(kind: str, text: Mapping[str, Any]) -> None:
    kinds = {k for name in _LAYER_LISTS for k in _kinds(text.get(name))}
    other = sorted(kinds - _ATTENTION - _OWN_MASK)
    states = [f"recurrent ({name} = {text[name]})" for name in _STATES if text.get(name)]
    if not other and not states:
        if masked := sorted(kinds & _OWN_MASK):
            raise UnsupportedModelError(
                f"{kind!r} has {' and '.join(masked)} layers: which keys a token sees there is said by a mask of their "
                f"own, by chunks or by what scores best, and this decoder puts its own in place of it"
            )
        return
    layers = " and ".join(other or states[:1])
    if kinds & _ATTENTION or "hybrid" in kinds or any(text.get(name) for name in _MIXED):
        raise UnsupportedModelError(
            f"{kind!r} is a hybrid model: its {layers} layers are not plain attention, and what they keep of earlier "
            f"tokens follows memory order and not positions"
        )
    raise UnsupportedModelError(
        f"{kind!r} has {layers} layers in place of attention, and what they keep of earlier tokens follows memory "
        f"order and not positions"
    )


def _kinds(listed: Any) -> Iterator[str]:
    if isinstance(listed, str):
        yield from (_PATTERN.get(letter, letter) for letter in listed)
    elif isinstance(listed, Mapping):
        for part in listed.values():
            yield from _kinds(part)
    else:
        for part in listed or ():
            if isinstance(part, str):
                yield part
            elif isinstance(part, (list, tuple)):  # GPT-Neo: [[["global", "local"], 12]]
                yield from _kinds(part)


def _scalings(text: Mapping[str, Any]) -> Iterator[str]:
    for name in ("rope_parameters", "rope_scaling"):
        rope = text.get(name)
        if isinstance(rope, Mapping):
            for one in (rope, *(v for v in rope.values() if isinstance(v, Mapping))):
                if scaling := one.get("rope_type") or one.get("type"):
                    yield str(scaling)
