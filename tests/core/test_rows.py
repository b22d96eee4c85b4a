from __future__ import annotations

import pytest

from hpd_core.rows import Counts, Row, RowStatus, ValueStatus, typed_value
from hpd_core.schema import Attribute, Schema, ValueType

OPEN = Attribute("Name")


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


def test_a_row_with_a_value_missing_is_refused():
    with pytest.raises(ValueError, match="0 values for the 1 attributes"):
        Row(Schema("s", (OPEN,)), RowStatus.OK)


def test_counts_merge():
    total = Counts(steps=1, prefill_seconds=0.5)
    total += Counts(steps=2, prefill_seconds=0.25, documents=3)
    assert (total.steps, total.prefill_seconds, total.documents) == (3, 0.75, 3)
    assert set(total.as_dict()) >= {"model_calls", "cached_tokens"}
