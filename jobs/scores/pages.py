"""HTML pages for people: of runs a report, comparison, blind review, speed and cost, of a training its curves; each is
one file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from jobs.scores.errors import ErrorKind, SlotError, error_counts, examples

#: Examples shown per kind of error.
EXAMPLES = 10
#: Longest text of an example in characters.
_TEXT_LENGTH = 400
#: Longest label of a bar in characters.
_LABEL_LENGTH = 42
#: {kind: (name, meaning)}, in the order of the page.
KINDS = {
    ErrorKind.MISSED: ("missed", "The gold has a value and none was predicted."),
    ErrorKind.BOUNDARY: (
        "boundary",
        "Not a gold value, but it shares a word with one, or one lies inside the other (case aside).",
    ),
    ErrorKind.WRONG_ATTRIBUTE: (
        "wrong attribute",
        "Not a gold value of this attribute, but one of another attribute of the same row.",
    ),
    ErrorKind.WRONG_VALUE: ("wrong value", "Any other value than the gold."),
    ErrorKind.INVENTED_ABSENT: ("invented, absent", "A value where the gold says that the product has none."),
    ErrorKind.INVENTED_UNNAMED: (
        "invented, not named",
        "A value for an attribute that the row's gold does not name. Strict F1 counts it, F1 does not.",
    ),
}


def report_page(facts: Mapping[str, Any], errors: Sequence[SlotError], heading: str) -> str:
    """The report of one run. facts: the content of its scores.json; errors: all of them."""
    counts = error_counts(errors)
    groups = [
        {"name": name, "meaning": meaning, "count": counts[kind], "examples": examples(errors, kind, EXAMPLES)}
        for kind, (name, meaning) in KINDS.items()
    ]
    return _page(
        "report.html.j2",
        heading=heading,
        facts=facts,
        settings=settings(facts),
        attributes=_by_category(facts["by_attribute"]),
        errors=groups,
        confidence=confidence(facts),
    )


def comparison_page(facts: Mapping[str, Any], heading: str) -> str:
    """Several runs side by side. facts: the content of comparison.json."""
    kinds = [{"value": kind.value, "name": name, "meaning": meaning} for kind, (name, meaning) in KINDS.items()]
    attributes = _by_category(facts["by_attribute"])
    return _page("comparison.html.j2", heading=heading, facts=facts, attributes=attributes, errors=kinds)


def review_page(content: Mapping[str, Any], heading: str) -> str:
    """A blind comparison. content: {"id", "questions"}, all that the page's script gets to know."""
    return _page("review.html.j2", heading=heading, content=content)


def confidence(facts: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """{how values were judged: figures}, see reliability.trust; empty where the run has none."""
    found = facts.get("confidence") or {}
    names = {"strict": "strict", "named": "where the gold names the attribute"}
    return {name: found[key] for key, name in names.items() if found.get(key)}


def benchmark_page(facts: Mapping[str, Any], charts: Sequence[Any], labels: int, line: int) -> str:
    """Speed of engines. facts: the content of benchmark.json; charts, labels, line: see jobs/timing/plot.py."""
    return _page("benchmark.html.j2", facts=facts, charts=charts, labels=labels, line=line)


def cost_page(heading: str, chapters: Sequence[Any], size: tuple[int, int, int, int, int]) -> str:
    """What documents cost. chapters: of jobs/costs/told.py; size: WIDTH, PITCH, AREA_WIDTH, AREA_HEIGHT, LEFT of
    jobs/costs/drawing.py."""
    return _page("costs.html.j2", heading=heading, chapters=chapters, size=size)


def training_page(facts: Mapping[str, str], drawing: Any, size: tuple[int, int, int], heading: str) -> str:
    """The curves of a training. drawing: a jobs.training.curve.Drawing; size: width, height, left of its panels."""
    return _page("training.html.j2", heading=heading, facts=facts, drawing=drawing, size=size)


def settings(facts: Mapping[str, Any]) -> dict[str, str]:
    """What tells one run from another, out of its scores.json."""
    run = facts.get("run", {})
    decoding, confidence = run.get("settings", {}), run.get("confidence") or {}
    found = {
        "decoder": run.get("decoder"),
        "model": run.get("name"),
        "layout": decoding.get("layout"),
        "visibility": decoding.get("visibility"),
        "longest value": decoding.get("max_value_tokens"),
        "grounding": decoding.get("grounding"),
        "closed values": decoding.get("closed_values"),
        "calibrated": "yes" if confidence.get("calibration") else None,
        "threshold": confidence.get("threshold"),
        "weights": run.get("model", {}).get("source"),
        "adapter": run.get("model", {}).get("adapter"),
        "schemas": ", ".join(run.get("schemas", ())),
    }
    return {name: str(value) for name, value in found.items() if value}


def clipped(text: str) -> str:
    """A label that fits beside a bar."""
    return text if len(text) <= _LABEL_LENGTH else text[: _LABEL_LENGTH - 1] + "…"


def shortened(text: str) -> str:
    return text if len(text) <= _TEXT_LENGTH else text[: _TEXT_LENGTH - 1] + "…"


def write_page(path: Path, page: str) -> None:
    # Half of a surrogate pair, which JSON can hold and UTF-8 cannot, is no reason to show nothing.
    path.write_text(page, encoding="utf-8", errors="replace", newline="\n")


def _by_category(parts: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for part in parts:
        found.setdefault(part["category"], []).append(part)
    return found


def _page(template: str, **content: Any) -> str:
    # Values come from products and from models: everything is escaped, and a name that does not exist is an error.
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("jobs", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["shortened"] = shortened
    environment.filters["zip"] = zip
    environment.filters["clipped"] = clipped
    return environment.get_template(template).render(**content)
