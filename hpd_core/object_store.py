"""A model directory in an object store -> a local one, once per machine and content."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from hpd_core.checkpoint import PICKLES, ModelNotFoundError, ModelUnavailableError, check_names
from hpd_core.folders import check_makeable, made_once
from hpd_core.passing import is_passing
from hpd_core.settings import SettingsError

#: Says what is in a stored file without reading it: S3's, Google's, and that of a local or HTTP file.
_TAGS = ("ETag", "etag", "md5Hash", "mtime", "created")


def is_remote(source: str) -> bool:
    """Whether a model's source is a URI of an object store, such as `s3://bucket/model`."""
    return "://" in source


def as_directory(uri: str, *, weights: bool = True) -> Path:
    """The local copy of the model directory `uri`, beside Hugging Face's own cache (HF_HOME moves both).

    Made on the first call; processes that start together fetch it once, and one that was changed in the store is
    fetched anew by processes that start later. weights: False leaves them out, for whoever needs configuration and
    tokenizer only. Credentials and endpoint are those of the environment (AWS_…). Raises ModelNotFoundError,
    ModelUnavailableError where the store does not answer, or SettingsError with the store's reason.
    """
    files = _listing(uri)
    check_names(uri, uri, files)
    whole = _folder(uri, files)
    if weights or whole.is_dir():
        return made_once(whole, lambda folder: _fetch(uri, files, folder), uri)
    small = {name: facts for name, facts in files.items() if not name.endswith(".safetensors")}
    about = whole.with_name(whole.name + "-about")
    return made_once(about, lambda folder: _fetch(uri, small, folder), uri)


def beside(uri: str, names: Collection[str]) -> Path:
    """A local folder of those of the small files `names` that lie in the directory `uri`, and perhaps of others; where
    there are none of them it need not exist. Raises what `as_directory` raises."""
    files = _listing(uri)
    whole = _folder(uri, files)
    wanted = {name: files[name] for name in names if name in files}
    if whole.is_dir() or not wanted:
        return whole
    return made_once(whole.with_name(whole.name + "-beside"), lambda folder: _fetch(uri, wanted, folder), uri)


def check(uri: str) -> None:
    """Raises what `as_directory` would raise, as far as a listing tells."""
    files = _listing(uri)
    check_names(uri, uri, files)
    check_makeable(_folder(uri, files), uri)


def identity(uri: str, but: str) -> str:
    """What decides the weights: a digest of the store's own digests. but: a file that does not."""
    deciding = {n: f for n, f in _listing(uri).items() if n.endswith((".safetensors", ".json")) and n != but}
    return f"sha256:{_digest(deciding)}"


def _folder(uri: str, files: Mapping[str, str]) -> Path:
    from huggingface_hub.constants import HF_HOME

    name = uri.rstrip("/").rpartition("/")[2]
    key = hashlib.sha256(f"{uri} {_digest(files)}".encode()).hexdigest()[:12]
    return Path(HF_HOME) / "hpd-models" / f"{name}-{key}"


def _digest(files: Mapping[str, str]) -> str:
    lines = "\n".join(f"{name} {facts}" for name, facts in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()[:16]


@lru_cache
def _listing(uri: str) -> Mapping[str, str]:
    """{name: size and tag} of the files that lie in the directory itself, pickles among them. Asked for once in a
    process: a command looks at its model several times."""
    with _explained(uri) as (store, path):
        store.invalidate_cache()
        entries = [e for e in store.ls(path, detail=True) if e["type"] == "file" and e["name"].rstrip("/") != path]
    return {e["name"].rpartition("/")[2]: f"{e['size']} {_tag(e)}" for e in entries}


def _tag(entry: Mapping[str, Any]) -> str:
    return next((str(entry[name]) for name in _TAGS if entry.get(name)), "")


def _fetch(uri: str, files: Mapping[str, str], folder: Path) -> None:
    try:
        with _explained(uri) as (store, path):
            for name, facts in files.items():
                if name.endswith(PICKLES):
                    continue
                store.get_file(f"{path}/{name}", str(folder / name))
                size, wanted = (folder / name).stat().st_size, int(facts.split()[0])
                if size != wanted:
                    raise ConnectionError(f"{name}: {size} of {wanted} bytes came")
    except Exception:
        _listing.cache_clear()  # it may be out of date: whoever tries again looks again
        raise


@contextmanager
def _explained(uri: str) -> Iterator[tuple[Any, str]]:
    """The file system of `uri` and the path in it; what it raises, as an error that names the model."""
    import fsspec

    try:
        store, path = fsspec.core.url_to_fs(uri)
        yield store, path.rstrip("/")
    except FileNotFoundError as error:
        raise ModelNotFoundError(f"model {uri}: there is no such directory") from error
    except Exception as error:
        if is_passing(error):
            raise ModelUnavailableError(f"model {uri}: {type(error).__name__}: {error}") from error
        if not isinstance(error, OSError | ValueError | ImportError) and not _is_clients(error):
            raise
        raise SettingsError(f"model {uri}: {type(error).__name__}: {error}") from error


def _is_clients(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in ("botocore", "aiohttp")
