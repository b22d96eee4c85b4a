"""Columns -> text: HTML, lists, structs, JSON, and everything a row may hold instead."""

from __future__ import annotations

import datetime as dt
import pickle

import pytest
from jinja2.exceptions import SecurityError

from pipeline.text import TemplateError, TextTemplate, html_text


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>Hello <b>bold</b>ly</p><ul><li>A &amp; B</li><li>C<br>D</li></ul>", "Hello boldly|A & B|C|D"),
        ("<table><tr><td>Roast</td><td>dark</td></tr></table>", "Roast dark"),
        ("<script>alert(1)</script><style>p{}</style><!-- no -->yes", "yes"),
        ("Impedance: 80&nbsp;&Omega;", "Impedance: 80 Ω"),
        ("5 < 7 and a<b", "5 < 7 and a<b"),
        ("AT&T, R&D; rock & roll", "AT&T, R&D; rock & roll"),
        ("<p></p>", ""),
    ],
)
def test_html_becomes_the_text_a_person_sees(html: str, text: str) -> None:
    assert TextTemplate("{{ x | html }}").render({"x": html}).replace("\n", "|") == text


def test_text_without_markup_is_not_touched() -> None:
    assert html_text("  a  \n b ") == "  a  \n b "


@pytest.mark.parametrize(
    ("template", "row", "text"),
    [
        ("{{ a }}\n{{ b }}", {"a": None, "b": "  two   blanks "}, "two blanks"),
        ("{{ a | lines }}", {"a": ["one", None, " ", "<b>two</b>"]}, "- one\n- two"),
        ("{{ a | lines }}", {"a": None}, ""),
        ("{{ a }}", {"a": ["one", None, "two"]}, "one\ntwo"),
        ("{{ a }}", {"a": {"k": "v", "n": None, "m": 2}}, "k: v\nm: 2"),
        ("{{ a.brand }}", {"a": {"brand": "Fila"}}, "Fila"),
        ("{{ a.brand }}", {"a": None}, ""),
        ("{{ a.b.c.d }}", {"a": {"b": None}}, ""),
        ("{{ a.items }}/{{ a.values }}", {"a": {"items": 3, "values": "x"}}, "3/x"),
        ("{{ (a | json).Color }}", {"a": '{"Color": "red"}'}, "red"),
        ("{{ (a | json).Color }}!", {"a": "not json"}, "!"),
        (
            "{% for e in a | json or [] %}{{ e.key }}={{ e.value }}\n{% endfor %}",
            {"a": '[{"key": "k", "value": 1}]'},
            "k=1",
        ),
        ("{{ row['Product name'] }}", {"Product name": "Mug"}, "Mug"),
        ("{{ range }}", {"range": "a column, not a function"}, "a column, not a function"),
        ("{{ a }}", {"a": float("nan")}, ""),
        (
            "{{ a }} {{ b }} {{ c }}",
            {"a": 9007199254740993, "b": True, "c": dt.date(2026, 1, 2)},
            "9007199254740993 True 2026-01-02",
        ),
        ("{{ a }}", {"a": "line\u2028separator\x0bx"}, "line\nseparator\nx"),
        ("{{ (a | json) }}", {"a": '"half \\ud83d pair"'}, "half ? pair"),
        ("{% if a.b %}By {{ a.b }}{% endif %}", {"a": {"b": None}}, ""),
    ],
)
def test_rendering(template: str, row: dict[str, object], text: str) -> None:
    assert TextTemplate(template).render(row) == text


def test_fields_are_the_paths_a_template_reads_in_its_order() -> None:
    template = TextTemplate(
        "{{ title }}{% for b in bullets %}{{ b.x }}{% endfor %}{{ details.brand }}{{ row['A b'].c }}{{ title | html }}"
    )
    assert template.fields == (("title",), ("bullets",), ("details", "brand"), ("A b", "c"))
    assert template.columns == ("title", "bullets", "details", "A b")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ title", "unexpected end of template"),
        ("{{ title | nope }}", "No filter named 'nope'"),
        ("no column at all", "names no column"),
        ("{% for c in row %}{{ c }}{% endfor %}", "'row' must be used with the name of a column"),
    ],
)
def test_a_template_that_cannot_work_is_refused(source: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        TextTemplate(source)


def test_a_template_cannot_leave_its_sandbox() -> None:
    assert TextTemplate("{{ a.__class__.__mro__ }}").render({"a": "x"}) == ""
    with pytest.raises(SecurityError):
        TextTemplate("{{ a.__class__.mro() }}").render({"a": "x"})


@pytest.mark.parametrize(
    "source", ["{{ title * 100000000 }}", "{{ title }}{{ 10 ** 100000000 }}", "{{ [title] * 100000000 }}"]
)
def test_a_template_cannot_take_the_machine_s_memory(source: str) -> None:
    with pytest.raises(SecurityError, match="may only multiply numbers"):
        TextTemplate(source).render({"title": "x"})
    assert TextTemplate("{{ grams * 2.5 }}").render({"grams": 2}) == "5.0"


def test_a_template_travels_between_processes() -> None:
    template = pickle.loads(pickle.dumps(TextTemplate("{{ a | lines }}")))
    assert template.render({"a": ["x"]}) == "- x"
