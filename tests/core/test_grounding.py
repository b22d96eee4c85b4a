"""Values are found where they stand, as the document writes them, and nowhere else."""

from __future__ import annotations

import re
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpd_core.grounding import Edge, SourceText, Span
from hpd_core.normal import LINE_ENDS, comparable, is_one_line, strip

NFD = unicodedata.normalize("NFD", "Café Größe")


@pytest.mark.parametrize(
    "text, value, found",
    [
        ("Diesel shoe", "Diesel", "Diesel"),
        ("Diesel shoe", " diesel ", "Diesel"),
        ("one two", "three", None),
        ("one two", "", None),
        ("one two", " \u200b", None),
        ("T‑Shirt, Men’s", "T-Shirt", "T‑Shirt"),
        ("T‑Shirt, Men’s", "men's", "Men’s"),
        ("screen 15.6” wide", '15.6"', "15.6”"),
        ("10\u00a0×\u00a020 cm", "10 x 20 cm", "10\u00a0×\u00a020 cm"),
        ("dark \t\u00a0 blue", "Dark Blue", "dark \t\u00a0 blue"),
        ("STRASSE 5", "Straße", "STRASSE"),
        (NFD, "Café", unicodedata.normalize("NFD", "Café")),
        (NFD, "größe", unicodedata.normalize("NFD", "Größe")),
        ("Caf\u00e9", "Cafe", None),
        ("Cafe\u0301", "Cafe", None),
        ("ﬁne ﬂax", "fine flax", "ﬁne ﬂax"),
        ("ﬁne", "f", None),
        ("Leder\u00adschuh\u00ad, braun", "lederschuh", "Leder\u00adschuh"),
        ("ＳＯＮＹ ﾍｯﾄﾞﾎﾝ", "Sony ヘッドホン", "ＳＯＮＹ ﾍｯﾄﾞﾎﾝ"),
        ("삼성은 갤럭시", "삼성", "삼성"),
        (unicodedata.normalize("NFD", "각"), "가", None),
        ("กระเป๋าหนังสีดำ", "สีดำ", "สีดำ"),
        ("黒い革靴25cm", "革靴", "革靴"),
        ("جلد طبيعي", "طبيعي", "طبيعي"),
        ("👍🏽 ok", "👍🏽", "👍🏽"),
    ],
)
def test_what_is_found_and_as_what(text, value, found):
    span = SourceText(text).find(value)
    assert (span and span.of(text)) == found


@pytest.mark.parametrize(
    "text, value, start",
    [
        ("Hundred red shoes", "red", 8),
        ("Hundred Red shoes", "red", 8),  # another writing of the whole word before its own inside a word
        ("Hundred Reds", "red", None),
        ("Hundred pieces", "Red", None),
        ("Desk lamp", "S", None),
        ("Hundred shoes", "red shoe", None),
        ("Hundred shoes", "shoe", 8),
        ("LEDERSCHUHE", "schuh", 5),
        ("Leder\u00adschuhe", "leder", 0),
        ("Leder\u00ad5", "leder", None),
        ("Lammfelljacke", "fell", 4),
        ("Goldrand", "gol", None),
        ("Größentabelle", "größe", 0),
        ("Gro\u0308ßentabelle", "größe", 0),
        ("Gro\u0308ßentabelle", "größ", 0),
        ("ABCDE123", "ABCDE", None),
        ("ABCDE_x", "ABCDE", None),
        ("M12 screw", "12", None),
        ("15 mm", "15 m", None),
        ("15 inches", "15 inch", None),
        ("size 15.5", "5", None),
        ("size 15.5", "15", None),
        ("1,299.00", "1,299", None),
        ("running shoes", "running shoe", 0),
        ("Lederschuhe", "schuh", 5),
        ("Red and red", "red", 8),
        ("size 15, 5 pieces", "5", 9),
        ("size 15", "5", None),
        ("size 15.6, 6 pieces", "6", 11),
        ("sizes 38,39,40", "39", 9),
        ("from 1,299.00 on", "1,299.00", 5),
        ("from 1,299 on, 299 pieces", "299", 15),
        ("weights 15 kg", "5 kg", None),
        ("snake_case case", "case", 11),
    ],
)
def test_whole_words_come_first_and_numbers_are_not_cut(text, value, start):
    span = SourceText(text).find(value)
    assert (span.start if span else None) == start


@pytest.mark.parametrize(
    "text, edges",
    [
        ("a b", [2, 2, 2, 2]),
        ("ab", [2, 1, 2]),
        ("e\u0301a", [2, 0, 1, 2]),
        ("15", [2, 0, 2]),
        ("1.5", [2, 1, 1, 2]),
        ("1.", [2, 2, 2]),
        ("革a", [2, 2, 2]),
        ("a-b", [2, 2, 2, 2]),
    ],
)
def test_edges(text, edges):
    assert [SourceText(text).edge(i) for i in range(len(text) + 1)] == edges


