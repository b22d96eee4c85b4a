"""What lies in a model's directory, read without torch: are its weights there, of a kind that is safe to read, and do
they fit into memory."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpd_core import supported
from hpd_core.model_spec import Quantization
from hpd_core.quantization import KINDS, stored_as
from hpd_core.settings import SettingsError
from hpd_core.supported import UnsupportedModelError

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
#: Files of pickled weights, which run whatever code they hold when they are read.
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
#: The memory that weights pass through before they are on a GPU.
ON_THE_WAY = "this machine, through whose memory they come to the GPU,"
#: How the text begins that lies in place of a file where Git LFS has not fetched it.
_LFS_POINTER = b"version "
_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
#: As safetensors name them.
_DTYPES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_CONVERT = (
    "python -c \"from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; d = 'DIRECTORY'; "
    "M.from_pretrained(d, use_safetensors=False).save_pretrained('NEW'); T.from_pretrained(d).save_pretrained('NEW')\""
)


@dataclass(frozen=True, slots=True)
class _Tensor:
    """numbers: how many it has. dtype: they are stored in."""

    numbers: int
    dtype: str


class ModelNotFoundError(FileNotFoundError):
    """The files of a model are not where its spec says, or not whole."""


class ModelUnavailableError(SettingsError):
    """Where a model's files lie gave no answer, or only excuses: the same may succeed later."""


def check_directory(name: str, folder: Path) -> None:
    """Raises ModelNotFoundError for what is missing in a Hugging Face directory, UnsupportedModelError for a model that
    cannot be decoded exactly. name: of the model, for the message."""
    check_names(name, str(folder), (p.name for p in folder.iterdir()))
    facts = _read(name, folder / "config.json")
    if (folder / INDEX).is_file():
        shards = _shards(name, folder)
        missing = sorted(shard for shard in shards if not (folder / shard).is_file())
        if missing:
            raise ModelNotFoundError(
                f"model {name!r}: directory {folder} lacks {len(missing)} of its {len(shards)} files of weights: "
                f"{_some(missing)}"
            )
    supported.refuse(facts)
    stored_as(name, facts)


def check_complete(where: str, missing: Iterable[str], misshapen: Iterable[tuple[str, Any, Any]]) -> None:
    """Raises ModelNotFoundError naming weights that `where` lacks, or whose shapes its configuration contradicts:
    transformers would put random numbers in their place, with a warning at most.

    misshapen: name, shape that is stored, shape that the configuration makes of it.
    """
    wrong = [f"{name} is {list(stored)}, its configuration makes it {list(made)}" for name, stored, made in misshapen]
    if lacking := sorted(missing):
        raise ModelNotFoundError(
            f"{where}: {len(lacking)} of the weights that its configuration asks for are not there: {_some(lacking)}"
        )
    if wrong:
        raise ModelNotFoundError(f"{where}: its weights do not fit its configuration: {_some(sorted(wrong))}")


