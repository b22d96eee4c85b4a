"""One product -> the question for its labels, and the answer to it as labels."""

from __future__ import annotations

import json
from typing import Any

from hpd_core.schema import SEPARATOR, Attribute, Document, Schema, ValueType
from jobs.labels.label import Label, WholeWords, label_of
from jobs.remote.asking import AnswerError, Question, check_keys, json_object
from jobs.remote.prompts import rendered

#: What the model is told of a type.
_TYPES = {
    ValueType.INTEGER: "a whole number",
    ValueType.NUMBER: "a number",
    ValueType.BOOLEAN: "yes or no",
    ValueType.QUANTITY: "a number with its unit",
    ValueType.DATE: "a date",
}


def label_question(document: Document) -> Question:
    """What is asked about a product. The schema stands first: an endpoint that caches prefixes computes it once."""
    schema = document.schema
    names = json.dumps([attribute.name for attribute in schema], ensure_ascii=False)
    system = rendered("label.txt.j2", schema=schema, names=names, types=_TYPES, separator=SEPARATOR)
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
    source = WholeWords(document.text)
    return [label_of(attribute, source, said[attribute.name]) for attribute in document.schema]


def _text(name: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        # Half a surrogate pair is no character, and no file of UTF-8 can hold it.
        return value if value is None else value.encode("utf-8", "replace").decode()
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise AnswerError(f"the value of {name!r} is neither a text nor null")


def _value_shape(attribute: Attribute) -> dict[str, Any]:
    if attribute.values and not attribute.many:
        return {"type": ["string", "null"], "enum": [*attribute.values, None]}
    return {"type": ["string", "null"]}
