"""Logits of a step -> the ids that come next, on the host: the likeliest allowed, or the taught ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hpd_core.model import Model
from hpd_core.slots import ChosenId, Slot


@dataclass(frozen=True, slots=True)
class Row:
    """A row of logits: what comes behind all that `slot` has written and the first `drafted` ids of its draft."""

    slot: Slot
    drafted: int

    @property
    def before(self) -> list[int]:
        return self.slot.ids + self.slot.drafted[: self.drafted]

    @property
    def taught(self) -> int:
        """The id to write whatever the logits say; -1 where the model decides."""
        return self.slot.taught_at(len(self.slot.ids) + self.drafted)


def widened(logits: Tensor) -> Tensor:
    """Logits to choose by and to take log-probabilities of: no half precision."""
    return logits if logits.dtype == torch.float64 else logits.float()


def settled(logits: Tensor, likeliest: Tensor, taught: Tensor | None) -> tuple[Tensor, Tensor]:
    """Ids that are written and their natural-log probabilities, both [n]: the taught ones where they are not -1.

    logits: [n, vocabulary], widened. likeliest, taught: [n]; None where nothing is taught. Asks the device for nothing.
    """
    chosen = likeliest if taught is None else torch.where(taught < 0, likeliest, taught)
    return chosen, logits.gather(-1, chosen[:, None])[:, 0] - logits.logsumexp(-1)


@dataclass(frozen=True, slots=True)
class Chooser:
    """absent_margin: see DecodeSettings. keep_logits: whether choices carry their logits."""

    model: Model
    stop_ids: frozenset[int]
    absent_margin: float
    keep_logits: bool

    def choices(self, slots: Sequence[Slot], logits: Tensor) -> Iterator[list[ChosenId]]:
        """For each slot what comes behind its ids, and behind each of its drafted ones.

        logits: [rows, vocabulary], for each slot one row and one more behind each of its drafted ids.
        """
        rows = [Row(slot, k) for slot in slots for k in range(1 + len(slot.drafted))]
        wide = widened(logits)
        is_taught = any(row.slot.taught is not None for row in rows)
        taught = self.model.tensor([row.taught for row in rows]) if is_taught else None
        chosen, logprobs = settled(wide, self._likeliest(rows, self._with_margin(rows, wide)), taught)
        choices = [ChosenId(*pair) for pair in zip(chosen.tolist(), logprobs.tolist(), strict=True)]
        if self.keep_logits:
            choices = [replace(choice, logits=logits[n]) for n, choice in enumerate(choices)]
        start = 0
        for count in [1 + len(slot.drafted) for slot in slots]:
            yield choices[start : start + count]
            start += count

    def _with_margin(self, rows: Sequence[Row], logits: Tensor) -> Tensor:
        """Logits to choose by: what would end a value that nothing was written of yet has to win by the margin."""
        first = [number for number, row in enumerate(rows) if not row.before]
        if not self.absent_margin or not first:
            return logits
        ends = self.model.tensor(sorted(self.stop_ids))
        logits = logits.clone()
        logits[self.model.tensor(first)[:, None], ends] -= self.absent_margin
        return logits

    def _likeliest(self, rows: Sequence[Row], logits: Tensor) -> Tensor:
        """The likeliest id of each row [n], of those that its slot may write there. logits: [n, vocabulary]."""
        chosen = logits.argmax(-1)
        # Slots of one document that have written the same share their ids.
        groups: dict[tuple[int, ...], list[int]] = {}
        for number, row in enumerate(rows):
            if row.slot.allowed is not None:
                groups.setdefault(row.slot.allowed(row.before), []).append(number)
        for ids, same in groups.items():
            where, which = self.model.tensor(same), self.model.tensor(ids)
            chosen[where] = which[logits[where[:, None], which].argmax(-1)]
        return chosen
