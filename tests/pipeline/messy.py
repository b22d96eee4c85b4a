"""A table with what real catalogs have; every column must come out of the pipeline as it went in."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa


def messy(rows: int, first: int = 0) -> pa.Table:
    """Titles "item <n>", every fifth null, one in ten empty; the other columns only have to survive."""
    n = range(first, first + rows)
    zone = dt.timezone(dt.timedelta(hours=2))
    return pa.table(
        {
            "title": pa.array(
                [None if i % 5 == 4 else "" if i % 10 == 6 else f"item {i} 👨‍👩‍👧 <|im_end|>" for i in n]
            ),
            "big": pa.array([None if i % 3 == 0 else 2**53 + 1 + i for i in n], pa.int64()),
            "price": pa.array([float("nan") if i % 4 == 0 else None if i % 4 == 1 else i / 3 for i in n]),
            "seen": pa.array(
                [None if i % 7 == 0 else dt.datetime(2024, 1, 1, tzinfo=zone) for i in n], pa.timestamp("ns", "+02:00")
            ),
            "exact": pa.array([Decimal(i).scaleb(-2) for i in n], pa.decimal128(12, 2)),
            "bullets": pa.array(
                [None if i % 4 == 0 else ["a", None, "ü"][: i % 4] for i in n], pa.list_(pa.large_string())
            ),
            "offers": pa.array(
                [None if i % 3 == 0 else [] if i % 3 == 1 else [{"seller": "x", "cents": None}, None] for i in n],
                pa.list_(pa.struct([("seller", pa.string()), ("cents", pa.int32())])),
            ),
            "facts": pa.array(
                [None if i % 2 else [("k", "v"), ("l", None)] for i in n], pa.map_(pa.string(), pa.string())
            ),
            "details": pa.array(
                [None if i % 6 == 0 else {"dims": {"w": i}, "x": None} for i in n],
                pa.struct([("dims", pa.struct([("w", pa.int64())])), ("x", pa.string())]),
            ),
            "image": pa.array([None if i % 2 else bytes([0, i % 256, 255]) for i in n], pa.binary()),
            "path": pa.array(["mine"] * rows),
            "a.b ü 😀": pa.array(list(n), pa.uint8() if rows < 200 else pa.int64()),
            "never": pa.nulls(rows),
            "colour": pa.array([("red", "blue")[i % 2] for i in n]).dictionary_encode(),
        }
    )


def unpacked(table: pa.Table) -> pa.Table:
    """`table` with its dictionary column as values, as the output has it."""
    index = table.schema.get_field_index("colour")
    return table.set_column(index, "colour", table.column("colour").cast(pa.string())).combine_chunks()
