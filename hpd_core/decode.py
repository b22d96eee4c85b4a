"""Prefill, step loop, stop rule, refill: prompts -> value tokens.

Every step is one forward pass over a flat axis of real tokens: what each live slot has written last, and as much
prefill of waiting documents as fits in `tokens_per_step`. A slot that ends leaves at once, a document whose slots have
all ended frees its KV, and the next one is prefilled in. Where a step has few rows, drafts of what slots go on with are
fed along and checked. The schedule is a pure function of the prompts, the settings and the decoded tokens.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hpd_core.batch import Feed, make_step
from hpd_core.cache import PrefixCache, Slab, SlabPool
from hpd_core.layout import NO_STUB
from hpd_core.model import Model
from hpd_core.prompt import Prompt, SchemaPrompt
from hpd_core.rows import Counts
from hpd_core.settings import DecodeSettings, SettingsError, Visibility
from hpd_core.slots import ActiveDocument, ChosenId, Slot, SlotTokens


class Decoder:
    """Greedy Hyper-Parallel Decoding of any number of prompts; keeps shared prefixes between calls."""

    def __init__(
        self,
        model: Model,
        settings: DecodeSettings,
        stop_ids: frozenset[int],
        *,
        fast: bool = True,
        keep_logits: bool = False,
    ) -> None:
        if settings.is_auto:
            raise SettingsError("a setting is auto: measure first (see hpd_core/sizing.py)")
        self.model = model
        self.settings = settings
        self.stop_ids = stop_ids
        self.fast = fast
        self.keep_logits = keep_logits
        self._prefixes = PrefixCache(settings.prefix_cache_mib * 2**20)
        bound = settings.kv_bytes
        self._pool = SlabPool(model.device, None if bound is None else bound // model.kv_bytes_per_token)

    @torch.inference_mode()
    def decode(
        self, prompts: Sequence[Prompt], counts: Counts, forced: Sequence[Sequence[Sequence[int]]] | None = None
    ) -> list[list[SlotTokens]]:
        """Tokens of every slot of every prompt, in the order given; adds the work to `counts`.

        forced: ids that slot n of document d emits instead of the likeliest ones (teacher forcing); the model still
        computes every logit.
        """
        try:
            return self._decode(prompts, counts, forced)
        except BaseException:
            # Out of memory, say: the next call starts with no block taken.
            self._pool = SlabPool(self.model.device, self._pool.cells)
            raise

    def _decode(
        self, prompts: Sequence[Prompt], counts: Counts, forced: Sequence[Sequence[Sequence[int]]] | None
    ) -> list[list[SlotTokens]]:
        waiting = deque(self._schedule(prompts))
        active: list[ActiveDocument] = []
        results: list[list[SlotTokens]] = [[] for _ in prompts]
        while waiting or active:
            feeds, owners = self._next_feeds(active, waiting, prompts, counts, forced)
            started = time.perf_counter()
            self._run(feeds, owners, counts)
            seconds = time.perf_counter() - started
            decode_rows = sum(len(f.ids) for f in feeds if not f.is_prefill)
            share = decode_rows / sum(len(f.ids) for f in feeds)
            counts.decode_seconds += seconds * share
            counts.prefill_seconds += seconds * (1 - share)
            for document in [a for a in active if a.is_prefilled and not a.live]:
                active.remove(document)
                document.slab.release(document.block)
                results[document.number] = [slot.finished() for slot in document.slots]
                _count(document.slots, counts)
        return results

    def _schedule(self, prompts: Sequence[Prompt]) -> list[int]:
        """Documents of one schema together, so that a step reads few prefixes; long ones first, so that widths fall and
        no long document is left alone at the end."""
        first_seen: dict[SchemaPrompt, int] = {}
        for number, prompt in enumerate(prompts):
            first_seen.setdefault(prompt.shared, number)
        return sorted(range(len(prompts)), key=lambda n: (first_seen[prompts[n].shared], -len(prompts[n].document), n))

    def _next_feeds(
        self,
        active: list[ActiveDocument],
        waiting: deque[int],
        prompts: Sequence[Prompt],
        counts: Counts,
        forced: Sequence[Sequence[Sequence[int]]] | None,
    ) -> tuple[list[Feed], list[ActiveDocument]]:
        decoding = [a for a in active if a.is_prefilled]
        room = self.settings.step_rows - sum(a.rows for a in decoding)
        entering, feeds = [], []
        for document in [a for a in active if not a.is_prefilled]:
            if room > 0:
                feeds.append(document.prefill_feed(room))
                entering.append(document)
                room -= len(feeds[-1].ids)
        while waiting and (room > 0 or not (decoding or feeds)) and self._admits(active, prompts[waiting[0]]):
            document = self._admit(waiting.popleft(), prompts, counts, forced)
            active.append(document)
            feeds.append(document.prefill_feed(max(1, room)))
            entering.append(document)
            room -= len(feeds[-1].ids)
        if self.settings.draft_tokens:
            self._draft(decoding, self.settings.draft_rows - self.settings.step_rows + room)
        return [*(a.decode_feed() for a in decoding), *feeds], [*decoding, *entering]

    def _draft(self, documents: Sequence[ActiveDocument], room: int) -> None:
        """Guesses what slots go on with, as far as the step has room for more rows at no cost."""
        for document in documents:
            for n in document.live:
                if room <= 0:
                    return
                document.draft(n, min(room, self.settings.draft_tokens))
                room -= len(document.slots[n].drafted)

    def _admits(self, active: Sequence[ActiveDocument], prompt: Prompt) -> bool:
        if not active:
            return True
        slots = sum(len(a.live) for a in active)
        return slots + len(prompt.shared.stubs) <= self.settings.open_slots and self._pool.fits(_cells(prompt))

    def _admit(
        self, number: int, prompts: Sequence[Prompt], counts: Counts, forced: Sequence[Sequence[Sequence[int]]] | None
    ) -> ActiveDocument:
        prompt = prompts[number]
        prefix = self._prefix(prompt.shared, counts)
        ids = prompt.memory_ids
        # Every slot's KV is reserved, so that nothing is ever preempted; terminators and K_max-th tokens are never fed.
        slab, block = self._pool.take(_cells(prompt))
        counts.documents += 1
        counts.slots += len(prompt.shared.stubs)
        counts.prompt_tokens += len(ids)
        allowed = prompt.allowed or [None] * len(prompt.shared.stubs)
        isolated = self.settings.visibility is Visibility.ISOLATED  # what breaks the lockstep changes answers elsewhere
        slots = []
        for n, bound in enumerate(allowed):
            taught = forced[number][n] if forced else None
            limit = self.settings.max_value_tokens if taught is None else len(taught)
            slots.append(Slot(limit, self.stop_ids, taught, bound, skips=isolated))
        return ActiveDocument(number, prompt, prompt.place(self.settings.layout), ids, prefix, slab, block, slots)

    def _prefix(self, shared: SchemaPrompt, counts: Counts) -> Slab:
        slab = self._prefixes.get(shared.prefix)
        if slab is not None:
            counts.cached_tokens += len(shared.prefix)
            return slab
        length = len(shared.prefix)
        slab = Slab(1, max(1, length), self.model.device)
        slab.take()
        started = time.perf_counter()
        for start in range(0, length, self.settings.step_rows):
            line = range(start, min(length, start + self.settings.step_rows))
            ids, zeros = shared.prefix[line.start : line.stop], [0] * len(line)
            cells = slab.append(0, len(line))
            feed = Feed(slab, 0, cells, ids, line, [NO_STUB] * len(line), zeros, line, [0], None, is_prefill=True)
            self._step([feed], counts)
        counts.prefill_seconds += time.perf_counter() - started
        counts.prefix_tokens += length
        self._prefixes.put(shared.prefix, slab)
        return slab

    def _run(self, feeds: Sequence[Feed], owners: Sequence[ActiveDocument], counts: Counts) -> None:
        """Runs one step and hands its logits to the slots that wanted them."""
        logits = self._step(feeds, counts)
        targets: list[tuple[ActiveDocument, Slot]] = []
        for feed, document in zip(feeds, owners, strict=True):
            if feed.is_prefill:
                targets += [(document, slot) for slot in document.take_prefilled(len(feed.ids))]
            else:
                targets += [(document, document.slots[n]) for n in document.live]
                counts.slot_steps += len(document.live)
        counts.steps += any(not f.is_prefill for f in feeds)
        if targets:
            self._emit(targets, logits)

    def _step(self, feeds: Sequence[Feed], counts: Counts) -> Tensor:
        step = make_step(feeds, self.settings.layout, self.settings.visibility, self.model.device, fast=self.fast)
        counts.model_calls += 1
        return self.model.step(step.ids, step.positions, step.plan, step.rows)

    def _emit(self, targets: Sequence[tuple[ActiveDocument, Slot]], logits: Tensor) -> None:
        """Hands each slot its next tokens: the likeliest allowed, or the taught ones.

        logits: [rows, vocabulary], for each slot one row and one more behind each of its drafted ids.
        """
        rows = [_Row(slot, k) for _, slot in targets for k in range(1 + len(slot.drafted))]
        wide = logits if logits.dtype == torch.float64 else logits.float()
        chosen = self._likeliest(rows, self._with_margin(rows, wide))
        if any(row.slot.taught is not None for row in rows):
            override = self.model.tensor([row.taught for row in rows])
            chosen = torch.where(override >= 0, override, chosen)
        logprobs = wide.gather(-1, chosen[:, None])[:, 0] - wide.logsumexp(-1)
        choices = [ChosenId(*pair) for pair in zip(chosen.tolist(), logprobs.tolist(), strict=True)]
        if self.keep_logits:
            choices = [replace(choice, logits=logits[n]) for n, choice in enumerate(choices)]
        start = 0
        for document, slot in targets:
            stop = start + 1 + len(slot.drafted)
            rejected = slot.take(choices[start:stop])
            if rejected:
                document.slab.give_back(document.block, rejected)
            start = stop

    def _with_margin(self, rows: Sequence[_Row], logits: Tensor) -> Tensor:
        """Logits to choose by: what would end a value that nothing was written of yet has to win by the margin."""
        first = [number for number, row in enumerate(rows) if not row.before]
        if not self.settings.absent_margin or not first:
            return logits
        ends = self.model.tensor(sorted(self.stop_ids))
        logits = logits.clone()
        logits[self.model.tensor(first)[:, None], ends] -= self.settings.absent_margin
        return logits

    def _likeliest(self, rows: Sequence[_Row], logits: Tensor) -> Tensor:
        """The likeliest id of each row [n], of those that its slot may write there. logits: [n, vocabulary]."""
        chosen = logits.argmax(-1)
        groups: dict[
            tuple[int, ...], list[int]
        ] = {}  # slots of one document that have written the same share their ids
        for number, row in enumerate(rows):
            if row.slot.allowed is not None:
                groups.setdefault(row.slot.allowed(row.before), []).append(number)
        for ids, same in groups.items():
            where, which = self.model.tensor(same), self.model.tensor(ids)
            chosen[where] = which[logits[where[:, None], which].argmax(-1)]
        return chosen


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of logits: what comes behind all that `slot` has written and the first `drafted` ids of its draft."""

    slot: Slot
    drafted: int

    @property
    def before(self) -> list[int]:
        return self.slot.ids + self.slot.drafted[: self.drafted]

    @property
    def taught(self) -> int:
        """The id to write whatever the logits say; -1 where the model decides."""
        return -1 if self.slot.taught is None else self.slot.taught[len(self.slot.ids) + self.drafted]


def _count(slots: Sequence[Slot], counts: Counts) -> None:
    for slot in slots:
        counts.generated_tokens += len(slot.ids)
        counts.forced_tokens += slot.forced
        counts.decode_rows += slot.fed
        counts.drafted_tokens += slot.guessed
        counts.accepted_tokens += slot.accepted


def _cells(prompt: Prompt) -> int:
    """Tokens whose KV a document may come to hold behind its prefix."""
    return len(prompt.memory_ids) + len(prompt.shared.stubs) * (prompt.max_value_tokens - 1)
