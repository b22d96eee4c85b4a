from __future__ import annotations

import hashlib
from datetime import date

import pyarrow as pa
import pytest

from hpd_core.grounding import Span
from hpd_core.numerals import Quantity
from hpd_core.rows import Row, RowStatus, Value, ValueStatus
from hpd_core.schema import Attribute, Schema, ValueType
from pipeline.job import JobError, OutputOptions, RowFault
from pipeline.output import OUTPUT_VERSION, OutputColumns, check_names, output_schema

SHOE = Schema("shoe", (Attribute("Brand"), Attribute("Size", type=ValueType.NUMBER)))
SCREEN = Schema(
    "screen",
    (
        Attribute("Brand"),
        Attribute("Ports", type=ValueType.INTEGER),
        Attribute("Curved?", type=ValueType.BOOLEAN, column="is_curved"),
    ),
)
ALL = {a.column: a for s in (SHOE, SCREEN) for a in s}
EXTRACTED, ABSENT, TRUNCATED = ValueStatus.EXTRACTED, ValueStatus.ABSENT, ValueStatus.TRUNCATED


def columns(**options: bool) -> OutputColumns:
    return OutputColumns(ALL, {"shoe": SHOE, "screen": SCREEN}, OutputOptions(**options))


def built(rows: list[Row | RowFault], made: OutputColumns) -> list[dict]:
    return pa.Table.from_arrays(made.build(rows), schema=pa.schema(made.fields())).to_pylist()


def test_values_land_in_their_columns_and_everything_else_is_null() -> None:
    rows: list[Row | RowFault] = [
        Row(SHOE, RowStatus.OK, (Value("Brand", "Adidas", EXTRACTED, " Adidas", 0.0, 2),
                                 Value("Size", 42.5, EXTRACTED, "42,5", -1.0, 3)), document_tokens=7),
        Row(SCREEN, RowStatus.CUT, (Value("Brand", None, ABSENT, "n/a", -0.1, 1),
                                    Value("Ports", None, TRUNCATED, "1 2 3", -0.2, 24),
                                    Value("Curved?", False, EXTRACTED, "no", -0.3, 1)), document_tokens=9),
        RowFault(RowStatus.NO_TEXT, "no title"),
        Row(SHOE, RowStatus.ERROR, error="the model gave logits that are not finite"),
    ]  # fmt: skip
    got = built(rows, columns())
    assert [r["brand"] for r in got] == ["Adidas", None, None, None]
    assert [r["size"] for r in got] == [42.5, None, None, None]
    assert [r["ports"] for r in got] == [None, None, None, None]
    assert [r["is_curved"] for r in got] == [None, False, None, None]
    assert [r["hpd_status"] for r in got] == ["ok", "cut", "no_text", "error"]
    assert [r["hpd_error"] for r in got] == [None, None, "no title", "the model gave logits that are not finite"]
    assert [r["hpd_document_tokens"] for r in got] == [7, 9, None, 0]
    assert [r["hpd_generated_tokens"] for r in got] == [5, 26, None, None]
    assert [r["hpd_values"] for r in got] == [2, 1, None, None]
    assert [r["hpd_truncated"] for r in got] == [0, 1, None, None]


def test_details_of_a_value_are_there_when_asked_for() -> None:
    row = Row(SHOE, RowStatus.OK, (Value("Brand", "A", EXTRACTED, " A", 0.0, 1),
                                   Value("Size", None, ABSENT, "", float("nan"), 0)))  # fmt: skip
    [got] = built([row], columns(confidence=True, statuses=True, raw=True))
    assert (got["brand__confidence"], got["brand__status"], got["brand__raw"]) == (1.0, "extracted", " A")
    assert (got["size__confidence"], got["size__status"], got["size__raw"]) == (None, "absent", "")
    assert (got["ports__confidence"], got["ports__status"], got["ports__raw"]) == (None, None, None)


