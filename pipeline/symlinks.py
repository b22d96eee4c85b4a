"""The list of data files that Athena, Trino, Presto and Hive follow in place of a folder's listing: a table of
`SymlinkTextInputFormat` at `_symlink_format_manifest` reads committed files only, whatever else lies below data/.

One text per folder of data/, `_symlink_format_manifest/<folder>/manifest`, a URI a line.
"""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.storage import Storage

FOLDER = "_symlink_format_manifest"


def texts(data: Iterable[str], base: str) -> dict[str, str]:
    """{path of a manifest below the output: its text} for data files by name below `base`, which is data/ as a URI."""
    address = base if "://" in base else f"file://{base}"
    found: dict[str, list[str]] = {}
    for name in sorted(set(data)):
        found.setdefault(name.rpartition("/")[0], []).append(f"{address}{name}.parquet\n")
    return {"/".join(filter(None, (FOLDER, folder, "manifest"))): "".join(lines) for folder, lines in found.items()}


def write(output: str, storage: Storage, wanted: dict[str, str]) -> None:
    """Writes the manifests of the folder at `output`, and removes those of folders that have no file any more."""
    base = output.rstrip("/")
    for path, text in wanted.items():
        storage.replace(f"{base}/{path}", text.encode())
    for name in storage.sizes(f"{base}/{FOLDER}"):
        # Nothing but manifests: another writer's may be under way beside them, under a name of its own.
        if name.rpartition("/")[2] == "manifest" and f"{FOLDER}/{name}" not in wanted:
            storage.delete(f"{base}/{FOLDER}/{name}")
