from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpd_core.dates import parse_date


@pytest.mark.parametrize(
    "text",
    ["2024-03-25", "2024-03-25T10:30:00Z", "25.03.2024", "03/25/2024", "25/03/2024", "25 March 2024", "Mar 25, 2024",
     "Monday, March 25th, 2024", "20240325", "2024/03/25"],
)  # fmt: skip
def test_dates(text):
    assert parse_date(text) == date(2024, 3, 25)


def test_iso_is_never_read_day_first():
    assert parse_date("2024-03-04") == date(2024, 3, 4)
    assert parse_date("04.04.2024") == date(2024, 4, 4)


@pytest.mark.parametrize(
    "text",
    ["", "03/04/2024", "March 2024", "2024", "25 March", "25.03.24", "tomorrow", "Monday", "2024-02-30", "2024-13-01",
     "about 25 March 2024", "101112", "25. März 2024", "12", "2024-03-25-2025-03-25",
     "2024-03-25 2025-03-25", "2024-03-04 sale"],
)  # fmt: skip
def test_what_is_no_whole_or_no_single_date(text):
    assert parse_date(text) is None


@given(st.dates(), st.sampled_from(["%Y-%m-%d", "%d %B %Y", "%b %d, %Y", "%A, %d %b %Y"]))
def test_every_date_in_every_clear_form(day, form):
    text = day.strftime(form) if day.year >= 1000 else day.isoformat()
    assert parse_date(text) == day


@given(st.text(max_size=10), st.text("0123456789 /.-:TZ+march", max_size=12))
def test_nothing_raises(some, other):
    parse_date(f"{some}2024{other}")
