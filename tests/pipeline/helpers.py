"""Small catalogs, jobs over them, and the check that every row came through once, in order, with its own answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hpd_core.rows import RowStatus
from pipeline.actor import DecodeActor
from pipeline.commit import Receipt
from pipeline.drive import stages
from pipeline.job import JobSpec, Pool, UnitCaps
from pipeline.prepare import Prepared
from pipeline.read import UnitSource
from pipeline.rounds import Work
from pipeline.units import Unit
from tests.pipeline.fakes import PRODUCT, SPEC, ByteEncoder, HashDecoders, TitleReader, answer

#: Fits 2 CPUs beside reading and committing.
SMALL_POOL = Pool(cpus=1.0)


def titles(start: int, stop: int) -> list[str]:
    return [f"product number {i}" for i in range(start, stop)]


def write(path: Path, table: pa.Table | dict[str, Any], row_group_size: int | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(table) if isinstance(table, dict) else table
    pq.write_table(table, path, row_group_size=row_group_size)
    return path


def shards(folder: Path, count: int = 3, rows: int = 40, row_group_size: int = 15) -> Path:
    """`count` files of `rows` rows with an id and a title."""
    for i in range(count):
        start = i * rows
        table = {"id": list(range(start, start + rows)), "title": titles(start, start + rows)}
        write(folder / f"part-{i:04d}.parquet", table, row_group_size)
    return folder


def job(tmp_path: Path, inputs: Path | Sequence[Path], **changes: Any) -> JobSpec:
    decoders = changes.pop("decoder_factory", HashDecoders(tmp_path / "calls.log"))
    settings: dict[str, Any] = {
        "output": str(tmp_path / "out"),
        "decoder": SPEC,
        "reader": TitleReader(),
        "schemas": (PRODUCT,),
        "encoder_factory": ByteEncoder,
        "decoder_factory": decoders,
        "units": UnitCaps(rows=20),
        "pool": SMALL_POOL,
        "num_cpus": 2,
    }
    paths = [inputs] if isinstance(inputs, Path) else inputs
    return JobSpec(inputs=tuple(map(str, paths)), **settings | changes)


def inline(
    prepared: Prepared,
    fingerprint: str,
    units: Sequence[Unit],
    kept: object,
    started: float,
    progress: object,
    work: Work,
) -> None:
    """In place of `pipeline.drive.drive`: one unit after the other through the same stages, without Ray."""
    made = stages(prepared, fingerprint)
    actor = DecodeActor(made.decode)
    for unit in units:
        [task] = UnitSource([unit], made.source, made.columns).get_read_tasks(1)
        [block] = task()
        [receipt] = Receipt.from_block(made.commit(actor(made.tokenize(block))))
        work.committed += [receipt.record] if receipt.record else []
        work.fresh += [receipt.record] if receipt.record and receipt.fresh else []
        work.given_up |= {unit: receipt.failure} if receipt.failure else {}
    work.seconds = 1.0


def output_files(output: str | Path) -> list[Path]:
    return sorted(path for path in (Path(output) / "data").rglob("*") if path.is_file())


def output_table(output: str | Path) -> pa.Table:
    """All committed rows; file names sort by input file and row."""
    return pa.concat_tables([pq.ParquetFile(path).read() for path in output_files(output)])


def input_table(folder: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("*.parquet"))])


def same(a: pa.Table, b: pa.Table) -> bool:
    """Equal schemas and Arrow values; a NaN equals a NaN, and nothing else does."""
    return bool(_bits(a).equals(_bits(b))) and a.schema.equals(b.schema)


def _bits(table: pa.Table) -> pa.Table:
    table = table.combine_chunks()
    columns = [c.combine_chunks().view(pa.int64()) if c.type == pa.float64() else c for c in table.columns]
    return pa.table(columns, names=table.column_names)


def assert_exact(output: str | Path, source: pa.Table, errors: Sequence[str] = ()) -> pa.Table:
    """Every row of `source` is there once, in order, its columns untouched, with the answer to its own text; rows whose
    title is in `errors` are errors."""
    table = output_table(output)
    assert same(table.select(source.column_names), source)
    for row in table.select(["title", "brand", "pack_size", "hpd_status"]).to_pylist():
        title = row["title"]
        if not title:
            assert row["hpd_status"] == RowStatus.NO_TEXT and row["brand"] is None
        elif title in errors:
            assert row["hpd_status"] == RowStatus.ERROR and row["brand"] is None
        else:
            assert row["hpd_status"] == RowStatus.OK
            assert [row["brand"], row["pack_size"]] == [answer(title, a) for a in PRODUCT]
    return table
