"""Labelled products -> what one epoch teaches: which attributes, in which order, which of several values.

Pure Python and a pure function of seed and epoch, so that a resumed run sees what the killed one would have seen.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpd_core.recombine import Recombiner
from hpd_core.schema import Document, Schema
from hpd_core.settings import SettingsError


@dataclass(frozen=True, slots=True)
class Labelled:
    """A product and what is known of it.

    values: {attribute: its accepted texts}, no text where it is known to be absent, None where nothing is known of it
    and nothing may be taught. Attributes of the schema that `values` does not name are taken for absent.
    """

    document: Document
    values: Mapping[str, tuple[str, ...] | None]


@dataclass(frozen=True, slots=True)
class Sampling:
    """What of the labels an epoch uses.

    negatives: probability with which an attribute that a document is known not to have is taught in an epoch, as the
        template's word for absent, by default the bare terminator. Drawn for each document and attribute anew in every
        epoch, from `seed`. Values are always taught, what is not known never is; neither depends on it.
    batch_documents: documents of one forward. accumulate: forwards per optimizer step.
    documents_per_prefix: documents that share a schema order and with it the rows of one prefix.
    seed: decides every draw, together with the number of the epoch.
    recombine: probability that a value in a text gives way to another product's (see `recombine.py`).
    """

    negatives: float = 0.25
    batch_documents: int = 16
    accumulate: int = 1
    documents_per_prefix: int = 4
    seed: int = 0
    recombine: float = 0.0

    def __post_init__(self) -> None:
        for name in ("negatives", "recombine"):
            if not 0 <= getattr(self, name) <= 1:
                raise SettingsError(f"{name} is {getattr(self, name)}: must be a rate from 0 to 1")
        for name in ("batch_documents", "accumulate", "documents_per_prefix"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} is {getattr(self, name)}: must be at least 1")


@dataclass(frozen=True, slots=True)
class Example:
    """One document of one epoch. answers: {attribute: text to write}, "" where it is absent; others teach nothing."""

    document: Document
    answers: dict[str, str]


def epoch_examples(labelled: Sequence[Labelled], sampling: Sampling, epoch: int) -> list[list[Example]]:
    """Batches of one epoch: every document once, schemas in an order of their own, neighbours sharing a prefix."""
    rng = random.Random(f"{sampling.seed}/{epoch}")
    groups: dict[Schema, list[Labelled]] = {}
    for item in labelled:
        groups.setdefault(item.document.schema, []).append(item)
    chunks = []
    for schema, members in groups.items():
        rng.shuffle(members)
        for start in range(0, len(members), sampling.documents_per_prefix):
            attributes = list(schema)
            rng.shuffle(attributes)
            shuffled = Schema(schema.name, tuple(attributes))
            chunk = members[start : start + sampling.documents_per_prefix]
            chunks.append([_example(item, shuffled, sampling.negatives, rng) for item in chunk])
    rng.shuffle(chunks)
    line = [example for chunk in chunks for example in chunk]
    if sampling.recombine:
        recombiner = Recombiner((item.document, item.values) for item in labelled)
        made = (recombiner.recombine(e.document, e.answers, sampling.recombine, rng) for e in line)
        line = [Example(document, answers) for document, answers in made]
    return [line[start : start + sampling.batch_documents] for start in range(0, len(line), sampling.batch_documents)]


def _example(item: Labelled, schema: Schema, negatives: float, rng: random.Random) -> Example:
    answers = {}
    for attribute in schema:
        values = item.values.get(attribute.name, ())
        # Drawn for every attribute, so that one label more does not change the draws of all that follow.
        chosen, taught = rng.random(), rng.random() < negatives
        if values is None:
            continue
        if values:
            answers[attribute.name] = values[int(chosen * len(values))]
        elif taught:
            answers[attribute.name] = ""
    return Example(Document(item.document.text, schema), answers)
