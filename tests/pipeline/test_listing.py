"""Which version of a file a store tells: units that are committed are known by it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from pipeline.job import JobError
from pipeline.listing import input_file


class Store(AbstractFileSystem):
    cachable, protocol = False, "store"


TIME = datetime(2026, 11, 30, 9, 0, 0, 250_000)


@pytest.mark.parametrize(
    ("facts", "version"),
    [
        ({"ETag": '"abc"', "mtime": 1}, "abc"),
        ({"mtime": TIME.replace(tzinfo=UTC)}, "mtime:2026-11-30T09:00:00.250000+00:00"),
        ({"mtime": TIME.replace(tzinfo=timezone(timedelta(hours=2)))}, "mtime:2026-11-30T09:00:00.250000+02:00"),
        ({"last_modified": TIME}, "mtime:2026-11-30T09:00:00.250000"),  # without a zone: not that of this machine
        ({"LastModified": "Mon, 30 Nov 2026"}, "mtime:Mon, 30 Nov 2026"),
        ({"mtime": 1_700_000_000.5}, "mtime:1700000000.5"),
        ({"mtime": 0}, "mtime:0"),
        ({"mtime": 0.0, "updated": 5}, "mtime:0.0"),
        ({"LastModified": None, "modified": 7, "created": 5}, "mtime:7"),
    ],
)
def test_a_version_is_the_tag_or_the_time_of_the_last_write_in_the_words_that_outputs_know(
    facts: dict[str, Any], version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = {"name": "/x.parquet", "size": 4, "type": "file"} | facts
    assert input_file(Store(), "store://x.parquet", info).version == version


@pytest.mark.parametrize("facts", [{}, {"mtime": None}, {"LastModified": ""}, {"created": 5}, {"created": TIME}])
def test_a_store_that_does_not_tell_when_a_file_was_written_last_is_refused(facts: dict[str, Any]) -> None:
    info = {"name": "/x.parquet", "size": 4, "type": "file"} | facts
    with pytest.raises(JobError, match="tells neither a tag nor a time"):
        input_file(Store(), "store://x.parquet", info)
    if facts.get("created"):
        assert input_file(MemoryFileSystem(), "memory://x.parquet", info).version.startswith("mtime:")
