"""What the header of a GGUF file says about whether it can be decoded exactly, before it is unpacked.

transformers (5.24) takes no RoPE scaling from these files: of the metadata it reads the base alone, the tensors that
hold frequencies (`rope_freqs`: Llama 3.1 and later; `rope_factors_long`, `rope_factors_short`: Phi-3-128k, Phi-4-mini)
it passes over, and of gpt-oss it takes the lengths of the keys for their values. What comes of it is another model,
and the oracle would decode the same one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpd_core import supported
from hpd_core.gguf_header import GgufHeader
from hpd_core.supported import UnsupportedModelError

#: Architectures whose frequencies transformers has in the defaults of its configuration.
_OWN_FREQUENCIES = frozenset({"gemma4"})
#: Families of keys that only layers have which are no attention.
_STATES = ("ssm", "shortconv", "wkv", "kda")


def refuse(file: Path, header: GgufHeader) -> None:
    """Raises UnsupportedModelError naming `file` for what would be another model, or cannot be decoded exactly."""
    if lost := _lost_scaling(header):
        raise UnsupportedModelError(
            f"{file}: its RoPE scaling ({lost}) is not read from a GGUF file by transformers, and without it the model "
            f"answers wrongly: take it as a Hugging Face directory or hub id"
        )
    try:
        supported.refuse(_as_configuration(header))
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{file}: {error}") from error
    known = _read_by_transformers()
    if _plain(header.architecture) not in map(_plain, known):
        raise UnsupportedModelError(
            f"{file}: transformers reads no GGUF files of {header.architecture!r}, only of {', '.join(known)}: take "
            f"the model as a Hugging Face directory or hub id"
        )


def check_rotary(file: Path, header: GgufHeader, rotated: int) -> None:
    """Raises UnsupportedModelError where the file rotates another number of dimensions of a head than the model that
    transformers made of it."""
    stated = _of(header).get("rope.dimension_count")
    if stated is not None and stated != rotated:
        raise UnsupportedModelError(
            f"{file}: RoPE turns {stated} dimensions of its heads, and transformers, which does not read that from a "
            f"GGUF file, would turn {rotated}: take the model as a Hugging Face directory or hub id"
        )


def _read_by_transformers() -> list[str]:
    from transformers.integrations import GGUF_CONFIG_MAPPING
    from transformers.integrations.gguf import GGUF_CONFIG_ARCHS

    return sorted({*GGUF_CONFIG_MAPPING, *GGUF_CONFIG_ARCHS} - {"general", "tokenizer"})


def _plain(architecture: str) -> str:
    """Without the signs in which llama.cpp's names (qwen3moe, gpt-oss) and those of transformers differ."""
    return architecture.replace("-", "").replace("_", "")


def _of(header: GgufHeader) -> Mapping[str, Any]:
    """Facts of the architecture, without its name."""
    start = header.architecture + "."
    return {key.removeprefix(start): value for key, value in header.facts.items() if key.startswith(start)}


def _lost_scaling(header: GgufHeader) -> str:
    """What the file says of scaled RoPE; empty where it says nothing. llama.cpp scales linearly where it finds a factor
    without a type, under its old name, too."""
    facts = _of(header)
    kind = facts.get("rope.scaling.type", "linear")
    factor = facts.get("rope.scaling.factor", facts.get("rope.scale_linear", 1.0))
    if kind not in ("none", "linear") or (kind == "linear" and factor not in (0.0, 1.0)):
        return f"{header.architecture}.rope.scaling.type {kind}, factor {factor}"
    if header.architecture in _OWN_FREQUENCIES:
        return ""
    return next((f"tensor {name}" for name in header.tensors if name.startswith(("rope_freqs", "rope_factors"))), "")


def _as_configuration(header: GgufHeader) -> dict[str, Any]:
    """The same facts in the words of a Hugging Face configuration, as far as `supported.refuse` asks for them."""
    facts = _of(header)
    layers = sorted({key.partition(".")[0] for key in facts} & set(_STATES))
    if layers and facts.get("attention.head_count") != 0:  # Mamba and RWKV state none; a list, of which None is left
        layers.append("attention")
    return {
        "model_type": header.architecture,
        "is_encoder_decoder": "decoder_start_token_id" in facts,
        "alibi": bool(facts.get("attention.max_alibi_bias")),
        "layer_types": layers,
    }
