"""One product -> the question for its labels -> the answer as labels that stand in the text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from hpd_core.grounding import SourceText, Span
from hpd_core.normal import unquote
from hpd_core.reading import Reading, ValueStatus, is_copied, read
from hpd_core.schema import SEPARATOR, Attribute, Document, Schema, ValueType
from hpd_core.writing import written
from jobs.remote.asking import AnswerError, Question, check_keys, json_object
from jobs.remote.prompts import rendered
from jobs.scores.dataset import ABSENT

#: What the model is told of a type.
_TYPES = {
    ValueType.INTEGER: "a whole number",
    ValueType.NUMBER: "a number",
    ValueType.BOOLEAN: "yes or no",
    ValueType.QUANTITY: "a number with its unit",
    ValueType.DATE: "a date",
}


class Kept(StrEnum):
    """What became of one attribute of an answer. The last three are named as `ValueStatus` names them.

    Of several values one that is ungrounded or invalid makes all of them so.
    """

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
    """One attribute of one product. said: the model's value, None for absent. value: the label, None for none.

    A label is what `written` makes of the value: a span keeps the text's own spelling, a closed value the list's, and a
    boolean is "yes" or "no", so that one fact has one spelling.
    """

    attribute: str
    kept: Kept
    said: str | None
    value: str | None


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
    source = _WholeWords(document.text)
    return [_label(attribute, source, said[attribute.name]) for attribute in document.schema]


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


class _WholeWords(SourceText):
    """Where a label stands: as whole words on one line. A model's own value may be part of a word, a lesson not."""

    def find(self, value: str) -> Span | None:
        return self.find_whole(value)


def _label(attribute: Attribute, source: SourceText, said: str | None) -> Label:
    """What `said` means is for `read` to tell, as it does for the values that a decoder writes."""
    reading = Reading(None, ValueStatus.ABSENT) if said is None else read(attribute, said, source)
    if said is None or reading.status is not ValueStatus.EXTRACTED:
        return Label(attribute.name, Kept(reading.status.value), said, None)
    if not is_copied(attribute):  # a judgement about the text, not a piece of it
        return Label(attribute.name, Kept.VALUE, said, written(attribute, reading.value))  # type: ignore[arg-type]
    texts = [span.of(source.text) for span in reading.spans if span]
    pieces = {unquote(piece) for piece in (unquote(said).split(SEPARATOR) if attribute.many else [said])}
    kept = Kept.VALUE if pieces.issuperset(texts) else Kept.RESPELLED
    return Label(attribute.name, kept, said, written(attribute, texts if attribute.many else texts[0]))


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
