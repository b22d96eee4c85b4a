"""One huge shard: a million rows in one row group, through the whole stream on Ray with a fake decoder."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import IO

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.events import Event, Progress
from pipeline.job import JobSpec, UnitCaps
from pipeline.run import run
from pipeline.storage import Storage
from tests.pipeline.fakes import PRODUCT, answer
from tests.pipeline.helpers import job, output_files
from tests.pipeline.holding import FORK

pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.slow, pytest.mark.timeout(1800)]

ROWS, UNIT = 1_000_000, 10_000
MIB = 2**20


def title(row: int) -> str:
    return f"p{row}"


def pieces() -> Iterator[pa.RecordBatch]:
    """Rows of about 100 bytes, a hundredth of them at a time."""
    for start in range(0, ROWS, UNIT):
        rows = range(start, min(ROWS, start + UNIT))
        details = [f"{row * 2654435761 % 2**32:08x}" * 10 for row in rows]
        yield pa.record_batch({"id": list(rows), "title": [title(row) for row in rows], "details": details})


def write_shard(path: str) -> None:
    pq.write_table(pa.Table.from_batches(list(pieces())), path, row_group_size=ROWS)


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    path = tmp_path / "in/huge.parquet"
    path.parent.mkdir()
    writer = FORK.Process(target=write_shard, args=(str(path),))  # whose memory is not the driver's
    writer.start()
    writer.join()
    assert pq.read_metadata(path).num_row_groups == 1 and pq.read_metadata(path).num_rows == ROWS
    return job(tmp_path, tmp_path / "in", units=UnitCaps(rows=UNIT, seconds=1e6))


def private(process: psutil.Process) -> int:
    """Resident bytes of a process without Ray's object store, which has a size of its own and is mapped by all."""
    memory = process.memory_info()
    return int(memory.rss - memory.shared)


@dataclass(frozen=True)
class LoggedStorage(Storage):
    """Leaves a line in `log` for each opening of the shard, whichever process it is in."""

    log: str = ""

    def open(self, uri: str, *, ahead: bool = True) -> IO[bytes]:
        if uri.endswith("huge.parquet"):
            with open(self.log, "a") as log:
                log.write(f"{os.getpid()}\n")
        return super().open(uri, ahead=ahead)


class Watch:
    """Resident memory of this process and of the job's actors, which live as long as it does, at each unit that is
    committed."""

    def __init__(self) -> None:
        self.samples: dict[int, list[tuple[int, int]]] = {}  # by process: (rows done, bytes)

    def __call__(self, progress: Progress) -> None:
        if progress.event is not Event.COMMITTED:
            return
        me = psutil.Process()
        actors = [p for p in me.children(recursive=True) if is_actor(p)]
        for process in [me, *actors]:
            try:
                self.samples.setdefault(process.pid, []).append((progress.rows_done, private(process)))
            except psutil.NoSuchProcess:
                continue

    def slopes(self) -> dict[int, float]:
        """Bytes per row over the second half, of each process that was there from its beginning to its end: the median
        over all pairs of samples, which a heap that once takes 5 MiB more does not move."""
        halves = {pid: [s for s in found if s[0] > ROWS // 2] for pid, found in self.samples.items()}
        most = max(len(found) for found in halves.values())
        return {
            pid: statistics.median((b - a) / (later - row) for (row, a), (later, b) in combinations(half, 2))
            for pid, half in halves.items()
            if len(half) == most
        }


def is_actor(process: psutil.Process) -> bool:
    """Whether it is one of ours: what reads and commits are tasks, whose workers Ray starts and ends as it likes."""
    try:
        title = " ".join(process.cmdline())
        return title.startswith("ray::") and ("DecodeActor" in title or "Ledger" in title)
    except psutil.NoSuchProcess:
        return False


def test_a_million_rows_in_one_row_group_are_exact_in_flat_memory(
    spec: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, log = Watch(), tmp_path / "opened.log"
    monkeypatch.setattr("pipeline.prepare.Storage", partial(LoggedStorage, log=str(log)))
    summary = run(spec, progress=watch)
    assert summary.complete and (summary.rows_ok, summary.units) == (ROWS, ROWS // UNIT)
    brand = PRODUCT.attributes[0]
    for file, piece in zip(output_files(tmp_path / "out"), pieces(), strict=True):
        table = pq.read_table(file)
        assert table.select(piece.schema.names).equals(pa.Table.from_batches([piece])), file
        assert table.column("brand").to_pylist() == [answer(text, brand) for text in piece.column("title").to_pylist()]
    # By workers: each passes over the row group once. Ray may start new ones, but hardly one for every unit.
    assert len(log.read_text().split()) < ROWS // UNIT // 4
    slopes = watch.slopes()
    assert len(slopes) >= 2 and os.getpid() in slopes  # this process and the actor
    assert max(slopes.values()) * 100_000 < MIB, slopes
