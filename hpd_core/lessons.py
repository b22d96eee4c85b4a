"""Example -> lesson: one document's rows with its answers written behind the stubs (teacher forcing). Ints only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpd_core.examples import Example
from hpd_core.layout import NO_STUB
from hpd_core.prompt import Prompt, PromptEncoder
from hpd_core.settings import Layout


@dataclass(frozen=True, slots=True)
class Lesson:
    """One document to learn from: its rows behind `prefix`, lists of [L], and what some rows must predict.

    targets: (row, id) pairs; the logits of `row` must give `id`.
    """

    prefix: tuple[int, ...]
    ids: tuple[int, ...]
    positions: tuple[int, ...]
    stubs: tuple[int, ...]
    indices: tuple[int, ...]
    reaches: tuple[int, ...]
    targets: tuple[tuple[int, int], ...]


def lesson(prompt: Prompt, values: Sequence[Sequence[int] | None], layout: Layout) -> Lesson:
    """Rows of a prompt whose slot n is to write `values[n]`, ids up to and with the terminator.

    None teaches nothing about a slot: under `branches`, where no other slot could see it, its rows are left out; in
    `gaps` its stub stays, because later slots see it.
    """
    place = prompt.place(layout)
    rows = list(zip(prompt.memory_ids, place.positions, place.stubs, place.reaches, strict=True))
    targets: list[tuple[int, int]] = []
    fed: list[tuple[int, int, int, int, int]] = []
    skipped = {n for n, v in enumerate(values) if v is None and layout is Layout.BRANCHES}
    kept = [r for r, (_, _, stub, _) in enumerate(rows) if stub not in skipped]
    row_of = {old: new for new, old in enumerate(kept)}
    for slot, ids in enumerate(values):
        if ids is None:
            continue
        targets.append((row_of[place.ends[slot]], ids[0]))
        for k, id_ in enumerate(ids[:-1], 1):  # the last token, terminator or K_max-th, is never fed
            targets.append((len(kept) + len(fed), ids[k]))
            position = place.value_position(slot, k)
            fed.append((id_, position, slot, position, k))
    line = [(*rows[r], 0) for r in kept] + fed
    ids_, positions, stubs, reaches, indices = zip(*line, strict=True)
    return Lesson(prompt.shared.prefix, ids_, positions, stubs, indices, reaches, tuple(targets))


def ar_lesson(
    prompt: Prompt, stubs: Sequence[Sequence[int]], values: Sequence[Sequence[int]], taught: Sequence[bool]
) -> Lesson:
    """The autoregressive control: lines `Name: value` one after another as ordinary causal text.

    stubs: ids of each key as a first line. Every key is a target; a value is one where `taught` says so.
    """
    ids = list(prompt.document)
    targets: list[tuple[int, int]] = []
    for stub, value, is_taught in zip(stubs, values, taught, strict=True):
        for part, is_target in ((stub, True), (value, is_taught)):
            targets += [(len(ids) - 1 + k, id_) for k, id_ in enumerate(part) if is_target]
            ids += part
    ids.pop()  # the last token is never fed
    start = len(prompt.shared.prefix)
    positions = tuple(range(start, start + len(ids)))
    return Lesson(
        prefix=prompt.shared.prefix,
        ids=tuple(ids),
        positions=positions,
        stubs=(NO_STUB,) * len(ids),
        indices=(0,) * len(ids),
        reaches=positions,
        targets=tuple(t for t in targets if t[0] >= 0),
    )


class LessonMaker:
    """Examples -> lessons for Hyper-Parallel Decoding in the encoder's layout, or for the autoregressive control."""

    def __init__(self, encoder: PromptEncoder, *, autoregressive: bool = False) -> None:
        self.encoder, self.autoregressive = encoder, autoregressive

    def lesson(self, example: Example) -> Lesson:
        """Raises PromptError where the document cannot be asked or a value cannot be written."""
        schema = example.document.schema
        prompt = self.encoder.prompt(self.encoder.encode(example.document))
        if not self.autoregressive:
            values = [
                self.encoder.value_ids(a, example.answers[a.name]) if a.name in example.answers else None
                for a in schema
            ]
            return lesson(prompt, values, self.encoder.settings.layout)
        stubs = [self.encoder.stub(a)[0] for a in schema]
        written = [self._line_value(self.encoder.value_ids(a, example.answers.get(a.name, ""))) for a in schema]
        return ar_lesson(prompt, stubs, written, [a.name in example.answers for a in schema])

    def _line_value(self, ids: list[int]) -> list[int]:
        """A line must end, or the next key would stand in the middle of it."""
        return ids if ids[-1] in self.encoder.stop_ids else [*ids[:-1], self.encoder.newline_id]
