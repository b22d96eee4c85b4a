"""Documents in flight: what each slot has written, what of it is fed, and the feeds of the next step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from operator import eq

import torch
from torch import Tensor

from hpd_core.batch import Feed
from hpd_core.cache import Slab
from hpd_core.constraint import Allowed
from hpd_core.drafts import Lookup
from hpd_core.layout import DocumentLayout
from hpd_core.prompt import Prompt


@dataclass(frozen=True, slots=True)
class SlotTokens:
    """Decoded tokens of one slot: ids up to and with the terminator, or K_max ids where it is `truncated`.

    logprobs: natural-log probability of each id; 0 of the `forced` ones, about which a constraint left no choice.
    logits: [ids that were chosen, vocabulary] where they were asked for.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    truncated: bool
    logits: Tensor | None = None
    forced: int = 0

    @property
    def is_finite(self) -> bool:
        return all(map(math.isfinite, self.logprobs))

    @property
    def logprob(self) -> float:
        """Mean of the ids that were chosen; NaN where none was."""
        chosen = len(self.ids) - self.forced
        return sum(self.logprobs) / chosen if chosen else math.nan


@dataclass(frozen=True, slots=True)
class ChosenId:
    """An id that was chosen, with its log-probability and, where they are kept, the logits [vocabulary]."""

    id: int
    logprob: float
    logits: Tensor | None = None


@dataclass(slots=True)
class Slot:
    """A value being written.

    limit: most ids of it. taught: ids to write in place of the likeliest (teacher forcing). allowed: what may be
    written otherwise; None for anything.
    skips: whether ids that are forced by a constraint are written with the one before them, without a forward pass of
    their own. They are fed together with the next one, so that a feed may hold several ids of a slot.
    fed: ids whose KV is kept, always the first ones.
    drafted: ids that are fed behind all that is written, in case they come next. guessed, accepted: how many ever were.
    flying: place, among the choices of the step before, of the id behind `ids`, which the device has chosen and the
        host has not read; -1 where there is none.
    """

    limit: int
    stop_ids: frozenset[int]
    taught: Sequence[int] | None = None
    allowed: Allowed | None = None
    skips: bool = False
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    forced: int = 0
    fed: int = 0
    drafted: list[int] = field(default_factory=list)
    draft_cells: list[int] = field(default_factory=list)
    guessed: int = 0
    accepted: int = 0
    flying: int = -1
    done: bool = False

    def __post_init__(self) -> None:
        if self.taught is not None:
            self.allowed = None

    @property
    def pending(self) -> list[int]:
        """Ids chosen and not yet fed; 0 stands for one that is flying."""
        return self.ids[self.fed :] if self.flying < 0 else [0]

    @property
    def chosen(self) -> int:
        """Ids chosen, one that is flying among them."""
        return len(self.ids) + (self.flying >= 0)

    @property
    def goes_on(self) -> bool:
        """Whether the next step feeds it, as far as the host knows: a flying id may be the one that ends it."""
        return not self.done and self.chosen < self.limit

    def taught_at(self, place: int) -> int:
        """The id to write at a place of the value, whatever the model says; -1 where the model decides."""
        return -1 if self.taught is None else self.taught[place]

    def draft(self, ids: Sequence[int]) -> None:
        """Drafts `ids` as far as they may be written and would be fed: neither what ends a value nor its last id."""
        self.drafted = []
        for i in ids[: self.limit - 1 - len(self.ids)]:
            if i in self.stop_ids or (self.allowed is not None and i not in self.allowed(self.ids + self.drafted)):
                break
            self.drafted.append(i)
        self.guessed += len(self.drafted)

    def take(self, choices: Sequence[ChosenId]) -> Sequence[int]:
        """Writes what was chosen behind `ids`, all of which are fed by now, and then behind each drafted id for as long
        as the draft says what is written, always with what follows by force. Returns cells of rejected drafts."""
        start, drafted = len(self.ids), self.drafted
        count = 0
        while not self.done and count < len(choices) and self.ids[start:] == drafted[:count]:
            self._write(choices[count])
            while self.skips and not self.done and (only := self._forced()) is not None:
                self._write(ChosenId(only, 0.0))
            count = len(self.ids) - start
        accepted = sum(1 for _ in takewhile(bool, map(eq, self.ids[start:], drafted)))
        self.fed = start + accepted
        self.accepted += accepted
        rejected = self.draft_cells[accepted:]
        self.drafted, self.draft_cells = [], []
        return rejected

    def finished(self) -> SlotTokens:
        truncated = self.ids[-1] not in self.stop_ids
        logits = torch.stack(self.logits) if self.logits else None
        return SlotTokens(tuple(self.ids), tuple(self.logprobs), truncated, logits, self.forced)

    def _forced(self) -> int | None:
        """The id that comes next whatever the model says, None where there is a choice."""
        if self.allowed is None or not self.allowed.may_force:
            return None
        ids = self.allowed(self.ids)
        return ids[0] if len(ids) == 1 else None

    def _write(self, choice: ChosenId) -> None:
        logprob = choice.logprob
        if self._forced() is not None:
            self.forced += 1
            logprob = 0.0 if math.isfinite(logprob) else logprob
        elif choice.logits is not None:
            self.logits.append(choice.logits)
        self.ids.append(choice.id)
        self.logprobs.append(logprob)
        self.done = len(self.ids) == self.limit or choice.id in self.stop_ids or not math.isfinite(logprob)


