"""Documents through a decoder -> predictions as texts, and the files of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpd_core.normal import is_null, unquote
from hpd_core.reading import as_text, is_copied
from hpd_core.rows import Counts, Row, Value
from hpd_core.schema import SEPARATOR, Attribute, Document, ValueType
from hpd_core.writing import written
from jobs.console import say
from jobs.scores.lines import write_lines

if TYPE_CHECKING:
    from hpd_core.extractor import Extractor

#: Documents per call of the decoder: enough for any batch, few enough for progress to be seen.
CHUNK = 256


def extract_chunks(extractor: Extractor, documents: Sequence[Document]) -> tuple[list[Row], Counts]:
    """One row per document, in order, and the work of all; a document that cannot be asked is a row in error."""
    from hpd_core.extractor import extract_all

    rows: list[Row] = []
    counts = Counts()
    for start in range(0, len(documents), CHUNK):
        extraction = extract_all(extractor, documents[start : start + CHUNK])
        counts += extraction.counts
        rows += extraction.rows
        say(f"{len(rows)}/{len(documents)} rows")
    return rows, counts


def prediction(row: Row) -> dict[str, str | None]:
    """{attribute: text as extracted, or None} with every attribute of the row's schema.

    A benchmark's gold is text: a number, quantity or date is told as it was written, not as its type was parsed; a
    closed value as its list spells it, a boolean as "yes" or "no".
    """
    found = {value.attribute: value for value in row.values}
    return {a.name: _text(a, found[a.name], row.text) if a.name in found else None for a in row.schema}


def write_results(folder: Path, predictions: Sequence[dict[str, str | None]], facts: dict[str, Any]) -> None:
    """Writes predictions.jsonl, one object a line, and scores.json into a folder that is made where it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / "predictions.jsonl", predictions)
    (folder / "scores.json").write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _text(attribute: Attribute, found: Value, document: str) -> str | None:
    if found.value is None:
        return None
    if not is_copied(attribute):
        return written(attribute, found.value)
    if attribute.type is ValueType.STRING:
        return as_text(found.value)
    pieces = unquote(found.raw).split(SEPARATOR) if attribute.many else [found.raw]
    texts = [unquote(piece) for piece in pieces if not is_null(piece)]
    if found.spans and all(found.spans):
        texts = [span.of(document) for span in found.spans if span]
    return f"{SEPARATOR} ".join(dict.fromkeys(texts))
