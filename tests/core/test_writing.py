"""What is written for a value is read back as that value."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from hpd_core.numerals import Quantity
from hpd_core.reading import ValueStatus, read
from hpd_core.schema import Attribute, ValueType
from hpd_core.writing import written

NUMBER, INTEGER, BOOLEAN = ValueType.NUMBER, ValueType.INTEGER, ValueType.BOOLEAN


@pytest.mark.parametrize(
    ("attribute", "value", "text"),
    [
        (Attribute("A"), " Acme ", "Acme"),
        (Attribute("A"), '"Acme"', "Acme"),
        (Attribute("A", type=NUMBER), 42.0, "42"),
        (Attribute("A", type=NUMBER), -0.1, "-0.1"),
        (Attribute("A", type=NUMBER), 1e-7, "0.0000001"),
        (Attribute("A", type=NUMBER), 2.5e15, "2500000000000000"),
        (Attribute("A", type=INTEGER), 1200, "1200"),
        (Attribute("A", type=BOOLEAN), True, "yes"),
        (Attribute("A", type=BOOLEAN), False, "no"),
        (Attribute("A", type=ValueType.QUANTITY), Quantity(1.5, "kg"), "1.5 kg"),
        (Attribute("A", type=ValueType.QUANTITY), {"value": 1.5, "unit": "kg"}, "1.5 kg"),
        (Attribute("A", type=ValueType.DATE), date(2024, 3, 9), "2024-03-09"),
        (Attribute("A", many=True), ["red", "sky blue"], "red; sky blue"),
        (Attribute("A", many=True, type=NUMBER), [1.5, 2.0], "1.5; 2"),
        (Attribute("A", many=True, values=("Navy", "Tan")), ["Navy", "Tan"], "Navy; Tan"),
        (Attribute("A", values=("Navy", "None")), "navy", "Navy"),
        (Attribute("A", values=("Navy", "None")), "none", "None"),
        (Attribute("A", values=("1.50", "2.0"), type=NUMBER), 2.0, "2.0"),
        (Attribute("A", values=("True", "False"), type=BOOLEAN), False, "False"),
    ],
)
def test_written_text_reads_back(attribute: Attribute, value: Any, text: str) -> None:
    assert written(attribute, value) == text
    found = read(attribute, text)
    assert found.status is ValueStatus.EXTRACTED
    assert found.value == (text if isinstance(value, str) else _typed(value))


MANY = Attribute("A", many=True)
CLOSED = Attribute("A", many=True, values=("Red", "None", "us", "US"))


@pytest.mark.parametrize(
    ("attribute", "value", "text"),
    [
        (MANY, ["Red", "n/a"], "Red"),
        (MANY, ["Red", ""], "Red"),
        (MANY, ["Red", None, " ", "Tan", "Red", "unknown"], "Red; Tan"),
        (MANY, ["n/a", ""], ""),
        (MANY, [], ""),
        (MANY, "red;blue; red;n/a", "red; blue"),
        (MANY, '"red; blue"', "red; blue"),
        (replace(MANY, type=NUMBER), [1.5, 2, 2.0, "1.50"], "1.5; 2"),
        (replace(MANY, type=NUMBER), 2.0, "2"),
        (replace(MANY, type="quantity"), [{"value": 1.5, "unit": "kg"}, {"value": None, "unit": "kg"}], "1.5 kg"),
        (CLOSED, "red; US;us", "Red; US; us"),
        (CLOSED, ["none", "RED", "Red"], "None; Red"),
        (CLOSED, "n/a", ""),
        (Attribute("A", values=("US", "us")), "us", "us"),
        (Attribute("A", values=("us", "US")), "US", "US"),
        (Attribute("A", values=("38–40",)), "38-40", "38–40"),
        (Attribute("A", values=("Men’s",)), "MEN'S", "Men’s"),
        (Attribute("A", values=("1 kg", "2 kg"), type="quantity"), Quantity(2, "kg"), "2 kg"),
        (Attribute("A", type="quantity"), {"value": None, "unit": "kg"}, ""),
        (Attribute("A", type="quantity"), {"value": 1.5, "unit": None}, ""),
        (Attribute("A", type="quantity"), {"value": float("nan"), "unit": "kg"}, ""),
    ],
)
def test_what_is_chosen_is_what_reading_chooses_and_nothing_is_written_for_nothing(attribute, value, text):
    assert written(attribute, value) == text
    found = read(attribute, text)
    assert found.status is (ValueStatus.EXTRACTED if text else ValueStatus.ABSENT)
    if text:
        assert written(attribute, text) == text and found == read(attribute, text)


@pytest.mark.parametrize("items", [["a;b", "c"], ["c", ";"], ["x", '"a; b"']])
def test_an_item_that_holds_the_separator_is_refused(items):
    item = next(i for i in items if ";" in i).strip('"')
    with pytest.raises(ValueError, match=re.escape(f"{item!r} holds ';', the separator")):
        written(MANY, items)


def _typed(value: Any) -> Any:
    """As `read` gives it what a column holds."""
    if isinstance(value, dict):
        return Quantity(**value)
    return tuple(value) if isinstance(value, list) else value
