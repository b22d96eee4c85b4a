"""What is written for a value is read back as that value."""

from __future__ import annotations

import pytest

from hpd_core.rows import ValueStatus, typed_value
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
        (Attribute("A", values=("Navy", "None")), "navy", "Navy"),
        (Attribute("A", values=("Navy", "None")), "none", "None"),
        (Attribute("A", values=("1.50", "2.0"), type=NUMBER), 2.0, "2.0"),
        (Attribute("A", values=("True", "False"), type=BOOLEAN), False, "False"),
    ],
)
def test_written_text_reads_back(attribute: Attribute, value: str | float, text: str) -> None:
    assert written(attribute, value) == text
    read, status = typed_value(attribute, text)
    assert status is ValueStatus.EXTRACTED
    assert read == (text if isinstance(value, str) else value)
