"""Rows -> documents: which schema a row gets, and that no row's content stops the others."""

from __future__ import annotations

import datetime as dt
import json
import pickle
from typing import Any

import pyarrow as pa
import pytest

from hpd_core.rows import RowStatus
from hpd_core.schema import Attribute, Document, Schema
from pipeline.job import RowFault
from pipeline.reader import CatalogReader
from pipeline.text import TextTemplate

SHOES = Schema("shoes", (Attribute("Brand"), Attribute("Size")))
TEA = Schema("tea", (Attribute("Flavor"),))
ANY = Schema("any", (Attribute("Brand"),))


def reader(template: str = "{{ title }}", **changes: Any) -> CatalogReader:
    settings = {"schemas": {"shoes": SHOES, "tea": TEA}, "category_column": "category", "attributes_column": "ask"}
    return CatalogReader(TextTemplate(template), **settings | changes)


def table(**columns: list[Any]) -> pa.Table:
    size = len(next(iter(columns.values())))
    whole = {"title": ["x"] * size, "category": ["shoes"] * size, "ask": pa.nulls(size, pa.list_(pa.string()))}
    return pa.table(whole | columns)


def test_the_category_picks_the_schema() -> None:
    found = reader().documents(table(category=["tea", "shoes", " tea "]))
    assert found == [Document("x", TEA), Document("x", SHOES), Document("x", TEA)]


@pytest.mark.parametrize(("category", "reason"), [(None, "no category"), ("  ", "no category"), ("hats", "'hats'")])
def test_a_category_without_schema_is_an_error_unless_there_is_a_default(category: str | None, reason: str) -> None:
    (fault,) = reader().documents(table(category=[category]))
    assert isinstance(fault, RowFault)
    assert fault.status is RowStatus.ERROR and reason in fault.reason
    assert reader(default=TEA).documents(table(category=[category])) == [Document("x", TEA)]


@pytest.mark.parametrize(
    ("default", "categories"),
    [(None, ["tea", "shoes", "", "", "None", "hats"]), (ANY, ["tea", "shoes", "any", "any", "any", "any"])],
)
def test_a_row_tells_the_category_that_its_schema_came_by(default: Schema | None, categories: list[str]) -> None:
    rows = table(category=[" tea ", "shoes", None, " ", "None", "hats"])
    found = reader(default=default).categorized(rows)
    assert [category for category, _ in found] == categories
    assert [item for _, item in found] == reader(default=default).documents(rows)
    assert [category for category, _ in reader(category_column=None, default=ANY).categorized(rows)] == ["any"] * 6


@pytest.mark.parametrize("title", [None, "", "  \n ", "\u2028"])
def test_a_row_without_text_says_so(title: str | None) -> None:
    (fault,) = reader().documents(table(title=pa.array([title], pa.string())))
    assert isinstance(fault, RowFault) and fault.status is RowStatus.NO_TEXT


def test_a_row_may_ask_its_own_attributes_in_its_own_order() -> None:
    asked = [["Size", " Colour ", "Size", ""], [], None, ["Bad:name"], ["Brand"]]
    found = reader().documents(table(ask=asked))

    assert [a.name for a in found[0].schema] == ["Size", "Colour"]  # type: ignore[union-attr]
    assert found[1] == found[2] == Document("x", SHOES)
    assert isinstance(found[3], RowFault) and "Bad:name" in found[3].reason
    assert found[4].schema.attributes == (SHOES.attributes[0],)  # type: ignore[union-attr]


def test_a_value_that_python_cannot_hold_spoils_its_own_row_only() -> None:
    not_utf8 = pa.Array.from_buffers(
        pa.string(), 3, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\3\0\0\0\4\0\0\0"), pa.py_buffer(b"a\xff\xfeb")]
    )
    found = reader().documents(table(title=not_utf8))

    assert [type(item).__name__ for item in found] == ["Document", "RowFault", "Document"]
    assert "column 'title'" in found[1].reason  # type: ignore[union-attr]


def test_an_exception_of_a_template_is_that_row_s_error() -> None:
    found = reader("{{ 10 // n }}{{ title }}").documents(table(n=[2, 0, 5]))
    assert [type(item).__name__ for item in found] == ["Document", "RowFault", "Document"]
    assert "ZeroDivisionError" in found[1].reason  # type: ignore[union-attr]


def test_only_the_columns_in_use_are_read() -> None:
    broken = pa.array([2**62], pa.timestamp("s"))  # a year that Python's datetime does not have
    assert reader().documents(table(title=["x"], unused=broken)) == [Document("x", SHOES)]


STRUCT = pa.schema(
    [
        ("title", pa.string()),
        ("category", pa.dictionary(pa.int32(), pa.string())),
        ("ask", pa.list_(pa.string())),
        ("details", pa.struct([("brand", pa.string()), ("maker", pa.struct([("city", pa.string())]))])),
    ]
)


@pytest.mark.parametrize(
    ("template", "changes", "message"),
    [
        ("{{ titel }}", {}, "column 'titel' is not in the input, which has 'title', 'category'"),
        ("{{ details.color }}", {}, "column 'details' has no field 'color', only 'brand', 'maker'"),
        ("{{ details.maker.town }}", {}, "column 'details.maker' has no field 'town', only 'city'"),
        ("{{ title }}", {"category_column": "cat"}, "column 'cat' is not in the input"),
        (
            "{{ title }}",
            {"attributes_column": "title"},
            "column 'title' is string: a row's own attributes must be a list",
        ),
    ],
)
def test_check_names_what_the_input_lacks(template: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reader(template, **changes).check(STRUCT)


def test_check_lets_pass_what_fits() -> None:
    reader("{{ title }}{{ details.maker.city }}{{ title.anything }}").check(STRUCT)


def test_a_reader_without_any_schema_to_give_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing says which schema"):
        reader(category_column=None)


def test_a_reader_travels_between_processes_and_its_facts_are_json() -> None:
    original = reader("{{ title }} {{ when }}", default=TEA)
    copy = pickle.loads(pickle.dumps(original))
    rows = table(title=["x"], when=[dt.datetime(2026, 1, 2, 3, 4)])

    assert copy.documents(rows) == original.documents(rows) == [Document("x 2026-01-02T03:04:00", SHOES)]
    assert json.loads(json.dumps(copy.facts())) == json.loads(json.dumps(original.facts()))


def test_facts_change_with_everything_that_changes_a_document() -> None:
    other_schema = Schema("shoes", (Attribute("Size"), Attribute("Brand")))
    variants = [
        reader(),
        reader("{{ title }}."),
        reader(schemas={"shoes": other_schema, "tea": TEA}),
        reader(default=TEA),
        reader(category_column="kind"),
        reader(attributes_column=None),
    ]
    assert len({json.dumps(v.facts(), sort_keys=True) for v in variants}) == len(variants)
