"""What a raw text says: value, status, and the place it was copied from."""

from __future__ import annotations

from datetime import date

import pytest

from hpd_core.grounding import SourceText, Span
from hpd_core.numerals import Quantity
from hpd_core.reading import Reading, ValueStatus, as_text, read, typed_value
from hpd_core.schema import Attribute, ValueType

EXTRACTED, UNGROUNDED = ValueStatus.EXTRACTED, ValueStatus.UNGROUNDED
OPEN = Attribute("Name")
TEXT = SourceText("The Ｄｉｅｓｅｌ shoe, 1,299 g, n/a, in 15.6”")


@pytest.mark.parametrize(
    "kind, text, value",
    [
        (ValueType.INTEGER, "1,200", 1200),
        (ValueType.INTEGER, "12.5", None),
        (ValueType.NUMBER, "12.5", 12.5),
        (ValueType.INTEGER, "2,5", None),
        (ValueType.INTEGER, "1_000", None),
        (ValueType.INTEGER, "1,000,000", 1_000_000),
        (ValueType.NUMBER, "42,5", 42.5),
        (ValueType.NUMBER, "1,234.5", 1234.5),
        (ValueType.NUMBER, "1,23,4", None),
        (ValueType.NUMBER, "nan", None),
        (ValueType.NUMBER, "inf", None),
        (ValueType.NUMBER, "about 3", None),
        (ValueType.INTEGER, str(2**63), None),
        (ValueType.BOOLEAN, "Yes", True),
        (ValueType.BOOLEAN, "false", False),
        (ValueType.BOOLEAN, "maybe", None),
        (ValueType.NUMBER, "1.299,00", 1299.0),
        (ValueType.NUMBER, "1½", 1.5),
        (ValueType.NUMBER, "9" * 400, None),
        (ValueType.INTEGER, "1.299", 1299),
        (ValueType.INTEGER, "-9223372036854775808", -(2**63)),
        (ValueType.QUANTITY, "1,5 kg", Quantity(1.5, "kg")),
        (ValueType.QUANTITY, "1,5", None),
        (ValueType.DATE, "25.03.2024", date(2024, 3, 25)),
        (ValueType.DATE, "03/04/2024", None),
    ],
)
def test_types(kind, text, value):
    status = ValueStatus.INVALID if value is None else ValueStatus.EXTRACTED
    assert typed_value(Attribute("x", type=kind), text) == (value, status)


def test_closed_values_match_by_case_and_give_the_declared_form():
    attribute = Attribute("Gender", values=("Men", "Women"))
    assert typed_value(attribute, "women") == ("Women", ValueStatus.EXTRACTED)
    assert typed_value(attribute, "Kids") == (None, ValueStatus.INVALID)
    assert typed_value(attribute, "n/a") == (None, ValueStatus.ABSENT)
    assert typed_value(Attribute("Top", values=("T-Shirt",)), "t‑shirt") == ("T-Shirt", ValueStatus.EXTRACTED)
    assert typed_value(Attribute("Code", values=("us", "US")), "US") == ("US", ValueStatus.EXTRACTED)
    assert typed_value(Attribute("Filter", values=("None", "UV")), "none") == ("None", ValueStatus.EXTRACTED)


@pytest.mark.parametrize(
    "attribute, raw, reading",
    [
        (OPEN, " shoe", Reading("shoe", EXTRACTED, (Span(11, 15),))),
        (OPEN, '"diesel"', Reading("Ｄｉｅｓｅｌ", EXTRACTED, (Span(4, 10),))),
        (OPEN, "boot", Reading("boot", UNGROUNDED, (None,))),
        (OPEN, "n/a", Reading(None, ValueStatus.ABSENT)),
        (Attribute("G", type=ValueType.INTEGER), "1,299", Reading(1299, EXTRACTED, (Span(17, 22),))),
        (Attribute("G", type=ValueType.INTEGER), "1299", Reading(1299, UNGROUNDED, (None,))),
        (Attribute("G", type=ValueType.INTEGER), "shoe", Reading(None, ValueStatus.INVALID)),
        (Attribute("B", type=ValueType.BOOLEAN), "yes", Reading(True, EXTRACTED)),
        (Attribute("K", values=("Boot",)), "boot", Reading("Boot", EXTRACTED)),
        (Attribute("K", values=("Boot",)), "shoe", Reading(None, ValueStatus.INVALID)),
    ],
)
def test_what_is_copied_is_read_as_the_document_writes_it(attribute, raw, reading):
    assert read(attribute, raw, TEXT) == reading


@pytest.mark.parametrize(
    "kind, text, raw",
    [
        ("string", "Desk lamp", "S"),
        ("string", "Hundred pieces", "Red"),
        ("integer", "size 15.5", "5"),
        ("integer", "size 15.5", "15"),
        ("number", "size M12", "12"),
        ("quantity", "15 mm", "15 m"),
        ("quantity", "0.15 m", "15 m"),
        ("string", "big red\nshoe", "red shoe"),
    ],
)
def test_parts_of_words_and_numbers_and_what_crosses_a_line_are_not_what_the_document_says(kind, text, raw):
    found = read(Attribute("A", type=kind), raw, SourceText(text))
    assert (found.status, found.spans) == (UNGROUNDED, (None,))


COLORS = Attribute("Color", many=True)
TWO = SourceText("Red, dark  blue; red-ish. 5 cm")


@pytest.mark.parametrize(
    "attribute, raw, reading",
    [
        (COLORS, "Red", Reading(("Red",), EXTRACTED, (Span(0, 3),))),
        (
            COLORS,
            ' "red;dark blue ; red;n/a;" ',
            Reading(("red", "dark  blue"), EXTRACTED, (Span(17, 20), Span(5, 15))),
        ),
        (COLORS, "Red; pink", Reading(("Red", "pink"), UNGROUNDED, (Span(0, 3), None))),
        (COLORS, "n/a", Reading(None, ValueStatus.ABSENT)),
        (COLORS, " ; none;", Reading(None, ValueStatus.ABSENT)),
        (Attribute("S", type="quantity", many=True), "5 cm; XL", Reading(None, ValueStatus.INVALID)),
        (Attribute("S", type="quantity", many=True), "5 cm", Reading((Quantity(5, "cm"),), EXTRACTED, (Span(26, 30),))),
        (Attribute("K", values=("Men", "Women"), many=True), "women;MEN", Reading(("Women", "Men"), EXTRACTED)),
        (Attribute("K", values=("Men", "Women"), many=True), "women; kids", Reading(None, ValueStatus.INVALID)),
    ],
)
def test_several_values_are_read_each_for_itself_and_none_is_lost_in_silence(attribute, raw, reading):
    assert read(attribute, raw, TWO) == reading


@pytest.mark.parametrize(
    "value, text",
    [("a", "a"), (("a", "b"), "a; b"), (Quantity(1.5, "kg"), "1.5 kg"), (date(2024, 3, 25), "2024-03-25"), (7, "7")],
)
def test_values_as_people_read_them(value, text):
    assert as_text(value) == text


def test_without_a_source_nobody_looks():
    assert read(OPEN, "boot") == Reading("boot", EXTRACTED)
