from __future__ import annotations

import pytest

from jobs.summary import _shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("red", "red"),
        (["red", "blue"], "red; blue"),
        ({"value": 1.5, "unit": "kg"}, "1.5 kg"),
        ([{"value": 1.0, "unit": "cm"}, {"value": 2.0, "unit": "cm"}], "1 cm; 2 cm"),
    ],
)
def test_values_of_output_columns_are_shown_as_people_read_them(value: object, text: str) -> None:
    assert _shown(value) == text
