"""Stores that are neither local nor S3, made of folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.fs
from fsspec.implementations.arrow import ArrowFSWrapper, HadoopFileSystem


class _Renames:
    """A pyarrow filesystem that renames as an HDFS does: onto a name that is free. pyarrow's own deletes the file that
    has it first, and whoever relies on that can be killed in between."""

    def __init__(self, fs: pyarrow.fs.FileSystem) -> None:
        self._fs = fs

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._fs, name)
        if name not in ("create_dir", "open_output_stream", "open_input_stream", "delete_file", "get_file_info"):
            return found

        def step(what: Any, *given: Any, **options: Any) -> Any:
            told = getattr(what, "base_dir", what[0] if isinstance(what, list) else what)
            Hadoop.before(name, str(told).strip("/"))
            return found(what, *given, **options)

        return step

    def move(self, source: str, target: str) -> None:
        Hadoop.before("move", source.strip("/"), target.strip("/"))
        if self._fs.get_file_info(target).type is not pyarrow.fs.FileType.NotFound:
            raise OSError(f"cannot rename {source}: {target} exists")
        self._fs.move(source, target)


class Hadoop(HadoopFileSystem):
    """HDFS as fsspec shows it: a folder behind the real wrapper. before: called with each step and its paths
    before it is done; for tests to set on this class."""

    cachable = False
    before: ClassVar[Callable[..., object]] = lambda *_: None

    def __init__(self, root: Path) -> None:
        root.mkdir(exist_ok=True)
        ArrowFSWrapper.__init__(self, _Renames(pyarrow.fs.SubTreeFileSystem(str(root), pyarrow.fs.LocalFileSystem())))

    def _make_entry(self, info: pyarrow.fs.FileInfo) -> dict[str, Any]:
        entry: dict[str, Any] = super()._make_entry(info)
        return entry | {"name": f"/{entry['name'].lstrip('/')}"}  # HDFS lists full paths