def test_spans_and_the_text_they_count_in_are_there_when_asked_for() -> None:
    values = (
        Value("Brand", "Ä‑1", EXTRACTED, " ä-1", 0.0, 1, (Span(4, 7),)),
        Value("Size", 7.0, ValueStatus.UNGROUNDED, "7", 0.0, 1, (None,)),
    )
    rows = [Row(SHOE, RowStatus.OK, values, text="The Ä‑1"), RowFault(RowStatus.NO_TEXT, "no title")]
    got, fault = built(rows, columns(spans=True))
    assert got["hpd_text"][got["brand__start"] : got["brand__end"]] == got["brand"] == "Ä‑1"
    assert (got["size"], got["size__start"], got["size__end"]) == (7.0, None, None)
    assert (got["hpd_values"], got["ports__start"]) == (1, None)
    assert (fault["hpd_text"], fault["brand__start"]) == (None, None)
    assert "hpd_text" not in built(rows, columns())[0]


def test_quantities_dates_and_lists_have_columns_of_their_type() -> None:
    made = OutputColumns(
        {
            "weight": Attribute("Weight", type=ValueType.QUANTITY),
            "since": Attribute("Since", type=ValueType.DATE),
            "sizes": Attribute("Sizes", type=ValueType.QUANTITY, many=True),
            "colors": Attribute("Colors", many=True),
        },
        {
            "s": (
                schema := Schema(
                    "s", (Attribute("Weight"), Attribute("Since"), Attribute("Sizes"), Attribute("Colors"))
                )
            )
        },
        OutputOptions(spans=True),
    )
    values = (
        Value("Weight", Quantity(1.5, "kg"), EXTRACTED, "1,5 kg", 0.0, 1, (Span(0, 6),)),
        Value("Since", date(2024, 3, 25), EXTRACTED, "", 0.0, 1),
        Value("Sizes", (Quantity(1, "cm"), Quantity(2, "cm")), EXTRACTED, "", 0.0, 1, (Span(3, 4), None)),
        Value("Colors", ("red", "blue\ud800"), EXTRACTED, "", 0.0, 1),
    )
    got, nothing = built([Row(schema, RowStatus.OK, values), RowFault(RowStatus.NO_TEXT, "")], made)
    assert (got["weight"], got["since"]) == ({"value": 1.5, "unit": "kg"}, date(2024, 3, 25))
    assert got["sizes"] == [{"value": 1.0, "unit": "cm"}, {"value": 2.0, "unit": "cm"}]
    assert (got["sizes__start"], got["sizes__end"], got["weight__start"]) == ([3, None], [4, None], 0)
    assert (got["colors"], got["colors__start"], nothing["colors"], nothing["weight"]) == (
        ["red", "blue?"],
        None,
        None,
        None,
    )
    types = {f.name: str(f.type) for f in made.fields()}
    assert types["weight"] == "struct<value: double, unit: string>" and types["colors"] == "list<item: string>"


def test_what_a_row_asks_beyond_its_schema_goes_to_extra() -> None:
    wide = SHOE.select(["Heel", "Brand", "Sole"])
    values = (
        Value("Heel", "5 cm", EXTRACTED, "5 cm", 0.0, 1),
        Value("Brand", "A", EXTRACTED, "A", 0.0, 1),
        Value("Sole", None, ABSENT, "", 0.0, 1),
    )
    [got] = built([Row(wide, RowStatus.OK, values)], columns())
    assert got["brand"] == "A" and got["hpd_extra"] == [("Heel", "5 cm")]


def test_an_undeclared_name_never_lands_in_another_schemas_column() -> None:
    # "Ports" is declared by `screen` only: for a shoe it is an extra, although a column of that name exists.
    values = (Value("Ports", "3", EXTRACTED, "3", 0.0, 1),)
    [got] = built([Row(SHOE.select(["Ports"]), RowStatus.OK, values)], columns())
    assert got["ports"] is None and got["hpd_extra"] == [("Ports", "3")]


def test_a_lone_surrogate_from_the_model_can_be_stored() -> None:
    values = (Value("Brand", "A\ud800B", EXTRACTED, "\ud800", 0.0, 1), Value("Size", None, ABSENT, "", 0.0, 1))
    [got] = built([Row(SHOE, RowStatus.OK, values)], columns(raw=True))
    assert (got["brand"], got["brand__raw"]) == ("A?B", "?")


