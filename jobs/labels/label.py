"""What somebody says of a product -> labels that stand in its text, as a row of a benchmark file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from hpd_core.grounding import SourceText, Span
from hpd_core.normal import unquote
from hpd_core.reading import Reading, ValueStatus, is_copied, read
from hpd_core.schema import SEPARATOR, Attribute
from hpd_core.writing import written
from jobs.scores.dataset import ABSENT


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
    """One attribute of one product. said: the value as it was given, None for absent. value: the label, None for none.

    A label is what `written` makes of the value: a span keeps the text's own spelling, a closed value the list's, and a
    boolean is "yes" or "no", so that one fact has one spelling.
    """

    attribute: str
    kept: Kept
    said: str | None
    value: str | None


class WholeWords(SourceText):
    """Where a label stands: as whole words on one line. A model's own value may be part of a word, a lesson not."""

    def find(self, value: str) -> Span | None:
        return self.find_whole(value)


def label_of(attribute: Attribute, source: WholeWords, said: str | None) -> Label:
    """What `said` means is for `read` to tell, as it does for the values that a decoder writes. None is absent."""
    reading = Reading(None, ValueStatus.ABSENT) if said is None else read(attribute, said, source)
    if said is None or reading.status is not ValueStatus.EXTRACTED:
        return Label(attribute.name, Kept(reading.status.value), said, None)
    if not is_copied(attribute):  # a judgement about the text, not a piece of it
        return Label(attribute.name, Kept.VALUE, said, written(attribute, reading.value))  # type: ignore[arg-type]
    texts = [span.of(source.text) for span in reading.spans if span]
    pieces = {unquote(piece) for piece in (unquote(said).split(SEPARATOR) if attribute.many else [said])}
    kept = Kept.VALUE if pieces.issuperset(texts) else Kept.RESPELLED
    return Label(attribute.name, kept, said, written(attribute, texts if attribute.many else texts[0]))


def benchmark_line(text: str, category: str, labels: Sequence[Label]) -> dict[str, Any]:
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
