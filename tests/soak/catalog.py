"""The soak's catalog: made from a seed, so that nobody has to trust a file that the job may have touched."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec import AbstractFileSystem

_WORDS = (
    "red",
    "wool",
    "walking boot",
    "with laces",
    "cream sole",
    "from Porto",
    "size",
    "light blue",
    "Größe 38",
    "été",
)
_GROUP = 5_000


@dataclass(frozen=True)
class Catalog:
    """`rows` rows in `shards` Parquet files, as even as they come. Every title is another one; one in a hundred is
    null. Business ids repeat, and some are null: they identify nothing."""

    rows: int
    shards: int
    seed: int

    def tables(self) -> Iterator[pa.Table]:
        """The shards in order. row: number of the row in the whole catalog, from 0."""
        edges = [self.rows * i // self.shards for i in range(self.shards + 1)]
        for shard, (start, stop) in enumerate(pairwise(edges)):
            draw = random.Random(f"{self.seed}/{shard}")
            numbers = range(start, stop)
            titles = [f"{' '.join(draw.choices(_WORDS, k=draw.randint(3, 12)))} no. {n}" for n in numbers]
            yield pa.table(
                {
                    "row": pa.array(numbers, pa.int64()),
                    "sku": [f"sku-{n % 997}" if n % 13 else None for n in numbers],
                    "title": [None if draw.random() < 0.01 else title for title in titles],
                }
            )

    def write(self, fs: AbstractFileSystem, folder: str) -> None:
        """The shards as `part-00000.parquet`, … in `folder` of `fs`."""
        fs.makedirs(folder, exist_ok=True)
        for shard, table in enumerate(self.tables()):
            sink = io.BytesIO()
            pq.write_table(table, sink, row_group_size=_GROUP)
            fs.pipe_file(f"{folder}/part-{shard:05d}.parquet", sink.getvalue())
