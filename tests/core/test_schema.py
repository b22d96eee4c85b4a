from __future__ import annotations

import pytest

from hpd_core.schema import Attribute, Schema, SchemaError, slug


@pytest.mark.parametrize(
    "name, column",
    [("Brand", "brand"), ("Screen size (in)", "screen_size_in"), ("Größe", "größe"), ("A__b", "a_b"), ("型番", "型番")],
)
def test_columns_are_slugs(name, column):
    assert Attribute(name).column == column == slug(name)


@pytest.mark.parametrize("name", ["", " x", "x ", "a\nb", "a:b", "\u2028"])
def test_names_that_break_the_prompt_are_refused(name):
    with pytest.raises(SchemaError):
        Attribute(name)


def test_names_without_a_letter_need_a_column():
    with pytest.raises(SchemaError, match="set 'column'"):
        Attribute("%")
    assert Attribute("%", column="percent").column == "percent"


def test_collisions_name_both():
    with pytest.raises(SchemaError, match="'Screen size' and 'screen-size' share the column 'screen_size'"):
        Schema("tv", (Attribute("Screen size"), Attribute("screen-size")))
    with pytest.raises(SchemaError, match="no attribute"):
        Schema("tv", ())


def test_select_narrows_reorders_and_takes_undeclared_names():
    schema = Schema("tv", (Attribute("Brand"), Attribute("Size", description="of the screen")))
    chosen = schema.select(["Size", "Voltage", "Size"])
    assert [a.name for a in chosen] == ["Size", "Voltage"]
    assert next(iter(chosen)).description == "of the screen"
    assert schema.declares("Size") and not schema.declares("Voltage")


def test_an_undeclared_name_never_takes_a_declared_column():
    schema = Schema("tv", (Attribute("Size"),))
    assert [a.column for a in schema.select(["Size", "size"])] == ["size", "size_"]


def test_the_separator_of_several_values_is_in_none_of_them():
    Attribute("A", values=("x; y",))
    with pytest.raises(SchemaError, match="'x; y' holds ';'"):
        Attribute("A", values=("x; y",), many=True)


@pytest.mark.parametrize(
    "kind, readable, unreadable",
    [
        ("integer", "36", "36.5"),
        ("number", "36,5", "large"),
        ("boolean", "Yes", "waterproof"),
        ("quantity", "1,5 kg", "heavy"),
        ("date", "2024-03-25", "spring"),
    ],
)
def test_a_closed_value_is_readable_as_its_type(kind, readable, unreadable):
    assert Attribute("A", values=(readable,), type=kind).values == (readable,)
    with pytest.raises(SchemaError, match=f"attribute 'A': closed value '{unreadable}' cannot be read as {kind}"):
        Attribute("A", values=(readable, unreadable), type=kind)
    Attribute("A", values=(readable, unreadable))
