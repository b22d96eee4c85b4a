"""Numbers and quantities as catalogs write them: "1.299,00", "1 299", "½", "1 1/2 in", "1,5 kg", "15.6-inch".

A text is a number whole or not at all: "about 3", "10-20 cm" and "10 x 20 cm" are none.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, lru_cache
from math import isfinite
from typing import Any

from hpd_core.normal import strip

_BLANKS = "[ \u00a0\u2009\u202f]"
_SIGNED = re.compile(rf"([+\-−]?){_BLANKS}?(.+)")
_DECIMAL = re.compile(r"\d+|\d+\.|\d*\.\d+")
_GROUPED = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+")
#: Grouping that is never a decimal sign: blanks, and the apostrophe of Switzerland.
_OTHER_GROUPS = re.compile(rf"\d{{1,3}}(?:(?:{_BLANKS}|['’])\d{{3}})+(?=[.,]|$)")
#: Parts of an inch and kitchen measures. "24/7" and "16/9" are no numbers.
_FRACTION = re.compile(rf"(?:(\d+){_BLANKS}+)?(\d{{1,2}}){_BLANKS}?[/⁄]{_BLANKS}?(2|3|4|5|6|8|16|32|64)")
_VULGAR = re.compile(rf"(\d*){_BLANKS}?([¼½¾⅐-⅞])")
_ARABIC = str.maketrans("٫٬", ".,")
_QUANTITY = re.compile(rf"([+\-−]?(?:[\d.,'’/⁄¼½¾⅐-⅞٫٬]|{_BLANKS})*[\d¼½¾⅐-⅞])[-‐‑\s]?\s*(\D.*)")

#: What a unit's text may be made of: pint evaluates expressions, and this keeps them small.
_UNIT = re.compile(r"[^\W\d_]+\.?|°[CF]?|%|[^\W\d_]+[²³]|[^\W\d_]+\^?[23]?(?:[/·*][^\W\d_]+[²³]?(?:\^?[23])?)?")
_POWER = re.compile(r"(?<=[^\W\d_])\^?([23])(?!\d)")
#: Units that trade uses, by pint's name, with the prefixes that they have there. pint knows far more, and would read
#: "2 pcs" as parsecs, "18K" as a temperature, "12 ct" as carats and "5 pm" as picometres.
_PREFIXES = {
    "meter": "kilo deci centi milli micro nano", "gram": "kilo milli micro", "liter": "hecto deci centi milli micro",
    "second": "milli micro nano", "watt": "giga mega kilo milli", "watt_hour": "mega kilo milli",
    "volt": "kilo milli", "volt_ampere": "kilo", "ampere": "kilo milli micro", "ampere_hour": "milli",
    "hertz": "kilo mega giga", "joule": "kilo mega", "calorie": "kilo", "pascal": "hecto kilo mega", "bar": "milli",
    "newton": "kilo", "ohm": "kilo mega", "farad": "milli micro nano pico", "lux": "kilo", "pixel": "mega giga",
    "bit": "kilo mega giga tera", "byte": "kilo mega giga tera peta kibi mebi gibi tebi",
    # length, area, volume
    "micron": "", "inch": "", "foot": "", "yard": "", "mile": "", "thou": "", "mil": "", "hectare": "", "acre": "",
    "square_foot": "", "cubic_centimeter": "", "fluid_ounce": "", "pint": "", "quart": "", "gallon": "", "cup": "",
    "tablespoon": "", "teaspoon": "",
    # mass, also of cloth and thread
    "ounce": "", "pound": "", "stone": "", "ton": "", "metric_ton": "", "denier": "",
    "minute": "", "hour": "", "day": "", "week": "", "month": "", "year": "",
    "degree_Celsius": "", "degree_Fahrenheit": "", "kelvin": "", "degree": "", "percent": "",
    # power, energy, pressure, torque, turns, speed and flow
    "horsepower": "", "metric_horsepower": "", "british_thermal_unit": "", "force_pound": "",
    "pound_force_per_square_inch": "", "standard_atmosphere": "", "millimeter_Hg": "", "revolutions_per_minute": "",
    "mile_per_hour": "", "kilometer_per_hour": "", "knot": "",
    # light, sound, pictures
    "lumen": "", "candela": "", "nit": "", "decibel": "", "pixels_per_inch": "",
}  # fmt: skip
_SI = frozenset(prefix for prefixes in _PREFIXES.values() for prefix in prefixes.split())
#: Letters that are a unit alone. Others are sizes, generations, purities and doors: "40 S", "5G", "18K", "36 D".
_LETTERS = frozenset("mghlstVvWwALΩ\u2126µμ")
#: More than one thing in trade: karats and knots, points and pints, counts and carats, American sizes and microseconds.
_AMBIGUOUS = frozenset({"kt", "pt", "ct", "us", "MS", "NS"})
#: pint's short forms that do not mean the unit in trade.
_SHORT = {
    "a": "year",
    "d": "day",
    "dots_per_inch": "dpi",
    "pt": "pint",
    "K": "kelvin",
    "µ": "µm",
    "metric_horsepower": "PS",
}
#: Units as traders write them, which pint does not know or takes for another ("MM" is a megamolar, "dpi" a dry pint).
_TRADE = {
    '"': "inch", "”": "inch", "″": "inch", "''": "inch", "zoll": "inch", "in.": "inch", "inches": "inch",
    "'": "foot", "’": "foot", "′": "foot", "fl oz": "fluid_ounce", "fl. oz.": "fluid_ounce", "fl. oz": "fluid_ounce",
    "sq ft": "foot**2", "sq. ft.": "foot**2", "sqm": "meter**2", "qm": "meter**2", "ccm": "centimeter**3",
    "MM": "millimeter", "CM": "centimeter", "ML": "milliliter", "MG": "milligram", "gm": "gram", "gms": "gram",
    "gr": "gram", "gramm": "gram", "stunden": "hour", "std.": "hour", "minuten": "minute", "hrs": "hour", "hr": "hour",
    "Nm": "newton*meter", "MP": "megapixel", "dpi": "dots_per_inch", "Mbps": "megabit/second",
    "mbps": "megabit/second", "Gbps": "gigabit/second", "gsm": "gram/meter**2", "kb": "kilobyte", "mb": "megabyte",
    "KB": "kilobyte", "gb": "gigabyte", "tb": "terabyte", "mah": "milliampere_hour", "wh": "watt*hour", "hz": "hertz",
    "khz": "kilohertz", "mhz": "megahertz", "ghz": "gigahertz", "kw": "kilowatt", "kwh": "kilowatt_hour",
    "db": "decibel", "dba": "decibel", "db(a)": "decibel", "w": "watt", "v": "volt", "ma": "milliampere",
    "° c": "degree_Celsius", "° f": "degree_Fahrenheit", "degrees celsius": "degree_Celsius",
    "degrees fahrenheit": "degree_Fahrenheit", "sqft": "foot**2", "sq m": "meter**2", "sq in": "inch**2",
    "sq. in.": "inch**2", "cu ft": "foot**3", "cu. ft.": "foot**3", "cu in": "inch**3", "ft-lb": "foot*force_pound",
    "ft-lbs": "foot*force_pound", "ft lb": "foot*force_pound", "ft lbs": "foot*force_pound",
    "lb-ft": "foot*force_pound", "lb ft": "foot*force_pound", "in-lb": "inch*force_pound",
    "in-lbs": "inch*force_pound", "mins": "minute", "secs": "second", "yr": "year", "yrs": "year", "mtr": "meter",
    "ppi": "dots_per_inch",
    "px": "pixel", "Mb": "megabit", "Gb": "gigabit", "PS": "metric_horsepower",
    "kgs": "kilogram", "cfm": "foot**3/minute", "pulgadas": "inch", "pouces": "inch", "ltr": "liter", "ltrs": "liter",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with its unit, as pint abbreviates it: "cm" for "centimeters", "CM" and "centimetre"."""

    value: float
    unit: str

    def __str__(self) -> str:
        return f"{self.value:g} {self.unit}"