def test_an_unsure_value_is_null_with_status_text_and_calibrated_confidence() -> None:
    values = (
        Value("Brand", None, ValueStatus.UNSURE, "Acme", -0.1, 2, probability=0.25),
        Value("Size", None, TRUNCATED, "7 7 7", -0.1, 24, probability=float("nan")),
    )
    [got] = built([Row(SHOE, RowStatus.OK, values)], columns(confidence=True, statuses=True, raw=True))
    assert (got["brand"], got["brand__status"], got["brand__raw"]) == (None, "unsure", "Acme")
    assert (got["brand__confidence"], got["size__confidence"], got["hpd_values"]) == (0.25, None, 0)


def test_the_output_is_frozen() -> None:
    """Whoever changes a name, an order, a type or what a column holds raises OUTPUT_VERSION with it, and this line."""
    made = columns(confidence=True, statuses=True, raw=True)
    rows = [
        Row(
            SHOE, RowStatus.OK, (Value("Brand", "A", EXTRACTED, " A", 0.0, 1), Value("Size", None, ABSENT, "", -1.0, 2))
        ),
        RowFault(RowStatus.NO_TEXT, "no title"),
    ]
    text = "\n".join(f"{f.name}: {f.type}" for f in made.fields()) + repr(built(rows, made))
    assert (OUTPUT_VERSION, hashlib.sha256(text.encode()).hexdigest()[:12]) == (2, "0ca4e5786115"), text


def test_input_columns_come_first_untouched_or_as_chosen() -> None:
    inputs = pa.schema([("id", pa.int64()), ("title", pa.string())])
    assert output_schema(inputs, columns()).names[:3] == ["id", "title", "brand"]
    chosen = OutputColumns(ALL, {}, OutputOptions(columns=("title",)))
    assert output_schema(inputs, chosen).names[:2] == ["title", "brand"]
    with pytest.raises(JobError, match="'nope'"):
        output_schema(inputs, OutputColumns(ALL, {}, OutputOptions(columns=("nope",))))


def test_a_name_collision_names_both() -> None:
    described = columns().described()
    check_names(["id", "path", "title"], None, described)
    with pytest.raises(JobError, match=r"input column 'brand' and the attribute 'Brand'"):
        check_names(["id", "brand"], None, described)
    with pytest.raises(JobError, match=r"input column 'hpd_status' and the row column"):
        check_names(["hpd_status"], None, described)
    with pytest.raises(JobError, match=r"'__hpd_unit'.*reserved"):
        check_names(["__hpd_unit"], ["id"], described)
    check_names(["id", "brand"], ["id"], described)


@pytest.mark.parametrize(
    ("name", "both"),
    [
        ("Brand", "'Brand' and the attribute 'Brand' would be the output columns 'Brand' and 'brand'"),
        ("HPD_Status", "'HPD_Status' and the row column 'hpd_status' would be"),
        ("SIZE__raw", "'SIZE__raw' and the raw of the attribute 'Size' would be"),
    ],
)
def test_names_that_differ_in_case_alone_collide(name: str, both: str) -> None:
    described = columns(raw=True).described()
    with pytest.raises(JobError, match=both):
        check_names(["id", name], None, described)
    check_names(["id", name], ["id"], described)
    check_names(["id", "ID", "Title", "title"], None, described)  # the user's own


def test_output_columns_that_differ_in_case_alone_collide() -> None:
    attributes = {"color": Attribute("Color"), "Color": Attribute("Colour", column="Color")}
    both = r"the attribute 'Color' and the attribute 'Colour' would be the output columns 'color' and 'Color'"
    with pytest.raises(JobError, match=both):
        OutputColumns(attributes, {}, OutputOptions()).described()
    attributes = {"a": Attribute("A"), "A__RAW": Attribute("B", column="A__RAW")}
    with pytest.raises(JobError, match=r"'B' and the raw of the attribute 'A' would be"):
        OutputColumns(attributes, {}, OutputOptions(raw=True)).described()


def test_output_columns_that_collide_with_each_other_are_named() -> None:
    attributes = {"hpd_status": Attribute("Status", column="hpd_status")}
    with pytest.raises(JobError, match=r"'Status' and the row column 'hpd_status'"):
        OutputColumns(attributes, {}, OutputOptions()).described()
    attributes = {"a": Attribute("A"), "a__raw": Attribute("B", column="a__raw")}
    with pytest.raises(JobError, match=r"'B' and the raw of the attribute 'A'"):
        OutputColumns(attributes, {}, OutputOptions(raw=True)).described()
