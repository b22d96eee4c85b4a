"""Where a model's files are: resolves a `ModelSpec` and loads its tokenizer and configuration, never its weights.

transformers pulls in torch (seconds, hundreds of MB), so it is imported where it is used: drivers and tests that only
name a model do without it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpd_core import checkpoint, gguf, object_store, recipe, supported
from hpd_core.checkpoint import ModelNotFoundError
from hpd_core.explained import explained
from hpd_core.model_spec import ModelSpec
from hpd_core.settings import SettingsError, did_you_mean

#: Distributions register a callable returning {name: ModelSpec} here, so that names work without this package reading
#: anybody's configuration files.
NAMED_MODELS_GROUP = "hpd_core.models"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Arguments for transformers' `from_pretrained`: a directory or hub id, and what to pass beside it."""

    path: str
    arguments: Mapping[str, Any]


def named_models() -> dict[str, ModelSpec]:
    """Every model name that an installed distribution registers."""
    models: dict[str, ModelSpec] = {}
    for entry in importlib.metadata.entry_points(group=NAMED_MODELS_GROUP):
        for name, spec in entry.load()().items():
            models[name] = replace(spec, name=name)
    return models


def model_spec(model: str | ModelSpec, named: Mapping[str, ModelSpec] | None = None) -> ModelSpec:
    """A spec as it is; a name as `named` (or registered); any other text as a path, GGUF file, hub id or adapter.

    Raises SettingsError with the nearest name for a text that is none of these.
    """
    if isinstance(model, ModelSpec):
        return model
    named = named_models() if named is None else named
    if model in named:
        return named[model]
    if Path(model).expanduser().exists() or "/" in model or model.startswith("package:"):
        return recipe.adapter_spec(model) or ModelSpec(source=model)
    hint = did_you_mean(model, sorted(named), "names")
    raise SettingsError(f"no model {model!r}: neither a name, a path nor a hub id; {hint}")


def check_present(spec: ModelSpec) -> Path:
    """Where a model's file or directory should be; raises ModelNotFoundError that says how to get what is missing.

    A hub id and a directory in an object store are not looked up: their path does not exist.
    """
    path = _in_package(spec) if spec.source.startswith("package:") else Path(spec.source).expanduser()
    if path.suffix == ".gguf" and not path.is_file():
        raise ModelNotFoundError(f"model {spec.name!r}: no GGUF file {path}")
    return path


def identity(spec: ModelSpec) -> str:
    """What decides the weights: a digest of local files wherever they lie, hub id and revision otherwise.

    Of each weight file its size, first and last MiB: whole checkpoints would take minutes to read.
    """
    if object_store.is_remote(spec.source):
        return object_store.identity(spec.source, but=recipe.CALIBRATION)
    path = check_present(spec)
    if path.is_dir():
        about = recipe.CALIBRATION  # lies beside the weights and does not decide them
        files = sorted(p for p in path.iterdir() if p.suffix in (".safetensors", ".json") and p.name != about)
    elif path.is_file():
        files = [path]
    else:
        return f"{spec.source}@{spec.revision or 'main'}"
    digest = hashlib.sha256()
    for file in files:
        if file.name == recipe.FILE:
            content = recipe.deciding_bytes(file)
            digest.update(f"{file.name} {len(content)}\n".encode() + content[: 2**20] + content[-(2**20) :])
            continue
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as f:
            digest.update(f.read(2**20))
            f.seek(max(0, size - 2**20))
            digest.update(f.read(2**20))
    return f"sha256:{digest.hexdigest()[:16]}"


def locate(spec: ModelSpec, *, weights: bool = True) -> ModelFiles:
    """Finds the files of `spec`; raises ModelNotFoundError that says how to get them, UnsupportedModelError, or what
    `as_directory` raises. weights: False where configuration and tokenizer are enough."""
    _check_adapter(spec)
    code = {"trust_remote_code": spec.trust_remote_code}  # said, or transformers asks a terminal that nobody reads
    if object_store.is_remote(spec.source):
        fetched = object_store.as_directory(spec.source, weights=weights)
        if weights:
            checkpoint.check_directory(spec.name, fetched)
        return ModelFiles(str(fetched), code)
    path = _found(spec)
    if path.suffix == ".gguf":
        path = gguf.as_directory(path)
    if path.is_dir():
        return ModelFiles(str(path), code)
    return ModelFiles(spec.source, {"revision": spec.revision or "main", **code})


def check_loadable(spec: ModelSpec, *, copies: int = 1, free: int | None = None, to_gpu: bool = False) -> None:
    """Raises what `locate` would raise on this machine, without converting or downloading anything, and SettingsError
    where so many copies of the weights need more than `free` bytes; None leaves that out. to_gpu: they come through
    this machine only, and take memory where they are stored otherwise than they are used, or changed by an adapter."""
    _check_adapter(spec)
    if object_store.is_remote(spec.source):
        object_store.check(spec.source)
        return
    path = _found(spec)
    if path.suffix == ".gguf":
        count = gguf.check(path)
    elif path.is_dir():
        count = checkpoint.parameters(path)
    else:
        return  # a hub id
    if free is None:
        return
    dtype = spec.dtype if spec.dtype != "auto" else "bfloat16" if to_gpu else "float32"
    if to_gpu and path.is_dir() and not spec.adapter and not checkpoint.are_copied(path, dtype):
        return
    where = checkpoint.ON_THE_WAY if to_gpu else "this machine"
    checkpoint.check_memory(spec.name, count, dtype, free, where=where, copies=copies)


