"""What is there, and which of it: the files below a folder, those that an input stands for, and their versions."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime
from functools import cache

from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem

from pipeline import globs
from pipeline.job import JobError
from pipeline.units import InputFile
from pipeline.uris import is_utf8, named
from pipeline.writers import Info, info_of, is_there

#: When an object was written last, as the filesystems of fsspec call it.
_CHANGED = ("LastModified", "last_modified", "Last-Modified", "mtime", "updated", "modified")


def files_below(fs: AbstractFileSystem, path: str) -> dict[str, Info]:
    """{name: facts} of every file below a folder, or of the file itself; none where nothing is there.

    Raises what a store answers in place of a listing.
    """
    return {name: info for name, info in _below(fs, path).items() if info["type"] == "file"}


def _below(fs: AbstractFileSystem, path: str) -> dict[str, Info]:
    if _has_own(fs, "find"):
        return dict(fs.find(path, detail=True))
    info = info_of(fs, path)
    if info and info["type"] != "directory":
        return {str(info["name"]): info}
    return _walked(fs, path) if info else {}


def input_files(fs: AbstractFileSystem, uri: str, path: str) -> list[InputFile]:
    """Files of the input `uri`, which is `path` in its store; see `Storage.find`."""
    if globs.is_pattern(path) and not is_there(fs, path):
        infos, names = _matched(fs, uri, path)
        if not infos and names:
            raise JobError(f"input {uri}: the pattern matches {names} name(s), but no Parquet file")
        if not infos:
            raise JobError(f"input {uri}: the pattern matches no file")
    else:
        # A key of an object store may be file and prefix at once: a listing that holds only itself is a file.
        # Consoles mark a folder by an empty object whose name ends with a slash.
        below = _below(fs, path)
        _check_links(uri, path, below.values())
        infos = [i for i in below.values() if i["type"] == "file" and not i["name"].endswith("/")]
        if not infos:
            local = isinstance(fs, LocalFileSystem) and path != uri
            kind = "holds no file" if is_there(fs, path) else f"does not exist{f' ({path})' if local else ''}"
            raise JobError(f"input {uri}: {kind}")
        if [i["name"] for i in infos] != [path.rstrip("/")]:
            infos = [i for i in infos if globs.is_data(i["name"].removeprefix(path).lstrip("/"))]
            if not infos:
                raise JobError(f"input {uri}: holds no Parquet file ({', '.join(globs.PARQUET_SUFFIXES)})")
    for info in infos:
        if not is_utf8(name := str(info["name"])):
            raise JobError(f"input {name!a}: this name is no UTF-8 and can stand in no manifest: rename it")
    return sorted((input_file(fs, uri, info) for info in infos), key=lambda file: file.uri)


def _check_links(uri: str, path: str, infos: Iterable[Info]) -> None:
    """Raises `JobError` for a symbolic link that is no file: a folder behind it may be another one's of the input, and
    its rows would count twice; who means it can name it."""
    for info in infos:
        name = str(info["name"])
        if info.get("islink") and info["type"] != "file" and not globs.is_hidden(name, path):
            aim = f"to the folder {os.path.realpath(name)}" if os.path.isdir(name) else "to nothing"
            raise JobError(
                f"input {uri}: {name} is a link {aim}: give what is meant as an input of its own, or remove it"
            )


def check_distinct(files: Iterable[InputFile]) -> None:
    """Raises `JobError` for two local names of one file, one of them by a symbolic link: its rows would count twice.

    Not for hard links: neither of their names is the other's, and a copy of a catalog may be made of them.
    """
    folder, seen = cache(os.path.realpath), dict[str, str]()
    for file in files:
        if "://" in file.uri:
            continue
        place, name = os.path.split(file.uri)
        path = os.path.join(folder(place), name)
        real = os.path.realpath(path) if os.path.islink(path) else path
        if (other := seen.setdefault(real, file.uri)) != file.uri:
            raise JobError(
                f"input {file.uri}: is the file {real}, and so is {other}: its rows would count twice. Remove the "
                "link, or leave one of the names out of the inputs"
            )


def input_file(fs: AbstractFileSystem, uri: str, info: Info) -> InputFile:
    """The file that `info` is about, in the store of `uri`. Raises `JobError` where its version cannot be told."""
    name = str(info["name"])
    if isinstance(fs, LocalFileSystem):
        return InputFile(name, int(info["size"]), f"mtime:{os.stat(name).st_mtime_ns}")
    tag = info.get("ETag") or info.get("etag") or info.get("md5Hash") or info.get("content_md5")
    changed = _made(info) if fs.protocol == "memory" else _changed(info)
    name = named(fs, uri, name)
    if not tag and changed is None:
        raise JobError(f"{name}: its store tells neither a tag nor a time: nobody could see that it was replaced")
    return InputFile(name, int(info["size"]), str(tag).strip('"') if tag else f"mtime:{changed}")


def _changed(info: Info) -> object:
    """When an object was written last, None where that is not told. Committed units are known by these very words:
    other ones would have every input decoded again."""
    found = next((info[key] for key in _CHANGED if info.get(key) not in (None, "")), None)
    return found.isoformat() if isinstance(found, datetime) else found


def _made(info: Info) -> object:
    """The same of memory://, where what is written is made anew; elsewhere an object may change and keep this time. Its
    `find` and `info` tell it in two forms."""
    made = info.get("created")
    return made.timestamp() if isinstance(made, datetime) else made


def _walked(fs: AbstractFileSystem, path: str, depth: int | None = None) -> dict[str, Info]:
    """{name: facts} of every file and folder below a folder, so many steps down.

    In place of fsspec's own `find` and `glob`, which pass over folders that cannot be listed: with one refusal or one
    lost connection, files that are there would look gone.
    """
    found: dict[str, Info] = {}
    folders = [(path.rstrip("/") or path, 1)]
    while folders:
        folder, level = folders.pop()
        try:
            infos = fs.ls(folder, detail=True)
        except (FileNotFoundError, NotADirectoryError):  # nothing there, or not any more
            continue
        for info in map(_followed, infos):
            if info["type"] == "directory" and (name := str(info["name"]).rstrip("/")) != folder:
                found[name] = info
                if depth is None or level < depth:
                    folders.append((name, level + 1))
            elif info["type"] != "directory":
                found[str(info["name"])] = info
    return found


def _followed(info: Info) -> Info:
    """A local symbolic link to a file as that file: what the hub's cache keeps of a dataset are such links."""
    name = str(info["name"])
    return {**info, "type": "file"} if info.get("islink") and os.path.isfile(name) else info


