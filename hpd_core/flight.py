"""A step that is under way: the device goes on while the host reads what it has chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hpd_core.batch import Feed
from hpd_core.graphs import GraphRunner, Outputs
from hpd_core.rows import Counts
from hpd_core.settings import DecodeSettings, Visibility
from hpd_core.slots import ChosenId, Slot


def may_fly(settings: DecodeSettings, slots: Sequence[Slot]) -> bool:
    """Whether the device alone can choose what these slots go on with. Not under `causal`: a row that is fed behind the
    end of a value would be seen."""
    return (
        settings.visibility is Visibility.ISOLATED
        and not settings.draft_tokens
        and all(slot.allowed is None for slot in slots)
    )


class Reading:
    """What a step has chosen, on its way to the host while the device goes on."""

    def __init__(self, outputs: Outputs) -> None:
        self._copies = [
            torch.empty_like(t, device="cpu", pin_memory=t.is_cuda).copy_(t, non_blocking=True)
            for t in (outputs.chosen, outputs.logprobs)
        ]
        self._arrived = torch.cuda.Event() if outputs.chosen.is_cuda else None
        if self._arrived is not None:
            self._arrived.record()

    def read(self) -> list[tuple[int, float]]:
        """Ids and log-probabilities; waits for that step, and not for those behind it."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return list(zip(*(t.tolist() for t in self._copies), strict=True))


@dataclass(frozen=True, slots=True)
class Flight:
    """A step whose ids the host has not read: they are `flying`. logits: [slots, vocabulary] where they are kept."""

    slots: Sequence[Slot]
    reading: Reading
    logits: Tensor | None

    @classmethod
    def launch(
        cls, graphs: GraphRunner, feeds: Sequence[Feed], slots: Sequence[Slot], *, keep_logits: bool = False
    ) -> Flight:
        """Begins a step that feeds each slot one id, which may be flying itself."""
        source, taught = [slot.flying for slot in slots], [slot.taught_at(slot.chosen) for slot in slots]
        outputs = graphs.step(feeds, source, taught, logits=keep_logits)
        for place, slot in enumerate(slots):
            slot.flying = place
        return cls(slots, Reading(outputs), outputs.logits.clone() if keep_logits else None)

    def read(self, counts: Counts) -> None:
        """Waits for the ids and writes them. Of a slot that has ended since, nothing: that its last id was fed was in
        vain, and counts as no work."""
        fed = 0
        for place, (slot, (chosen, logprob)) in enumerate(zip(self.slots, self.reading.read(), strict=True)):
            if not slot.done:
                slot.take([ChosenId(chosen, logprob, None if self.logits is None else self.logits[place])])
                fed += 1
        counts.slot_steps += fed
        counts.steps += fed > 0

    def land(self, counts: Counts) -> None:
        """Reads it where no later one is under way."""
        for slot in self.slots:
            slot.flying = -1
        self.read(counts)