def _check_adapter(spec: ModelSpec) -> None:
    """Wherever the weights of the base lie: peft would read pickled ones in place of safetensors."""
    if spec.adapter:
        checkpoint.check_adapter(spec.name, recipe.folder_of(spec.adapter))


def _found(spec: ModelSpec) -> Path:
    """`check_present`, for whatever a source may be; raises ModelNotFoundError where it is nothing, and
    UnsupportedModelError where a directory's configuration says that it cannot be decoded."""
    path = check_present(spec)
    if path.is_dir():
        checkpoint.check_directory(spec.name, path)
    elif path.suffix != ".gguf" and (
        path.is_absolute() or spec.source.count("/") != 1 or spec.source.startswith((".", "package:"))
    ):
        raise ModelNotFoundError(f"model {spec.name!r}: {spec.source} is neither a directory, a GGUF file nor a hub id")
    return path


def _in_package(spec: ModelSpec) -> Path:
    package, _, file = spec.source.removeprefix("package:").partition("/")
    how = f"; install it with: {spec.install}" if spec.install else ""
    try:
        files = importlib.metadata.distribution(package).files or []
    except importlib.metadata.PackageNotFoundError:
        raise ModelNotFoundError(f"model {spec.name!r}: package {package!r} is not installed{how}") from None
    for candidate in files:
        if candidate.as_posix() == file or candidate.name == file:
            return Path(str(candidate.locate()))
    raise ModelNotFoundError(f"model {spec.name!r}: package {package!r} has no file {file!r}{how}")


def load_tokenizer(files: ModelFiles) -> Any:
    """The model's fast tokenizer. Raises SettingsError where it cannot give character offsets."""
    from transformers import AutoTokenizer

    with explained(files.path, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(files.path, **files.arguments)
    if not tokenizer.is_fast:
        raise SettingsError(f"{files.path}: its tokenizer gives no character offsets (not a 'fast' tokenizer)")
    return tokenizer


def load_config(files: ModelFiles) -> Any:
    """Raises ModelNotFoundError for what is not there, ModelUnavailableError where the hub does not answer,
    SettingsError for code that is not trusted, UnsupportedModelError for an architecture that transformers does not
    know."""
    from transformers import AutoConfig

    with explained(files.path, "configuration"):
        return AutoConfig.from_pretrained(files.path, **files.arguments)


def check_hub_weights(name: str, files: ModelFiles) -> None:
    """Raises ModelNotFoundError where the repository of a hub id holds no safetensors, with the way to convert what it
    holds; what `load_config` raises where the hub does not tell. name: of the model, for the message.

    transformers (5.24) would post the id of such a repository, with the token, to a converter that opens a pull request
    there, and load that. The hub is not asked where the cache has its weights.
    """
    from huggingface_hub import list_repo_files, try_to_load_from_cache

    revision = files.arguments["revision"]
    cached = (try_to_load_from_cache(files.path, w, revision=revision) for w in (checkpoint.WEIGHTS, checkpoint.INDEX))
    if any(isinstance(path, str) for path in cached):
        return
    with explained(files.path, "list of files"):
        names = list_repo_files(files.path, revision=revision)
    at_top = [n for n in names if "/" not in n]
    checkpoint.check_names(name, f"{files.path}@{revision} of the hub", at_top)


def eos_ids(files: ModelFiles, config: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that ends a text: of the generation config where there is one, the model config and the tokenizer.

    Raises what `load_config` raises where there is one that cannot be read: without it values would end elsewhere.
    """
    from transformers import GenerationConfig

    ids: set[int] = set()
    sources = [getattr(config, "eos_token_id", None), tokenizer.eos_token_id]
    try:
        with explained(files.path, "generation_config.json"):
            sources.append(GenerationConfig.from_pretrained(files.path, **files.arguments).eos_token_id)
    except ModelNotFoundError:  # most base models ship none
        if (Path(files.path) / "generation_config.json").is_file():
            raise
    for source in sources:
        ids.update([source] if isinstance(source, int) else source or [])
    return frozenset(ids)


def check_vocabulary(files: ModelFiles, config: Any, tokenizer: Any) -> None:
    """Raises SettingsError where a prompt can hold ids that the model has no embedding of. Special tokens that its
    template does not write do not count: texts are encoded without them (Gemma 3 has one too many, for images)."""
    size, template = config.get_text_config().vocab_size, tokenizer.chat_template or ""
    special = {t.content for t in tokenizer.added_tokens_decoder.values() if t.special}
    unwritten = {token for token in special if token not in template and token != tokenizer.bos_token}
    outside = [(i, token) for token, i in tokenizer.get_vocab().items() if i >= size and token not in unwritten]
    if outside:
        last, token = max(outside)
        raise SettingsError(
            f"model {files.path}: its tokenizer is another model's: {len(outside)} of its tokens, up to {token!r} with "
            f"id {last}, are beyond the vocab_size {size} of config.json"
        )


def context_length(config: Any, *, long_context: bool = False) -> int:
    """Positions that may be used: those the model was made for; under longrope those of its short factors, so that no
    forward pass ever takes the others, unless `long_context` fixes the long ones.

    Raises SettingsError where the model does not say, or has no long factors that could be asked for.
    """
    text = config.get_text_config()
    length = getattr(text, "max_position_embeddings", None)
    if not isinstance(length, int):
        raise SettingsError(f"model type {config.model_type!r} names no max_position_embeddings")
    short = supported.original_length(config.to_dict())
    if long_context and short is None:
        raise SettingsError(f"long_context: model type {config.model_type!r} has no RoPE factors for long texts")
    return length if short is None or long_context else min(short, length)
