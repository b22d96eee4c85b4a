from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpd_core.numerals import _PREFIXES, _TRADE, Quantity, _registry, _unit, number, quantity


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
    "text, unit",
    [
        ("5 km", "km"),
        ("10 CM", "cm"),
        ("0.5 m", "m"),
        ("12 µm", "µm"),
        ("3 microns", "µm"),
        ("6 in", "in"),
        ("6 IN", "in"),
        ("6 yds", "yd"),
        ("2 miles", "mi"),
        ("40 mils", "mil"),
        ("5 sq ft", "ft²"),
        ("5 sqft", "ft²"),
        ("5 ft2", "ft²"),
        ("30 sqm", "m²"),
        ("2 acres", "acre"),
        ("2 ha", "ha"),
        ("500 ml", "ml"),
        ("500 ML", "ml"),
        ("1.5L", "l"),
        ("33 cl", "cl"),
        ("2 hl", "hl"),
        ("350 cc", "cc"),
        ("10 cm3", "cm³"),
        ("5 cu ft", "ft³"),
        ("16 fl oz", "floz"),
        ("1 gal", "gal"),
        ("2 qt", "qt"),
        ("2 pints", "pint"),
        ("2 cups", "cp"),
        ("1 tbsp", "tbsp"),
        ("1 tsp", "tsp"),
        ("5 kgs", "kg"),
        ("500 mg", "mg"),
        ("400 mcg", "µg"),
        ("8 OZ", "oz"),
        ("3 t", "t"),
        ("180 gsm", "g/m²"),
        ("40 den", "den"),
        ("10 mins", "min"),
        ("24 hrs", "h"),
        ("2 days", "day"),
        ("6 weeks", "week"),
        ("6 months", "month"),
        ("2 years", "year"),
        ("2 yrs", "year"),
        ("5 ms", "ms"),
        ("20 µs", "µs"),
        ("37 °C", "°C"),
        ("98 ° F", "°F"),
        ("20 degrees Celsius", "°C"),
        ("3000 K", "K"),
        ("3000K", "K"),
        ("300 kelvin", "kelvin"),
        ("60w", "W"),
        ("1.5 kW", "kW"),
        ("3 hp", "hp"),
        ("12000 BTU", "Btu"),
        ("1.2 kWh", "kWh"),
        ("50 Wh", "Wh"),
        ("200 kcal", "kcal"),
        ("800 kJ", "kJ"),
        ("5000 MAH", "mAh"),
        ("7 Ah", "Ah"),
        ("230V", "V"),
        ("12 kV", "kV"),
        ("16 A", "A"),
        ("500 mA", "mA"),
        ("650 VA", "VA"),
        ("32 ohm", "Ω"),
        ("32 Ω", "Ω"),
        ("470 µF", "µF"),
        ("50 Hz", "Hz"),
        ("3.2 GHZ", "GHz"),
        ("35 psi", "psi"),
        ("8 bar", "bar"),
        ("30 kPa", "kPa"),
        ("60 Nm", "m·N"),
        ("45 ft-lb", "ft·lbf"),
        ("120 km/h", "km/h"),
        ("70 mph", "mph"),
        ("5 m/s", "m/s"),
        ("3000 RPM", "rpm"),
        ("60 cfm", "ft³/min"),
        ("300 m3/h", "m³/h"),
        ("16 GB", "GB"),
        ("2 TiB", "TiB"),
        ("100 Mbps", "Mbit/s"),
        ("100 Mb", "Mbit"),
        ("7 GB/s", "GB/s"),
        ("1200 dpi", "dpi"),
        ("326 ppi", "dpi"),
        ("1920 px", "pixel"),
        ("12 MP", "Mpixel"),
        ("90°", "deg"),
        ("45 degrees", "deg"),
        ("10 %", "%"),
        ("60 dB", "dB"),
        ("60 dB(A)", "dB"),
        ("800 lm", "lm"),
        ("300 nits", "nit"),
        ("500 cd/m2", "cd/m²"),
        ("100 lm/W", "lm/W"),
        ("22 kN", "kN"),
        ("150 PS", "PS"),
    ],
)
def test_units_of_trade_are_read_and_their_short_form_reads_back(text, unit):
    found = quantity(text)
    assert found is not None and found.unit == unit
    assert quantity(str(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        "2 pcs",
        "5G",
        "5 G",
        "4K",
        "4 K",
        "18K",
        "300 TC",
        "12 pk",
        "36 D",
        "40 S",
        "12 ct",
        "18 kt",
        "18 carat",
        "9 US",
        "9 us",
        "42 EU",
        "8 UK",
        "3D",
        "3 d",
        "2T",
        "2 T",
        "6 F",
        "32 B",
        "10 M",
        "5 C",
        "24 pt",
        "5 pm",
        "9 AM",
        "5 N",
        "12 pack",
        "3 pairs",
        "2 dozen",
        "60 fps",
        "20 ppm",
        "10 ch",
        "4 ply",
        "5 at",
        "2 tier",
        "1080p",
        "500 IU",
        "5 rad",
        "12345 K",
        "999 K",
        "5 parsec",
        "1 mol",
        "2 hands",
        "10 count",
    ],
)
def test_counts_sizes_generations_and_purities_are_no_quantities(text):
    assert quantity(text) is None


def test_the_table_of_units_has_the_names_that_pint_uses():
    assert all(list(_registry().parse_units(name)._units) == [name] for name in _PREFIXES)
    assert all(_unit(written) for written in _TRADE)


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
