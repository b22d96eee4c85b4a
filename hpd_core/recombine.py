"""New training texts out of old ones: a value in a text gives way to another product's value of the same attribute.

A small model knows a few thousand titles by heart after some epochs. Where their values change every time, it has to
read instead. Pure Python; every draw comes from the generator that is handed in.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

from hpd_core.grounding import SourceText, Span
from hpd_core.schema import Document


class Recombiner:
    """Knows which values each attribute has elsewhere.

    labelled: (document, {attribute: accepted texts}) of everything that may lend values. A value lends itself where it
    stands in its own text as whole words, to documents of a schema of the same name.
    """

    def __init__(self, labelled: Iterable[tuple[Document, Mapping[str, Sequence[str] | None]]]) -> None:
        pools: dict[tuple[str, str], dict[str, None]] = {}
        for document, values in labelled:
            source = SourceText(document.text)
            for attribute, texts in values.items():
                kept = {text: None for text in texts or () if _written(source, text)}
                pools.setdefault((document.schema.name, attribute), {}).update(kept)
        self._pools = {key: tuple(pool) for key, pool in pools.items()}

    def recombine(
        self, document: Document, answers: Mapping[str, str], rate: float, rng: random.Random
    ) -> tuple[Document, dict[str, str]]:
        """The document and its answers with each value replaced with probability `rate`.

        Only a value that stands in the text once, as whole words and apart from all other values, is replaced: where a
        name is brand and part of the model's name, the text stays as it is.
        """
        source = SourceText(document.text)
        places = {name: list(source.written(value)) for name, value in answers.items() if value}
        chosen: list[tuple[Span, str, str]] = []
        for name, spans in places.items():
            pool = self._pools.get((document.schema.name, name), ())
            others = [span for other, found in places.items() if other != name for span in found]
            drawn, which = rng.random(), rng.random()
            if drawn >= rate or not pool or len(spans) != 1 or any(_overlap(spans[0], other) for other in others):
                continue
            if _written(source, answers[name]) == spans[0]:
                chosen.append((spans[0], name, pool[int(which * len(pool))]))
        text, new = document.text, dict(answers)
        for span, name, value in sorted(chosen, key=lambda c: -c[0].start):
            text = text[: span.start] + value + text[span.end :]
            new[name] = value
        return Document(text, document.schema), new


def _written(source: SourceText, value: str) -> Span | None:
    """Where `value` stands as whole words, written as it is."""
    span = source.find_whole(value)
    return span if span is not None and span.of(source.text) == value else None


def _overlap(a: Span, b: Span) -> bool:
    return a.start < b.end and b.start < a.end
