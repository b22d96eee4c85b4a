"""One call of `Decoder.decode`: which documents wait, which are in flight, what the others have written."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from hpd_core.admission import Asked, schedule
from hpd_core.prompt import Prompt
from hpd_core.rows import Counts
from hpd_core.slots import ActiveDocument, Slot, SlotTokens

#: ids[document][slot] to write in place of the likeliest.
Forced = Sequence[Sequence[Sequence[int]]]


@dataclass(slots=True)
class Call:
    """asked, results: by number of the prompt; results are empty until a document has ended. waiting: numbers of those
    that are not in flight yet, in their order. counts: what the work is added to. copies: see `Asked.of`."""

    prompts: Sequence[Prompt]
    counts: Counts
    forced: Forced | None
    copies: int = 0
    asked: Sequence[Asked] = field(init=False)
    waiting: deque[int] = field(init=False)
    active: list[ActiveDocument] = field(default_factory=list)
    results: list[list[SlotTokens]] = field(init=False)

    def __post_init__(self) -> None:
        self.asked = [Asked.of(prompt, self.copies) for prompt in self.prompts]
        self.waiting = deque(schedule(self.prompts))
        self.results = [[] for _ in self.prompts]

    @property
    def live(self) -> int:
        """Slots that are open."""
        return sum(len(document.live) for document in self.active)

    @property
    def is_prefilling(self) -> bool:
        """Whether part of a document in flight is still to be fed."""
        return not all(document.is_prefilled for document in self.active)

    def finish(self) -> None:
        """Lets documents go whose slots have all ended, and their blocks with them."""
        for document in [a for a in self.active if a.is_prefilled and not a.live]:
            self.active.remove(document)
            document.slab.release(document.block)
            self.results[document.number] = [slot.finished() for slot in document.slots]
            _count(document.slots, self.counts)


def _count(slots: Sequence[Slot], counts: Counts) -> None:
    for slot in slots:
        counts.generated_tokens += len(slot.ids)
        counts.forced_tokens += slot.forced
        counts.decode_rows += slot.fed
        counts.drafted_tokens += slot.guessed
        counts.accepted_tokens += slot.accepted