def number(text: str, *, whole: bool = False) -> Decimal | None:
    """The number that `text` is, exactly; None where it is none.

    A sign before three last digits is read as English does where it could be either: "1,299" has thousands, "1.299" a
    fraction, unless a `whole` number is wanted, to which both are thousands. With both signs the last one is the
    decimal sign. Fractions are kept small: those of rulers and kitchens.
    """
    match = _SIGNED.fullmatch(strip(text).translate(_ARABIC))
    if not match:
        return None
    sign, body = match.groups()
    value = _fraction(body)
    if value is None:
        value = _decimal(_OTHER_GROUPS.sub(lambda m: re.sub(r"\D", "", m.group()), body), whole)
    if value is None or (whole and value != value.to_integral_value()):
        return None
    return -value if sign in ("-", "−") and sign else value


def quantity(text: str) -> Quantity | None:
    """The number with a unit of trade that `text` is; None where it is none.

    Without a unit it says nothing of how much. "K" is the colour of light behind four digits, and else no unit.
    """
    match = _QUANTITY.fullmatch(strip(text))
    value = number(match.group(1)) if match else None
    if not match or value is None or not isfinite(float(value)):
        return None
    written = strip(match.group(2))
    unit = "kelvin" if written == "K" and 1000 <= value < 10_000 else _unit(written)
    if unit == "kelvin" and 1000 <= value < 10_000:
        unit = "K"
    return Quantity(float(value), unit) if unit else None