SIGNS = "aAbß \n\u00a0\u00ad-‑’'.,15½é\u0301ﬁ革ก\u0e33가"
TEXT = st.text(st.sampled_from(SIGNS), max_size=14)


def best_by_trying_all(text: str, value: str) -> tuple[int, bool] | None:
    """Best (edge, is exact) over every span of `text` that is `value` in some form and may be cut out."""
    source, form = SourceText(text), comparable(value)
    found = [
        (min(source.edge(i), source.edge(j)), text[i:j] == value)
        for i in range(len(text))
        for j in range(i + 1, len(text) + 1)
        if text[i:j] == value or (text[i:j] == strip(text[i:j]) and comparable(text[i:j]) == form)
        if may_be_cut_out(text, i, j)
    ]
    return max((f for f in found if f[0] is not Edge.NONE), default=None)


def may_be_cut_out(text: str, start: int, end: int) -> bool:
    """The rule once more, by words: what has no width aside, letters on both sides of a cut, four of them inside."""
    source, bare = SourceText(text), re.compile("[\u00ad\u0301\u0e33]")
    before, piece, behind = (bare.sub("", part) for part in (text[:start], text[start:end], text[end:]))
    if len(text[start:end].splitlines()) > 1:
        return False
    cuts = [source.edge(start), source.edge(end)]
    if cuts == [Edge.WORD] * 2:
        return True
    letters = "[^\\W\\d_]"
    heads = cuts[0] is Edge.WORD or (before[-1:].isalpha() and re.match(letters + "{4}", piece))
    tails = cuts[1] is Edge.WORD or (behind[:1].isalpha() and re.search(letters + "{4}$", piece))
    return bool(heads and tails) and not re.search("[15½]", piece)


@given(TEXT, TEXT | st.tuples(st.integers(0, 14), st.integers(0, 14)))
def test_finds_what_trying_every_span_finds(text, value):
    value = strip(text[min(value) : max(value)] if isinstance(value, tuple) else value)
    span, source = SourceText(text).find(value), SourceText(text)
    expected = best_by_trying_all(text, value) if comparable(value) else None
    if span is None:
        assert expected is None
    else:
        assert (min(source.edge(span.start), source.edge(span.end)), span.of(text) == value) == expected
        assert comparable(span.of(text)) == comparable(value)


@given(st.text(max_size=60), st.data())
def test_every_whole_part_of_any_line_is_found(text, data):
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    part, source = text[start:end], SourceText(text)
    whole = source.edge(start) is Edge.WORD and source.edge(end) is Edge.WORD
    if part and part == strip(part) and comparable(part) and whole and is_one_line(part):
        span = source.find(part)
        assert span is not None and span.of(text) == part and span.start <= start


@pytest.mark.parametrize("end", [c for c in map(chr, range(sys.maxunicode + 1)) if len(f"a{c}b".splitlines()) == 2])
def test_no_value_crosses_the_end_of_a_line(end):
    assert end in LINE_ENDS and not is_one_line(f"a{end}")
    assert SourceText(f"big red{end}shoe").find("red shoe") is None
    assert SourceText(f"big red{end}shoe").find(f"red{end}shoe") is None
    assert SourceText(f"big red{end}shoe, red  shoe").find("red shoe") == Span(14, 23)


def test_all_ends_of_lines_are_those_of_python():
    assert all(len(f"a{end}b".splitlines()) == 2 for end in LINE_ENDS)


def test_a_span_reads_its_text():
    assert Span(1, 3).of("abcd") == "bc"


@pytest.mark.parametrize(
    ("text", "value", "span"),
    [
        ("Nike Air", "Nike", "Nike"),
        ("NIKE Nike", "Nike", "Nike"),
        ("NIKE air", "nike  AIR", "NIKE air"),
        ("incredible red", "red", "red"),
        ("incredible", "red", None),
        ("12oz", "12", "12"),
        ("112oz", "12", None),
        ("reddish", "red", None),
        ("12 125", "125", "125"),
        ("size 125", "12", None),
        ("size 4.5 (EU)", "4.5 (EU)", "4.5 (EU)"),
        ("新款红色鞋", "红色", "红色"),
        ("Air\nMax", "Air Max", None),
        ("straße", "STRASSE", "straße"),
        ("xa a a", "a a", "a a"),
        ("abc", " ", None),
    ],
)
def test_whole_words_on_one_line(text, value, span):
    found = SourceText(text).find_whole(value)
    assert (found.of(text) if found else None) == span
