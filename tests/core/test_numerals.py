from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpd_core.numerals import Quantity, number, quantity


@pytest.mark.parametrize(
    "text, value",
    [
        ("5", "5"),
        ("-5", "-5"),
        ("− 5", "-5"),
        ("+5", "5"),
        ("12.5", "12.5"),
        ("42,5", "42.5"),
        (".5", "0.5"),
        ("0,500", "0.5"),
        ("1,299", "1299"),
        ("1.299", "1.299"),
        ("1,234.5", "1234.5"),
        ("1.299,00", "1299"),
        ("1.299.000", "1299000"),
        ("1,299,000", "1299000"),
        ("1.299.000,5", "1299000.5"),
        ("1 299", "1299"),
        ("1\u202f299,50", "1299.5"),
        ("1'299.50", "1299.5"),
        ("½", "0.5"),
        ("1½", "1.5"),
        ("2 ¾", "2.75"),
        ("1/2", "0.5"),
        ("1 1/2", "1.5"),
        ("3⁄4", "0.75"),
        ("١٢٫٥", "12.5"),
        ("１２", "12"),
    ],
)
def test_numbers(text, value):
    assert number(text) == Decimal(value)


@pytest.mark.parametrize(
    "text",
    ["", "-", "about 3", "nan", "inf", "1_000", "1,23,4", "1.23.4", "1,2345.6", "10-20", "24/7", "16/9", "1/0", "3/2",
     "1.299,00,00", "1,299.00.0", "1 29", "²", "5 kg", "1e5", ".", ",", "5,", "--5", "½½", "↉"],
)  # fmt: skip
def test_what_is_no_number(text):
    assert number(text) is None


@pytest.mark.parametrize(
    "text, value", [("1.299", 1299), ("1,299", 1299), ("1299", 1299), ("5.0", 5), ("2,5", None), ("12.5", None)]
)
def test_whole_numbers(text, value):
    assert number(text, whole=True) == value


@given(st.integers(-(10**12), 10**12), st.integers(0, 99))
def test_every_way_to_write_a_price(units, cents):
    value = Decimal(units) + (Decimal(cents) / 100 if units >= 0 else -Decimal(cents) / 100)
    english = f"{units:,}.{cents:02}"
    german = english.translate(str.maketrans(",.", ".,"))
    for text in (english, german, english.replace(",", "\u00a0"), f"{units},{cents:02}"):
        assert number(text) == value, text


@given(st.text("0123456789.,'’ /½-", max_size=9))
def test_any_text_is_a_number_or_none(text):
    value = number(text)
    assert value is None or value.is_finite()
    assert value is None or any(c.isnumeric() for c in text)


@pytest.mark.parametrize(
    "text, value, unit",
    [
        ("1,5 kg", 1.5, "kg"),
        ("1.299,00 g", 1299, "g"),
        ("12V", 12, "V"),
        ("15.6-inch", 15.6, "in"),
        ('15.6"', 15.6, "in"),
        ("15,6 Zoll", 15.6, "in"),
        ("6'", 6, "ft"),
        ("1 1/2 in.", 1.5, "in"),
        ("½ l", 0.5, "l"),
        ("10 CM", 10, "cm"),
        ("10 centimetres", 10, "cm"),
        ("10 MM", 10, "mm"),
        ("5 KG", 5, "kg"),
        ("-5 °C", -5, "°C"),
        ("16 gb", 16, "GB"),
        ("5000mAh", 5000, "mAh"),
        ("80 %", 80, "%"),
        ("120 cm²", 120, "cm²"),
        ("120 cm^2", 120, "cm²"),
        ("50 km/h", 50, "km/h"),
        ("8 fl. oz.", 8, "floz"),
        ("20 lbs", 20, "lb"),
        ("60 Watt", 60, "W"),
        ("3 Nm", 3, "m·N"),
        ("12 MP", 12, "Mpixel"),
    ],
)
def test_quantities(text, value, unit):
    assert quantity(text) == Quantity(value, unit)


@pytest.mark.parametrize(
    "text",
    ["", "5", "kg", "about 5 kg", "10-20 cm", "10 x 20 cm", "5' 10\"", "5 red", "5 Stück", "$5", "24/7 h", "60 fps",
     "5 kg kg", "5 10**10", "5 m**9**9**9", "5 __import__", "5 " + "m" * 5000, "5 \n", "9" * 400 + " kg"],
)  # fmt: skip
def test_what_is_no_quantity(text):
    assert quantity(text) is None


@given(st.text(max_size=12))
def test_nothing_raises(text):
    quantity("5 " + text)
    number(text)
