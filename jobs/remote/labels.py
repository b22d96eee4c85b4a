"""One product -> the question for its labels -> the answer as labels that stand in the text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from hpd_core.grounding import SourceText
from hpd_core.normal import is_null
from hpd_core.reading import ValueStatus, typed_value
from hpd_core.schema import Attribute, Document, Schema, ValueType
from jobs.remote.asking import AnswerError, Question, check_keys, json_object
from jobs.remote.prompts import rendered
from jobs.scores.dataset import ABSENT


class Kept(StrEnum):
    """What became of one attribute of an answer."""

    #: A span of the text, or one of the closed values.
    VALUE = "values"
    #: A span once case and the width of blanks are aside; the label is the text's own spelling.
    RESPELLED = "respelled"
    ABSENT = "absent"
    #: It stands nowhere in the text.
    UNGROUNDED = "ungrounded"
    #: Not of the declared type, or not one of the closed values.
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Label:
    """One attribute of one product. said: the model's value, None for absent. value: the label, None for none."""

    attribute: str
    kept: Kept
    said: str | None
    value: str | None


def label_question(document: Document) -> Question:
    """What is asked about a product. The schema stands first: an endpoint that caches prefixes computes it once."""
    schema = document.schema
    names = json.dumps([attribute.name for attribute in schema], ensure_ascii=False)
    system = rendered("label.txt.j2", schema=schema, names=names)
    return Question(system, document.text, answer_shape(schema), lambda text: labels_of(document, text))


def answer_shape(schema: Schema) -> dict[str, Any]:
    """JSON schema of an answer: every attribute of `schema`, a text or null."""
    return {
        "type": "object",
        "properties": {attribute.name: _value_shape(attribute) for attribute in schema},
        "required": [attribute.name for attribute in schema],
        "additionalProperties": False,
    }


def labels_of(document: Document, text: str) -> list[Label]:
    """The labels of a product, one per attribute of its schema, out of a model's answer. Raises AnswerError."""
    found = json_object(text)
    check_keys(found, [attribute.name for attribute in document.schema])
    said = {name: _text(name, value) for name, value in found.items()}
    return [_label(attribute, document.text, said[attribute.name]) for attribute in document.schema]


def benchmark_line(text: str, category: str, labels: list[Label]) -> dict[str, Any]:
    """A row of a benchmark file. An attribute whose value was dropped is not named, and stands under `dropped`."""
    scores: dict[str, Mapping[str, int]] = {}
    dropped = {}
    for label in labels:
        if label.kept in (Kept.UNGROUNDED, Kept.INVALID):
            dropped[label.attribute] = {"value": label.said, "reason": label.kept.value}
        else:
            scores[label.attribute] = {ABSENT if label.value is None else label.value: 1}
    line: dict[str, Any] = {"input": text, "category": category, "target_scores": scores}
    return line | ({"dropped": dropped} if dropped else {})


def _label(attribute: Attribute, text: str, said: str | None) -> Label:
    if said is None or _means_absent(attribute, said):
        return Label(attribute.name, Kept.ABSENT, said, None)
    if attribute.values or attribute.type is ValueType.BOOLEAN:  # a judgement about the text, not a piece of it
        value, status = typed_value(attribute, said)
        if status is not ValueStatus.EXTRACTED:
            return Label(attribute.name, Kept.INVALID, said, None)
        return Label(attribute.name, Kept.VALUE, said, str(value) if attribute.values else said.strip())
    place = SourceText(text).find_whole(said)
    if place is None:
        return Label(attribute.name, Kept.UNGROUNDED, said, None)
    span = place.of(text)
    if typed_value(attribute, span)[1] is not ValueStatus.EXTRACTED:
        return Label(attribute.name, Kept.INVALID, said, None)
    return Label(attribute.name, Kept.VALUE if span == said.strip() else Kept.RESPELLED, said, span)


def _means_absent(attribute: Attribute, said: str) -> bool:
    return is_null(said) and said.strip().casefold() not in {value.casefold() for value in attribute.values}


def _text(name: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        # Half a surrogate pair is no character, and no file of UTF-8 can hold it.
        return value if value is None else value.encode("utf-8", "replace").decode()
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise AnswerError(f"the value of {name!r} is neither a text nor null")


def _value_shape(attribute: Attribute) -> dict[str, Any]:
    if attribute.values:
        return {"type": ["string", "null"], "enum": [*attribute.values, None]}
    return {"type": ["string", "null"]}
