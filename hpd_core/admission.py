"""Which documents are prefilled when. Numbers only: no tensor, no model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpd_core.prompt import Prompt, SchemaPrompt

#: Rows of a step with prefill, while others decode, where steps without are replayed: enough work for its launches.
_MIXED_ROWS = 2048
#: Share of the open slots, as 1 / n, that such a step has to fill where slots are what is short.
_SLOT_SHARE = 4


@dataclass(frozen=True, slots=True)
class Asked:
    """What a document asks for: slots, rows of its prefill, and cells: tokens whose KV it may come to hold, the
    `copied` ones of its shared prefix among them."""

    slots: int
    rows: int
    cells: int
    copied: int = 0

    @classmethod
    def of(cls, prompt: Prompt, copies: int) -> Asked:
        """copies: length of the longest shared prefix that is copied."""
        slots, rows, prefix = len(prompt.shared.stubs), len(prompt.memory_ids), len(prompt.shared.prefix)
        copied = prefix if prefix <= copies else 0
        # Every slot's KV is reserved, so that nothing is ever preempted; terminators and K_max-th tokens are never fed.
        return cls(slots, rows, copied + rows + slots * (prompt.max_value_tokens - 1), copied)


@dataclass(frozen=True, slots=True)
class Admission:
    """step_rows, open_slots: `tokens_per_step` and `max_slots` of the settings."""

    step_rows: int
    open_slots: int

    def has_slots(self, live: int, document: Asked) -> bool:
        """Whether a document's slots may be opened beside `live` ones."""
        return live + document.slots <= self.open_slots

    def is_worth_a_step(self, live: int, rows: int, waiting: Iterable[Asked]) -> bool:
        """Whether documents that wait, the first of which has room for its KV, are to be prefilled in the next step,
        beside `rows` rows of `live` open slots, where steps without prefill are replayed.

        One with prefill then has to be worth its launches: documents wait until they fill it, take a quarter of the
        open slots, or are the last. Guesses, as long as no GPU has been measured.
        """
        if not live:
            return True
        if rows >= self.step_rows:
            return False
        slots = live
        for document in waiting:
            if not self.has_slots(slots, document):
                return _SLOT_SHARE * (slots - live) >= self.open_slots
            slots += document.slots
            rows += document.rows
            if rows >= min(_MIXED_ROWS, self.step_rows):
                return True
        return True


def schedule(prompts: Sequence[Prompt]) -> list[int]:
    """Numbers of documents in their order: those of one schema together, so that a step reads few prefixes; long ones
    first, so that widths fall and no long document is left alone at the end."""
    first_seen: dict[SchemaPrompt, int] = {}
    for number, prompt in enumerate(prompts):
        first_seen.setdefault(prompt.shared, number)
    return sorted(range(len(prompts)), key=lambda n: (first_seen[prompts[n].shared], -len(prompts[n].document), n))
