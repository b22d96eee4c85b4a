"""What other teams write into their files: it comes through untouched, or is refused by name. Real planning, reading,
tokenising and committing, a fake decoder; each output is verified against its input as `hpd verify` does."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline.tokenize
from hpd_core.rows import Counts, Extraction, Row, RowStatus, Value, ValueStatus
from hpd_core.schema import Attribute, Document, Schema, SchemaError, ValueType
from hpd_core.spec import DecoderSpec
from pipeline.compose import compose
from pipeline.config import load_config
from pipeline.job import JobError, OutputOptions, RowFault, UnitCaps
from pipeline.manifest import OutputFolder
from pipeline.reader import CatalogReader
from pipeline.run import run
from pipeline.storage import Storage
from pipeline.text import TextTemplate
from pipeline.verify import verify
from tests.pipeline.fakes import PRODUCT, ByteEncoder, answer
from tests.pipeline.helpers import assert_exact, inline, job, output_files, output_table, same, write
from tests.pipeline.messy import FAMILY, TEXTS, strings, typed


@pytest.fixture(autouse=True)
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.drive.drive", inline)


def catalog_reader(template: str, *schemas: Schema) -> CatalogReader:
    return CatalogReader(TextTemplate(template), {s.name: s for s in schemas[1:]}, schemas[0])


def extracted(tmp_path: Path, **changes: Any) -> pa.Table:
    """All output rows of the job over `in/`, which must be complete and verified."""
    summary = run(job(tmp_path, tmp_path / "in", **changes))
    assert summary.complete, summary.failures
    result = verify(OutputFolder(str(tmp_path / "out"), Storage()), Storage())
    assert result.findings == () and result.extent.rows_compared == summary.rows_in
    return output_table(tmp_path / "out")


@pytest.mark.parametrize("catalog", ["amazon-2023", "camera-listings", "promap"])
def test_real_catalogs_come_through(
    catalog: str, tmp_path: Path, repository: Path, real_data: Callable[[str], Path]
) -> None:
    config = repository / "conf" / f"{catalog}.yaml"
    source = real_data(f"catalogs/{catalog}")
    spec = compose(load_config(config), config, inputs=[str(source)], output=str(tmp_path / "out"), limit=2000)
    decoder = Says(None, ValueStatus.ABSENT, "n/a")
    summary = run(replace(spec, units=UnitCaps(rows=300), encoder_factory=ByteEncoder, decoder_factory=decoder))
    assert summary.complete and summary.rows_ok > 0
    result = verify(OutputFolder(str(tmp_path / "out"), Storage()), Storage())
    assert result.findings == () and result.extent.rows_compared == summary.rows_in > 100


# 1. Types that differ between shards


def test_null_string_large_string_and_dictionary_shards_become_one_column(tmp_path: Path) -> None:
    titles = pa.array(["a", None, "c"])
    kinds = [titles, pa.nulls(3), titles.cast(pa.large_string()), titles.dictionary_encode()]
    for number, kind in enumerate(kinds):
        write(tmp_path / f"in/{number}.parquet", pa.table({"id": [number] * 3, "title": kind}))
    table = extracted(tmp_path)
    assert table.schema.field("title").type == pa.large_string()
    assert table.column("title").to_pylist() == [*["a", None, "c"], None, None, None, *["a", None, "c"] * 2]
    assert len({pq.read_schema(path).serialize().to_pybytes() for path in output_files(tmp_path / "out")}) == 1
    assert table.column("hpd_status").to_pylist().count("no_text") == 6


def test_ids_of_two_types_are_refused_with_both_files_and_both_types(tmp_path: Path) -> None:
    a = write(tmp_path / "in/a.parquet", {"id": [1], "title": ["x"]})
    b = write(tmp_path / "in/b.parquet", {"id": ["1"], "title": ["x"]})
    with pytest.raises(JobError, match=rf"'id' is int64 in {a} but string in {b}: no common type"):
        run(job(tmp_path, tmp_path / "in"))
    assert not (tmp_path / "out").exists()


def test_strings_and_bytes_of_every_layout_become_one_column(tmp_path: Path) -> None:
    """Arrow has three, and which one a Parquet file says depends on who wrote it."""
    texts, raw = pa.array(["a", None, "c"]), pa.array([b"\0", None, b"\xff"])
    kinds = [(pa.string_view(), pa.large_binary()), (pa.string(), pa.binary_view()), (pa.large_string(), pa.binary())]
    for number, (text, binary) in enumerate(kinds):
        table = pa.table({"title": texts.cast(text), "list": pa.array([["x"], [], None], pa.list_(text))})
        write(tmp_path / f"in/{number}.parquet", table.append_column("raw", raw.cast(binary)))
    table = extracted(tmp_path)
    assert table.schema.field("title").type == pa.large_string() and table.schema.field("raw").type == pa.large_binary()
    assert table.column("title").to_pylist() == ["a", None, "c"] * 3
    assert table.column("raw").to_pylist() == raw.to_pylist() * 3
    assert table.column("list").to_pylist() == [["x"], [], None] * 3


# 2. Nothing in it


def without_row_groups(path: Path, schema: pa.Schema) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.ParquetWriter(path, schema).close()
    assert pq.read_metadata(path).num_row_groups == 0
    return path


def test_shards_without_rows_or_row_groups_beside_full_ones(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("title", pa.string())])
    write(tmp_path / "in/a.parquet", schema.empty_table())
    without_row_groups(tmp_path / "in/b.parquet", schema)
    source = pa.table({"id": [1, 2], "title": ["x", "y"]}, schema=schema)
    write(tmp_path / "in/c.parquet", source)
    extracted(tmp_path)
    assert_exact(tmp_path / "out", source)
    assert len(output_files(tmp_path / "out")) == 3


def test_a_catalog_of_empty_shards_has_a_schema_and_succeeds(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("title", pa.string())])
    write(tmp_path / "in/a.parquet", schema.empty_table())
    without_row_groups(tmp_path / "in/b.parquet", schema)
    table = extracted(tmp_path)
    assert table.num_rows == 0 and table.schema.field("pack_size").type == pa.int64()
    assert table.schema.names[:3] == ["id", "title", "brand"] and (tmp_path / "out/_SUCCESS").exists()


# 3. Values that a detour over Python, numpy or pandas would change


def spelled(column: pa.ChunkedArray) -> str:
    """All values written out, by other code than what compares them for `hpd verify`: nan, -0.0 and None differ."""
    return repr((column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist())


def test_awkward_values_are_the_same_arrow_values_afterwards(tmp_path: Path) -> None:
    source = typed()
    write(tmp_path / "in/a.parquet", source, row_group_size=17)
    table = extracted(tmp_path)
    read = pq.read_table(tmp_path / "in/a.parquet")
    for name in source.column_names:
        a, b = table.column(name).combine_chunks(), read.column(name).combine_chunks()
        assert a.type == b.type == source.schema.field(name).type, name
        assert a.is_null().equals(b.is_null()), name
        assert spelled(a) == spelled(source.column(name)), name


def test_int96_becomes_nanoseconds(tmp_path: Path) -> None:
    moments = pa.array([dt.datetime(2024, 1, 1, 12, 30, 0, 7), None], pa.timestamp("ns"))
    (tmp_path / "in").mkdir()
    source = pa.table({"title": ["a", "b"], "seen": moments})
    pq.write_table(source, tmp_path / "in/a.parquet", use_deprecated_int96_timestamps=True)
    assert pq.ParquetFile(tmp_path / "in/a.parquet").schema.column(1).physical_type == "INT96"
    table = extracted(tmp_path)
    assert table.schema.field("seen").type == pa.timestamp("ns") and table.column("seen").combine_chunks() == moments
    written = pq.ParquetFile(output_files(tmp_path / "out")[0]).schema.column(1)
    assert (written.name, written.physical_type) == ("seen", "INT64")


# 4. Names


@pytest.mark.parametrize("name", ["hpd_status", "brand"])
def test_a_column_named_like_one_of_the_output_is_refused_by_name(tmp_path: Path, name: str) -> None:
    write(tmp_path / "in/a.parquet", {"title": ["x"], name: ["y"]})
    with pytest.raises(JobError, match=rf"the input column '{name}' and the .* share the output column '{name}'"):
        run(job(tmp_path, tmp_path / "in"))


def test_two_columns_of_one_name_are_refused_with_the_file(tmp_path: Path) -> None:
    arrays = [pa.array(["x"]), pa.array([1]), pa.array([2])]
    path = write(tmp_path / "in/a.parquet", pa.Table.from_arrays(arrays, ["title", "id", "id"]))
    with pytest.raises(JobError, match=rf"'id' stands twice in {path}"):
        run(job(tmp_path, tmp_path / "in"))


ODD_NAMES = [
    "path",
    "a.b",
    "a",
    "item",
    "list.element",
    "two  words",
    " edge ",
    "😀",
    "índice",
    "",
    "Title",
    "__index__",
]


def test_odd_names_come_through(tmp_path: Path) -> None:
    columns: dict[str, object] = {name: [number, None] for number, name in enumerate(ODD_NAMES)}
    source = pa.table(columns | {"title": ["x", "y"], "s.t": [{"u.v": 1}, None]})
    write(tmp_path / "in/a.parquet", source)
    extracted(tmp_path, reader=catalog_reader('{{ row["a.b"] }} {{ row["😀"] }} {{ title }}', PRODUCT))
    assert same(output_table(tmp_path / "out").select(source.column_names), source)
    assert output_table(tmp_path / "out").column("brand").to_pylist() == [
        answer("1 7 x", PRODUCT.attributes[0]),
        answer("y", PRODUCT.attributes[0]),
    ]


def test_odd_names_may_be_kept_alone(tmp_path: Path) -> None:
    source = pa.table({"a": [1, 2], "a.b": [3, 4], "title": ["x", "y"], "s": [{"t": 5}, None], "s.t": [6, 7]})
    write(tmp_path / "in/a.parquet", source)
    table = extracted(tmp_path, output_options=OutputOptions(columns=("a.b", "s.t", "title")))
    assert same(table.select(["a.b", "title", "s.t"]), source.select(["a.b", "title", "s.t"]))


@pytest.mark.parametrize(
    ("keep", "layout"), [((), "flat"), (("id",), "hive"), (("Details", "a.b"), "flat"), (("size", "extra"), "hive")]
)
@pytest.mark.parametrize(
    ("template", "looked_at"),
    [
        ("{{ details.maker.name }} {{ title }}", {"details", "title"}),
        ('{{ row["Product name"] }} {{ row["a.b"] }}', {"Product name", "a.b"}),
        ("{{ (spec | json).Colour }} {{ size }}", {"spec", "size"}),
        ("{% for item in list %}{% set x = item %}{{ x }}{{ loop.index }}{% endfor %}", {"list"}),
        ("{% if extra is defined and extra %}{{ extra }}{% else %}{{ title }}{% endif %}", {"extra", "title"}),
    ],
)
def test_an_output_of_few_columns_is_what_reading_all_of_them_gives(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    template: str,
    looked_at: set[str],
    keep: tuple[str, ...],
    layout: str,
) -> None:
    first = {
        "id": [1, 2, 3],
        "Title": ["A", "B", "C"],
        "title": ["a", None, "c"],
        "details": [{"maker": {"name": "m", "x": 1}}, None, {"maker": None}],
        "Details": [{"maker": 1}] * 3,
        "a.b": ["dotted", "", None],
        "a": [{"b": "inner"}] * 3,
        "Product name": ["p", "q", None],
        "spec": ['{"Colour": "red"}', "no json", None],
        "list": [["x", "y"], [], None],
        "list.element": [7, 8, 9],
        "image": [b"\x00\xff"] * 3,
    }
    write(tmp_path / "in/size=01/a.parquet", pa.table(first))
    write(tmp_path / "in/size=02/b.parquet", {"extra": ["e", None], "id": [4, 5]})
    read: list[pa.Table] = []
    conform = pipeline.tokenize.conform
    monkeypatch.setattr("pipeline.tokenize.conform", lambda *a: (read.append(conform(*a)), read[-1])[1])
    options = OutputOptions(columns=keep, layout=layout)
    reader = catalog_reader(template, PRODUCT)
    table = extracted(tmp_path, reader=reader, output_options=options, units=UnitCaps(rows=2))
    assert {frozenset(t.column_names) for t in read} == {frozenset(looked_at | set(keep))}
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.prepare.Prepared.reads", property(lambda self: self.plan.schema))
        spec = job(tmp_path, tmp_path / "in", reader=reader, output_options=options, units=UnitCaps(rows=2))
        assert run(replace(spec, output=str(tmp_path / "whole"))).complete
    assert len(read[-1].column_names) == 14
    assert same(table, output_table(tmp_path / "whole")) and set(table.column("hpd_status").to_pylist()) >= {"ok"}


def test_a_column_that_the_text_needs_is_missed_although_few_are_kept(tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", {"id": [1], "title": ["x"], "details": [{"x": 1}]})
    for template, reason in (("{{ name }}", "'name' is not in the input, which has 'id'"), ("{{ details.y }}", "'y'")):
        spec = job(tmp_path, tmp_path / "in", reader=catalog_reader(template, PRODUCT))
        with pytest.raises(JobError, match=reason):
            run(replace(spec, output_options=OutputOptions(columns=("id",))))


class Anything(CatalogReader):
    """Does not say what it looks at."""

    def columns(self) -> None:
        return None

    def documents(self, table: pa.Table) -> list[Document | RowFault]:
        return [Document(" ".join(map(str, row.values())), PRODUCT) for row in table.to_pylist()]

    def check(self, schema: pa.Schema) -> None:
        pass


def test_a_reader_that_does_not_say_what_it_looks_at_gets_all(tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", {"id": [1], "title": ["x"], "n": [2.5]})
    reader = Anything(TextTemplate("{{ title }}"), {}, PRODUCT)
    table = extracted(tmp_path, reader=reader, output_options=OutputOptions(columns=("id",)))
    assert table.column("brand").to_pylist() == [answer("1 x 2.5", PRODUCT.attributes[0])]


def test_what_other_tools_leave_beside_the_shards_is_not_read(tmp_path: Path) -> None:
    source = pa.table({"title": ["x"]})
    write(tmp_path / "in/sub/a.parquet", source)
    good = (tmp_path / "in/sub/a.parquet").read_bytes()
    for name in ("_SUCCESS", "sub/_SUCCESS", "_metadata", "sub/_common_metadata", "sub/.a.parquet.crc", "schema.json"):
        (tmp_path / "in" / name).write_bytes(b"")
    for name in ("sub/b.parquet.tmp", "sub/_b.parquet", ".hidden/c.parquet", "_temporary/0/d.parquet"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(good)
    extracted(tmp_path)
    assert_exact(tmp_path / "out", source)


def test_hive_partitions_are_columns_as_they_are_written(tmp_path: Path) -> None:
    folders = ["size=007/colour=light%2Fblue", "size=08/colour=__HIVE_DEFAULT_PARTITION__", "size=/colour=a=b"]
    for number, folder in enumerate(folders):
        write(tmp_path / "in" / folder / "part-0.parquet", {"title": [f"x{number}"] * 3})
    write(tmp_path / "in/flat.parquet", {"title": ["x3"]})
    write(tmp_path / "in/size=9/own.parquet", {"title": ["x4"], "size": ["own"]})
    reader = catalog_reader("{{ title }} {{ size }} {{ colour }}", PRODUCT)
    table = extracted(tmp_path, reader=reader)
    rows = table.sort_by("title").to_pylist()
    assert table.schema.names[:3] == ["title", "size", "colour"] and table.num_rows == 11
    found = {row["title"]: (row["size"], row["colour"]) for row in rows}
    assert found == {
        "x0": ("007", "light/blue"),
        "x1": ("08", None),
        "x2": ("", "a=b"),
        "x3": (None, None),
        "x4": ("own", None),
    }
    assert rows[0]["brand"] == answer("x0 007 light/blue", PRODUCT.attributes[0])


def test_a_partition_that_another_file_has_as_a_number_is_refused_by_name(tmp_path: Path) -> None:
    a = write(tmp_path / "in/year=2024/a.parquet", {"title": ["x"]})
    b = write(tmp_path / "in/year=2025/b.parquet", {"title": ["x"], "year": [2025]})
    with pytest.raises(JobError, match=rf"'year' is string in {a} but int64 in {b}"):
        run(job(tmp_path, tmp_path / "in"))


# 5. Ids


@pytest.mark.parametrize("ids", [[7, 7, None, None, 7], None])
def test_ids_may_repeat_or_be_null_or_not_be_there(tmp_path: Path, ids: list[int | None] | None) -> None:
    titles = ["a", "a", "b", None, "a"]
    source = pa.table(({"id": pa.array(ids, pa.int64())} if ids else {}) | {"title": titles})
    for name in ("a", "b"):  # the very same rows in two files are two times the rows
        write(tmp_path / f"in/{name}.parquet", source, row_group_size=2)
    extracted(tmp_path)
    assert_exact(tmp_path / "out", pa.concat_tables([source, source]))


# 6. Texts


def test_texts_of_every_kind_come_through_and_are_decoded(tmp_path: Path) -> None:
    source = pa.table({"kind": list(TEXTS), "title": list(TEXTS.values())})
    write(tmp_path / "in/a.parquet", source)
    table = extracted(tmp_path, reader=catalog_reader("{{ title }}", PRODUCT))
    assert same(table.select(["kind", "title"]), source)
    status = dict(zip(TEXTS, table.column("hpd_status").to_pylist(), strict=True))
    assert {kind for kind, s in status.items() if s == "cut"} == {"base64", "long"}
    assert set(status.values()) == {"ok", "cut"}
    for kind in ("family", "marker", "combining"):  # the model reads just what stands there
        brand = table.column("brand")[list(TEXTS).index(kind)].as_py()
        assert brand == answer(TEXTS[kind], PRODUCT.attributes[0])


@pytest.mark.parametrize("text", [" ", "\n\t ", "\u00a0\u2003", "", None])
def test_a_text_of_blanks_is_no_text(tmp_path: Path, text: str | None) -> None:
    write(tmp_path / "in/a.parquet", pa.table({"title": pa.array([text], pa.string())}))
    table = extracted(tmp_path, reader=catalog_reader("{{ title }}", PRODUCT))
    assert table.column("hpd_status").to_pylist() == ["no_text"] and table.column("title").to_pylist() == [text]


def test_bytes_that_are_no_utf8_cost_their_row_alone_and_come_through(tmp_path: Path) -> None:
    titles = strings(b"good", b"caf\xe9", b"\xed\xa0\x80", b"fine")
    other = strings(b"\xff", b"x", b"y", b"z")  # in a column that nobody reads
    write(tmp_path / "in/a.parquet", pa.table({"title": titles, "other": other}))
    table = extracted(tmp_path, reader=catalog_reader("{{ title }}", PRODUCT))
    assert table.column("hpd_status").to_pylist() == ["ok", "error", "error", "ok"]
    assert all("column 'title'" in e for e in table.column("hpd_error").to_pylist()[1:3])
    for name, column in (("title", titles), ("other", other)):
        assert table.column(name).combine_chunks().view(pa.binary()).equals(column.view(pa.binary()))


class Says:
    """A decoder that answers every question with `value` and `status`."""

    def __init__(self, value: object, status: ValueStatus, raw: str) -> None:
        self.answer = (value, status, raw)

    def __call__(self, spec: DecoderSpec, device: str, threads: int) -> Says:
        return self

    def extract_encoded(self, documents: Sequence[Any]) -> Extraction:
        value, status, raw = self.answer
        rows = [
            Row(d.schema, RowStatus.OK, tuple(Value(a.name, value, status, raw, -1.0, 24) for a in d.schema))  # type: ignore[arg-type]
            for d in documents
        ]
        return Extraction(rows, Counts(documents=len(rows), model_calls=1))


BRAND = Schema("brand", (Attribute("Brand"),))


@pytest.mark.parametrize(
    ("said", "stored"),
    [("\ud83d", "?"), ("a\0b", "a\0b"), (FAMILY, FAMILY), ("\udc80x\ud800", "?x?"), ("שלום", "שלום")],
)
def test_what_the_model_says_can_be_stored(tmp_path: Path, said: str, stored: str) -> None:
    write(tmp_path / "in/a.parquet", {"title": ["x"]})
    decoder = Says(said, ValueStatus.EXTRACTED, said)
    reader = catalog_reader("{{ title }}", BRAND)
    table = extracted(tmp_path, reader=reader, schemas=(BRAND,), decoder_factory=decoder)
    assert table.column("brand").to_pylist() == [stored]


# 7. Schemas


def test_sixty_attributes_and_one(tmp_path: Path) -> None:
    kinds = list(ValueType)
    wide = Schema("wide", tuple(Attribute(f"Attribute {n}", type=kinds[n % len(kinds)]) for n in range(60)))
    write(tmp_path / "in/a.parquet", {"title": [f"t{i}" for i in range(45)]})
    for schema in (wide, BRAND):
        absent = Says(None, ValueStatus.ABSENT, "n/a")
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        table = extracted(
            tmp_path, reader=catalog_reader("{{ title }}", schema), schemas=(schema,), decoder_factory=absent
        )
        # No document has any of them: each column keeps its type in every file all the same.
        assert [f.name for f in table.schema][1 : 1 + len(schema)] == [a.column for a in schema]
        assert len({pq.read_schema(path).serialize().to_pybytes() for path in output_files(tmp_path / "out")}) == 1
        assert not any(pa.types.is_null(f.type) for f in table.schema)
        assert all(table.column(a.column).null_count == 45 for a in schema)


def test_names_that_collide_after_slugging_are_refused_with_both() -> None:
    with pytest.raises(SchemaError, match=r"attributes 'Screen size' and 'screen-size' share the column 'screen_size'"):
        Schema("tv", (Attribute("Screen size"), Attribute("screen-size")))
    Schema("tv", (Attribute("Screen size"), Attribute("screen-size", column="size_2")))


def test_a_value_that_never_ends_is_null_and_marked(tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", {"title": ["x"]})
    table = extracted(
        tmp_path,
        reader=catalog_reader("{{ title }}", BRAND),
        schemas=(BRAND,),
        decoder_factory=Says(None, ValueStatus.TRUNCATED, "blah blah blah"),
        output_options=OutputOptions(statuses=True, raw=True),
    )
    [row] = table.to_pylist()
    assert (row["brand"], row["brand__status"], row["brand__raw"]) == (None, "truncated", "blah blah blah")
    assert (row["hpd_truncated"], row["hpd_values"], row["hpd_status"]) == (1, 0, "ok")