@dataclass(slots=True)
class ActiveDocument:
    """A document in flight: `ids` are those of its prompt behind the prefix, the first `fed` of which are fed.

    prefix: what it reads beside its own block; None where there is none, or where its block begins with a copy.
    """

    number: int
    prompt: Prompt
    layout: DocumentLayout
    ids: Sequence[int]
    prefix: Slab | None
    slab: Slab
    block: int
    slots: list[Slot]
    fed: int = 0
    _lookup: Lookup | None = None

    @property
    def is_prefilled(self) -> bool:
        return self.fed == len(self.ids)

    @property
    def live(self) -> list[int]:
        """Slots that have not ended as far as the host knows: more than `going` where one's last id is flying."""
        return [n for n, slot in enumerate(self.slots) if not slot.done]

    @property
    def going(self) -> list[int]:
        """Slots that the next step feeds."""
        return [n for n, slot in enumerate(self.slots) if slot.goes_on]

    @property
    def rows(self) -> int:
        """Value tokens that the next step has to feed."""
        return sum(len(slot.pending) for slot in self.slots if slot.goes_on)

    def draft(self, n: int, most: int) -> None:
        """Looks up in the document what slot `n` may go on with."""
        if self._lookup is None:
            suffix = len(self.prompt.shared.suffix)
            self._lookup = Lookup(self.prompt.document[: len(self.prompt.document) - suffix])
        self.slots[n].draft(self._lookup.after(self.slots[n].ids, most))

    def prefill_feed(self, room: int) -> Feed:
        """The next chunk of the prompt, of at most `room` tokens where no block of the document is longer."""
        start, stop = self.fed, self.layout.chunk_end(self.fed, room)
        chunk = slice(start, stop)
        return Feed(
            slab=self.slab,
            block=self.block,
            cells=self.slab.append(self.block, stop - start),
            ids=self.ids[chunk],
            positions=self.layout.positions[chunk],
            stubs=self.layout.stubs[chunk],
            indices=[0] * (stop - start),
            reaches=self.layout.reaches[chunk],
            wanted=[end - start for end in self.layout.ends if start <= end < stop],
            prefix=self.prefix,
            is_prefill=True,
        )

    def decode_feed(self) -> Feed:
        """What each live slot has written since it was fed, and its draft; the logits of the last id written and of
        every drafted one are wanted."""
        ids: list[int] = []
        positions, stubs, indices, wanted = [], [], [], []
        going = [(n, self.slots[n]) for n in self.going]
        for n, slot in going:
            fed = slot.pending + slot.drafted
            first = slot.chosen - len(slot.pending) + 1
            for index, i in enumerate(fed, first):
                if index >= slot.chosen:
                    wanted.append(len(ids))
                ids.append(i)
                positions.append(self.layout.value_position(n, index))
                stubs.append(n)
                indices.append(index)
        cells = self.slab.append(self.block, len(ids))
        stop = 0
        for _, slot in going:
            stop += len(slot.pending) + len(slot.drafted)
            slot.draft_cells = cells[stop - len(slot.drafted) : stop]
        return Feed(
            slab=self.slab,
            block=self.block,
            cells=cells,
            ids=ids,
            positions=positions,
            stubs=stubs,
            indices=indices,
            reaches=positions,
            wanted=wanted,
            prefix=self.prefix,
            is_prefill=False,
        )

    def take_prefilled(self, count: int) -> list[Slot]:
        """Counts `count` more tokens of the prompt as fed; the slots that begin with their logits."""
        span = range(self.fed, self.fed + count)
        self.fed = span.stop
        return [self.slots[n] for n, end in enumerate(self.layout.ends) if end in span]
