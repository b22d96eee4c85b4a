"""Rows of a catalog for commands: nothing stays open behind a reader that has seen enough, or fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pyarrow as pa
import pytest

from pipeline.catalog import Product, Rows, read_catalog, read_rows
from pipeline.reader import CatalogReader
from pipeline.storage import Storage
from pipeline.text import TextTemplate
from tests.pipeline.fakes import PRODUCT
from tests.pipeline.helpers import job, write
from tests.pipeline.messy import typed


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[IO[bytes]]:
    """Files that are opened, in order."""
    files: list[IO[bytes]] = []
    real = Storage.open

    def counted(self: Storage, uri: str, *, ahead: bool = True) -> IO[bytes]:
        files.append(real(self, uri, ahead=ahead))
        return files[-1]

    monkeypatch.setattr(Storage, "open", counted)
    return files


@pytest.mark.parametrize("how", ["rows", "products", "a consumer that raises", "a reader that raises"])
def test_a_file_is_closed_whoever_stops_in_the_middle_of_it(
    tmp_path: Path, opened: list[IO[bytes]], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    write(tmp_path / "in/x.parquet", typed(60))  # three units of one row group: open behind the first
    spec, reader = job(tmp_path, tmp_path / "in"), CatalogReader(TextTemplate("{{ title }}"), {}, PRODUCT)
    rows: Iterator[Rows | Product] = (
        read_rows(spec, ["title"], lambda _: None) if how == "rows" else read_catalog(spec, reader)
    )
    if how == "a reader that raises":

        def broken(self: CatalogReader, table: pa.Table) -> None:
            raise RuntimeError("broken")

        monkeypatch.setattr(CatalogReader, "categorized", broken)
        with pytest.raises(RuntimeError, match="broken"):
            next(rows)
    else:
        next(rows)
        assert not opened[-1].closed
        if how == "a consumer that raises":
            with pytest.raises(RuntimeError, match="broken"):
                rows.throw(RuntimeError("broken"))  # type: ignore[attr-defined]
        else:
            rows.close()  # type: ignore[attr-defined]
    assert opened and all(file.closed for file in opened)
