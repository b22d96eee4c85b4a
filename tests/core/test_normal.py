from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpd_core.normal import NormalText, clusters, comparable, is_null, unquote
from hpd_core.reading import ValueStatus, typed_value
from hpd_core.schema import Attribute

OPEN = Attribute("Name")

#: Letters of several scripts with what makes trouble: marks, ligatures, jamo, blanks of all kinds, nothing-wide ones.
_SIGNS = "aeR ﬁßİ\u0301\u0308é½²™ \t\n\u00a0\u3000\u200b\u00ad’“—×한가각\u1100\u1161\u11a8ไทยกำ日本ﷺ👍\u200d🏽"
TROUBLE = st.text(st.sampled_from(_SIGNS))
ANY = st.text() | TROUBLE


@pytest.mark.parametrize(
    "text",
    ["n/a", "N/A", " n/a ", '"n/a"', '"n/a".', "None", "null", "NULL.", "not specified", "", "  ", "''",
     "Not\u00a0 Specified", "\u200bn/a", "“none”", "Ｎ／Ａ", "—", "-", "Unknown ."],
)  # fmt: skip
def test_null_markers(text):
    assert is_null(text)
    assert typed_value(OPEN, text) == (None, ValueStatus.ABSENT)


@pytest.mark.parametrize(
    "text",
    ["Nullarbor", "None Black", "N/A-500", "Nathan", "NA 12", "Unknown Pleasures", "0", "Nonee", "Nan", "-5", "No"],
)
def test_values_that_look_like_null_markers_survive(text):
    assert typed_value(OPEN, text) == (text, ValueStatus.EXTRACTED)


@pytest.mark.parametrize(
    "text, expected",
    [
        ('"Diesel"', "Diesel"),
        (' "a" and "b" ', '"a" and "b"'),
        ('17" screen', '17" screen'),
        ('5"', '5"'),
        ("«Лён»", "Лён"),
        ("„Hummel“", "Hummel"),
        ("「雪」", "雪"),
        ("\u00a0\u200b red\ufeff ", "red"),
        ('"', '"'),
        ("rock 'n'", "rock 'n'"),
    ],
)
def test_only_blanks_and_quotes_around_the_whole_come_off(text, expected):
    assert unquote(text) == expected


@pytest.mark.parametrize(
    "one, other",
    [
        ("Café", unicodedata.normalize("NFD", "CAFÉ")),
        ("Straße", "STRASSE"),
        ("ﬁne", "FINE"),
        ("ＢＯＳＣＨ", "Bosch"),
        ("T‑Shirt", "t-shirt"),
        ("Men’s", "men's"),
        ("15.6”", '15.6"'),
        ("10\u00a0×\u202f20", "10 x 20"),
        ("Leder\u00adschuh", "Lederschuh"),
        ("가방", unicodedata.normalize("NFD", "가방")),
        ("ｶﾞﾗｽ", "ガラス"),
    ],
)
def test_ways_to_write_one_thing(one, other):
    assert comparable(one) == comparable(other)


@pytest.mark.parametrize("one, other", [("resume", "résumé"), ("5 cm", "5cm"), ("각", "가"), ("o", "ö")])
def test_different_things_stay_different(one, other):
    assert comparable(one) != comparable(other)


@given(ANY)
def test_clusters_cover_the_text(text):
    pieces = list(clusters(text))
    assert "".join(text[a:b] for a, b in pieces) == text
    assert all(a < b for a, b in pieces)


@given(ANY)
def test_offsets_lead_back_to_what_gives_the_same_form(text):
    """Every stretch of the form between cluster edges is the form of the original's stretch that it points to."""
    normal = NormalText.of(text)
    assert len(normal.text) == len(normal.starts) == len(normal.ends)
    size = len(normal.text)
    for start in range(0, size, 1 + size // 8):
        for end in range(start + 1, min(size, start + 8) + 1):
            span = normal.span(start, end)
            if span is not None:
                assert NormalText.of(text[slice(*span)]).text.lstrip() == normal.text[start:end].lstrip()


@given(ANY)
def test_normalisation_does_not_depend_on_the_unicode_form(text):
    assert comparable(unicodedata.normalize("NFC", text)) == comparable(unicodedata.normalize("NFD", text))


def test_a_cluster_is_never_cut():
    normal = NormalText.of("e\u0301ﬁ")
    assert normal.text == "e\u0301fi"
    assert normal.span(0, 1) is None and normal.span(0, 2) == (0, 2)
    assert normal.span(2, 3) is None and normal.span(2, 4) == (2, 3)