def check_adapter(name: str, folder: Path) -> None:
    """Raises ModelNotFoundError for what the folder of a LoRA adapter lacks or has in part, UnsupportedModelError for
    an adapter of another kind, or with whole weights beside LoRA's that its configuration does not name."""
    config = _read(name, folder / ADAPTER_CONFIG)
    kind = config.get("peft_type")
    if kind != "LORA":
        raise UnsupportedModelError(
            f"model {name!r}: adapter {folder} is of peft's type {kind!r}; only LoRA is merged into weights"
        )
    if not (folder / ADAPTER).is_file():
        pickled = next((p.name for p in sorted(folder.iterdir()) if p.suffix in PICKLES), "")
        why = f"only pickled ones ({pickled}), which run whatever code they hold when they are read" if pickled else ""
        raise ModelNotFoundError(f"model {name!r}: adapter {folder} has no {ADAPTER}{why and ', '}{why}")
    # peft swaps in what it is told to by the end of a name.
    saved = [f"{module}." for module in config.get("modules_to_save") or ()]
    whole = [n for n in _tensors(folder / ADAPTER) if n.endswith(".weight") and "lora_" not in n]
    if unnamed := sorted(n for n in whole if not any(module in n for module in saved)):
        raise UnsupportedModelError(
            f"model {name!r}: adapter {folder} holds whole weights beside LoRA's ({_some(unnamed)}), as peft stores "
            f"them where the vocabulary was enlarged or embeddings were trained; only LoRA is merged here. Merge it "
            f"with peft (merge_and_unload), save model and tokenizer, and take that directory as the model"
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def check_names(name: str, where: str, names: Iterable[str]) -> None:
    """Raises ModelNotFoundError where a directory of these files holds no configuration or no safetensors."""
    names = set(names)
    if "config.json" not in names:
        raise ModelNotFoundError(f"model {name!r}: directory {where} has no config.json")
    if names & {WEIGHTS, INDEX}:
        return
    pickles = sorted(n for n in names if n.endswith(PICKLES) and n != "training_args.bin")
    if pickles:
        raise ModelNotFoundError(
            f"model {name!r}: directory {where} holds pickled weights ({pickles[0]}), which run whatever code they "
            f"hold when they are read. If you trust them, convert them to safetensors: {_CONVERT}"
        )
    raise ModelNotFoundError(f"model {name!r}: directory {where} has no weights: neither {WEIGHTS} nor {INDEX}")


def parameters(folder: Path) -> int:
    """Numbers in the directory's safetensors, by their headers; 0 where there are none.

    Raises ModelNotFoundError naming a file that is no safetensors file, or not all of it.
    """
    return sum(_in_file(file) for file in _weights(folder))


def are_copied(folder: Path, dtype: str) -> bool:
    """Whether the directory's weights take memory of their own once they are loaded in `dtype`: what is stored in it
    stays in its file, which is mapped, until it is changed or moved on. Raises what `parameters` raises."""
    return any(_DTYPES.get(t.dtype) != dtype for file in _weights(folder) for t in _tensors(file).values())


def check_memory(
    name: str,
    count: int,
    dtype: str,
    free: int,
    *,
    where: str,
    copies: int = 1,
    quantization: Quantization = Quantization.NONE,
) -> None:
    """Raises SettingsError with the numbers where `copies` of `count` weights in `dtype` need more than `free` bytes.

    where: the memory meant, as in "this machine". KV and activations come on top and are not counted. quantization:
    how the weights lie there; of embeddings and head, which are not quantised, too little is counted.
    """
    kind = KINDS.get(quantization)
    needed = int(count * (kind.bytes_per_weight if kind else _BYTES[dtype]))
    dtype = f"{dtype}, {quantization.value}" if kind else dtype
    if needed * copies <= free:
        return
    times = f" for each of {copies} actors, {_gib(needed * copies)} in all," if copies > 1 else ""
    less = "; model.dtype bfloat16 takes half" if dtype == "float32" else ""
    fewer = "; fewer actors (pool) take less" if copies > 1 else ""
    raise SettingsError(
        f"model {name!r} does not fit: its {count / 1e6:,.0f} million parameters take {_gib(needed)} in {dtype}{times} "
        f"and {where} has {_gib(free)} free{less}{fewer}"
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"


def _weights(folder: Path) -> list[Path]:
    """Files that transformers loads: the one file where it is there, whatever lies beside it, else the index's."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        return []
    return [folder / shard for shard in sorted(_shards(folder.name, folder))]


def _shards(name: str, folder: Path) -> set[str]:
    mapped = _read(name, folder / INDEX).get("weight_map")
    shards = set(map(str, mapped.values())) if isinstance(mapped, dict) else set()
    if not shards or any(Path(shard).name != shard for shard in shards):
        raise ModelNotFoundError(f"model {name!r}: {folder / INDEX}: its weight_map names no files of {folder}")
    return shards


def refuse_pointer(file: Path, start: bytes) -> None:
    """Raises ModelNotFoundError where a file of weights that begins with these 8 bytes is a pointer to them."""
    if start == _LFS_POINTER:
        raise ModelNotFoundError(f"{file} is a Git LFS pointer, not the weights: `git lfs pull` fetches them")


def _in_file(file: Path) -> int:
    """Numbers in a safetensors file."""
    return sum(tensor.numbers for tensor in _tensors(file).values())


def _tensors(file: Path) -> dict[str, _Tensor]:
    """By name, of a safetensors file: eight bytes say how long its JSON header is, which says where tensors lie."""
    size = file.stat().st_size
    with file.open("rb") as f:
        start = f.read(8)
        refuse_pointer(file, start)
        length = int.from_bytes(start, "little")
        header_end = 8 + length
        content = f.read(length) if header_end <= size else b""
    try:
        tensors = {key: tensor for key, tensor in json.loads(content).items() if key != "__metadata__"}
        # mxfp4 keeps two numbers in a byte of its blocks.
        found = {
            key: _Tensor(math.prod(t["shape"]) * (1 + key.endswith("_blocks")), str(t["dtype"]))
            for key, t in tensors.items()
        }
        end = header_end + max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ModelNotFoundError(f"{file}: no safetensors file, or cut short: its header cannot be read") from error
    if end > size:
        raise ModelNotFoundError(f"{file} is cut short: {size:,} of {end:,} bytes are there")
    return found


def _read(name: str, path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelNotFoundError(f"model {name!r}: {path}: {type(error).__name__}: {error}") from error
    if not isinstance(facts, dict):
        raise ModelNotFoundError(f"model {name!r}: {path} holds no JSON object")
    return facts
