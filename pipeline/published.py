"""Which data files of an output the tables of others point to: they may be neither replaced nor removed.

`_manifest/published.json` names them from before the commit that makes a table point to them, so that no kill in
between leaves them without protection, until `hpd publish --withdraw` has seen that the table does not any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pipeline.manifest import OutputFolder
from pipeline.storage import StorageError

PUBLISHED = "_manifest/published.json"


@dataclass(frozen=True, slots=True)
class Published:
    """An Iceberg table, under the name of its catalog, and the files below data/, without suffix, that it points to."""

    catalog: str
    table: str
    files: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.table} of catalog {self.catalog}"


def read_published(output: OutputFolder) -> list[Published]:
    """The tables that point to files of the output; raises `StorageError` where that cannot be read."""
    facts = output.read_json(PUBLISHED) or {}
    try:
        return [_published(table) for table in facts.get("tables", ())]
    except (KeyError, TypeError, AttributeError) as e:
        raise StorageError(f"{output.path(PUBLISHED)}: not a list of tables ({e!r})") from e


def _published(facts: dict[str, Any]) -> Published:
    return Published(str(facts["catalog"]), str(facts["table"]), tuple(map(str, facts["files"])))


def note_published(output: OutputFolder, catalog: str, table: str, files: Iterable[str]) -> None:
    """Adds `files` to those that the table points to. By who holds the lease of the output."""
    tables = read_published(output)
    known = next((t for t in tables if (t.catalog, t.table) == (catalog, table)), Published(catalog, table, ()))
    now = replace(known, files=tuple(sorted({*known.files, *files})))
    if now.files != known.files:
        _write(output, [*(t for t in tables if t is not known), now])


def forget_published(output: OutputFolder, catalog: str, table: str) -> int:
    """Takes a table off the list; how many files it pointed to. By who holds the lease of the output."""
    tables = read_published(output)
    kept = [t for t in tables if (t.catalog, t.table) != (catalog, table)]
    if len(kept) < len(tables):
        _write(output, kept)
    return sum(len(t.files) for t in tables) - sum(len(t.files) for t in kept)


def _write(output: OutputFolder, tables: Sequence[Published]) -> None:
    output.write_json(PUBLISHED, {"tables": [asdict(table) for table in tables]})


def published_files(tables: Iterable[Published]) -> dict[str, list[Published]]:
    """{file: the tables that point to it}"""
    found: dict[str, list[Published]] = {}
    for table in tables:
        for file in table.files:
            found.setdefault(file, []).append(table)
    return found