def _has_own(fs: AbstractFileSystem, method: str) -> bool:
    """Whether a store lists in its own way, and not by fsspec's."""
    here, asynchronous = type(fs), getattr(AsyncFileSystem, f"_{method}")
    ours = getattr(here, method) is not getattr(AbstractFileSystem, method)
    return ours or getattr(here, f"_{method}", asynchronous) is not asynchronous


def _globbed(fs: AbstractFileSystem, uri: str, pattern: str) -> dict[str, Info]:
    """{name: facts} of the files and folders that `pattern` matches; of folders alone where it ends with a slash.
    Raises `JobError` for links: see `_check_links`."""
    match = globs.translated(pattern).fullmatch
    if _has_own(fs, "glob") or _has_own(fs, "find"):
        return dict(fs.glob(pattern, detail=True))
    root = globs.base(pattern)
    depth = None if "**" in pattern else pattern.rstrip("/").removeprefix(root).strip("/").count("/") + 1
    found = _walked(fs, root or "/" * pattern.startswith("/"), depth).items()
    links = ((n, i) for n, i in found if i.get("islink"))
    _check_links(uri, pattern, (i for n, i in links if match(n) or (os.path.isdir(n) and globs.leads(pattern, n))))
    return {n: i for n, i in found if match(n) and (i["type"] == "directory" or not pattern.endswith("/"))}


def _matched(fs: AbstractFileSystem, uri: str, pattern: str) -> tuple[list[Info], int]:
    """(facts of the input files that `pattern`, the path of the input `uri`, stands for, how many names it matched).

    Bookkeeping (see `globs.is_data`) counts where the pattern spells the '_' or '.' that the name begins with. One that
    ends with '*' means no files that are called something else than Parquet; one without any suffix may be Parquet.
    Raises `JobError` for what is no pattern, and for links: see `_check_links`.
    """
    names = _globbed(fs, uri, pattern)
    found: dict[str, Info] = {}
    last = pattern.rstrip("/").rpartition("/")[2]
    for name in sorted(names):
        if globs.is_hidden(name, pattern):
            continue
        if names[name]["type"] == "file" and not name.endswith("/") and globs.is_meant(name.rpartition("/")[2], last):
            found[name] = names[name]
        elif names[name]["type"] == "directory":
            prefix = name.rstrip("/") + "/"
            below = _below(fs, name)
            _check_links(uri, prefix, below.values())
            files = ((n, i) for n, i in below.items() if i["type"] == "file")
            found |= {n: i for n, i in files if globs.is_data(n.removeprefix(prefix))}
    return list(found.values()), len(names)