def _fraction(body: str) -> Decimal | None:
    if match := _FRACTION.fullmatch(body):
        count, over, under = (int(g or 0) for g in match.groups())
        return count + Decimal(over) / under if over < under else None
    if match := _VULGAR.fullmatch(body):
        top, _, bottom = unicodedata.normalize("NFKD", match.group(2)).partition("⁄")
        return int(match.group(1) or 0) + Decimal(top) / Decimal(bottom) if bottom else None
    return None


def _decimal(body: str, whole: bool) -> Decimal | None:
    point, comma = body.rfind("."), body.rfind(",")
    if comma > point >= 0 or (comma < 0 and (body.count(".") > 1 or (whole and point >= 0))):
        # "1.299,00", "1.299.000", and "1.299" where no fraction can be meant
        grouped = body.translate(str.maketrans(".,", ",."))
    else:
        grouped = body
    head, dot, tail = grouped.partition(".")
    if _GROUPED.fullmatch(head) and (tail.isdecimal() or not dot):
        return Decimal(head.replace(",", "") + dot + tail)
    if re.fullmatch(r"\d*,\d+", body):
        body = body.replace(",", ".")  # a decimal comma
    return Decimal(body) if _DECIMAL.fullmatch(body) else None


@lru_cache(maxsize=1024)
def _unit(text: str) -> str | None:
    for written in (text, text.lower()):
        if written in _AMBIGUOUS or (len(text) == 1 and text.isalpha() and text not in _LETTERS):
            return None
        if written not in _TRADE and not _UNIT.fullmatch(written):
            continue
        expression = _TRADE.get(written) or _POWER.sub(r"**\1", written.rstrip(".").replace("·", "*"))
        try:
            unit = _registry().parse_units(expression)
        except Exception:  # pint raises what its parser stumbles over, from AttributeError to TokenError
            continue
        if len(unit._units) and all(map(_is_traded, unit._units)):
            short = f"{unit:~P}"
            return _SHORT.get(short, short)
    return None


def _is_traded(unit: str) -> bool:
    """unit: as pint names it, "kilogram"."""
    if unit in _PREFIXES:
        return True
    return any(unit.removeprefix(p) in _PREFIXES and p in _PREFIXES[unit.removeprefix(p)].split() for p in _SI)


@cache
def _registry() -> Any:
    import pint  # half a second, and only catalogs with quantities need it

    return pint.UnitRegistry()
