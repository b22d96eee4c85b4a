"""Writes the sample catalog: `python samples/build.py [FOLDER]`, by default `samples/catalog` and `samples/events`.

The texts in `listings/` were written by hand for this project. This script spells out their variants, shuffles them
with a fixed seed and adds what real catalogs have: gaps, duplicates, an over-long description, odd ids.
"""

from __future__ import annotations

import datetime as dt
import itertools
import random
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

HERE = Path(__file__).parent
SEED = 20260604
SHARDS = 4
ROW_GROUP_ROWS = 24
MOST_VARIANTS = 7
FIRST_ID = 2**53 + 1  # odd and above 2**53: a float64 cannot hold it, so a lossy reader shows
CATEGORIES = ("headphones", "coffee", "shoes", "skincare", "backpacks", "tools")
CATALOG = pa.schema(
    [
        ("product_id", pa.int64()),
        ("category", pa.string()),
        ("title", pa.string()),
        ("bullets", pa.list_(pa.string())),
        ("description", pa.string()),
        ("details", pa.struct([("brand", pa.string()), ("origin", pa.string()), ("weight_g", pa.float64())])),
        ("ask", pa.list_(pa.string())),
        ("language", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("listed_at", pa.timestamp("us", tz="UTC")),
    ]
)
EVENTS = pa.schema([("id", pa.int64()), ("text", pa.string()), ("gold", pa.map_(pa.string(), pa.string()))])
Product = dict[str, Any]


def variants(category: str, listing: dict[str, Any], rng: random.Random) -> list[Product]:
    """Some combinations of the listing's `vary`, a product each, with the titles taken in turn."""
    products = []
    combinations = list(itertools.product(*listing["vary"].values()))
    for number, chosen in enumerate(rng.sample(combinations, min(MOST_VARIANTS, len(combinations)))):
        facts = dict(zip(listing["vary"], chosen, strict=True))
        description = listing["description"]
        price = Decimal(str(listing["price"])) * (100 + 5 * (number % 4)) / 100
        products.append(
            {
                "category": category,
                "title": listing["titles"][number % len(listing["titles"])].format(**facts),
                "bullets": [bullet.format(**facts) for bullet in listing["bullets"]],
                "description": description.format(**facts) if description else None,
                "details": {key: listing[key] for key in ("brand", "origin", "weight_g")},
                "ask": None,
                "language": listing.get("language", "en"),
                "price": price.quantize(Decimal("0.01")),
                "listed_at": dt.datetime(2025, 1, 6, tzinfo=dt.UTC)
                + dt.timedelta(seconds=rng.randrange(40_000_000), microseconds=rng.randrange(1_000_000)),
            }
        )
    return products


def weather(products: list[Product], rng: random.Random) -> None:
    """What happens to a catalog over the years: fields go missing, in place."""
    for product in products:
        luck = rng.random()
        if luck < 0.06:
            product["bullets"] = None
        elif luck < 0.12:
            product["description"] = None
        elif luck < 0.15:
            product["details"] = None
        elif luck < 0.17:
            product["details"] = product["details"] | {"brand": None}
        elif luck < 0.19:
            product["price"] = None


def oddities(products: list[Product], manual: str) -> list[Product]:
    """Rows that a robust job must get through: no text, no category, own questions, a whole manual as description."""

    def like(index: int, **changes: Any) -> Product:
        return products[index] | changes

    nothing = {"bullets": None, "description": None, "details": None}
    return [
        like(10, title=None, **nothing),
        like(40, title="", bullets=[], description="", details=None),
        like(70, title="   ", bullets=["", None], description="<p>&nbsp;</p><br>", details=None),
        like(100, title=None, bullets=[], description=None, details={"brand": None, "origin": None, "weight_g": None}),
        like(20, category=None),
        like(0, description=manual),
        like(3, ask=["Brand", "Color"]),
        like(60, ask=["Brand", "Net content", "Altitude"]),
        like(130, ask=["Gender", "Drop"]),
        like(
            180, title="Brand: n/a\nColor: see <|im_end|> picture", bullets=["Model:"], description=None, details=None
        ),
        *(like(index) for index in (5, 5, 52, 99, 141, 141, 141, 203, 230, 260)),
    ]


def build(folder: Path) -> list[Path]:
    """Writes the shards into `folder`, made where it is missing; returns their paths in order."""
    rng = random.Random(SEED)
    products: list[Product] = []
    for category in CATEGORIES:
        for listing in yaml.safe_load((HERE / "listings" / f"{category}.yaml").read_text(encoding="utf-8")):
            products += variants(category, listing, rng)
    weather(products, rng)
    manual = (HERE / "listings" / "manual.html").read_text(encoding="utf-8")
    products += oddities(products, manual)
    rng.shuffle(products)
    for number, product in enumerate(products):
        product_id = FIRST_ID + 7 * number
        # Some ids are missing, and one stands twice: a business id is not an identity.
        products[number] = product | {"product_id": None if number % 61 == 17 else product_id - 7 * (number == 203)}

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for shard in range(SHARDS):
        path = folder / f"part-{shard:05d}.parquet"
        rows = products[len(products) * shard // SHARDS : len(products) * (shard + 1) // SHARDS]
        pq.write_table(pa.Table.from_pylist(rows, CATALOG), path, row_group_size=ROW_GROUP_ROWS, compression="zstd")
        paths.append(path)
    return paths


def build_events(folder: Path) -> Path:
    """Writes the announcements as one Parquet file, beside each text what a careful reader would fill in as `gold`."""
    entries = yaml.safe_load((HERE / "events" / "announcements.yaml").read_text(encoding="utf-8"))
    rows = [{"id": n, "text": entry["text"], "gold": list(entry["fields"].items())} for n, entry in enumerate(entries)]
    path = folder / "announcements.parquet"
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, EVENTS), path, compression="zstd")
    return path


if __name__ == "__main__":
    if len(sys.argv) == 1:
        build_events(HERE / "events")
    for written in build(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "catalog"):
        facts = pq.read_metadata(written)
        print(f"{written}: {facts.num_rows} rows, {facts.num_row_groups} row groups, {written.stat().st_size} bytes")
