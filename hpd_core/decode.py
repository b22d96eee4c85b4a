"""Prefill, step loop, stop rule, refill: prompts -> value tokens.

Every step is one forward pass over a flat axis of real tokens: the last token of each live slot, and as much prefill of
waiting documents as fits in `tokens_per_step`. A slot that ends leaves at once, a document whose slots have all ended
frees its KV, and the next one is prefilled in. The schedule is a pure function of the prompts, the settings and the
decoded lengths.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hpd_core.batch import Feed, make_step
from hpd_core.cache import PrefixCache, Slab, SlabPool, block_width
from hpd_core.constraint import Allowed
from hpd_core.layout import NO_STUB, DocumentLayout
from hpd_core.model import Model
from hpd_core.prompt import Prompt, SchemaPrompt
from hpd_core.rows import Counts
from hpd_core.settings import DecodeSettings, SettingsError


@dataclass(frozen=True, slots=True)
class SlotTokens:
    """Decoded tokens of one slot: ids up to and with the terminator, or K_max ids where it is `truncated`.

    logprobs: natural-log probability of each id. logits: [tokens, vocabulary] where they were asked for.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    truncated: bool
    logits: Tensor | None = None

    @property
    def is_finite(self) -> bool:
        return all(map(math.isfinite, self.logprobs))


@dataclass(slots=True)
class _Slot:
    forced: Sequence[int] | None
    allowed: Allowed | None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    done: bool = False


@dataclass(slots=True)
class _Active:
    """A document in flight."""

    number: int
    prompt: Prompt
    layout: DocumentLayout
    ids: Sequence[int]
    prefix: Slab
    slab: Slab
    block: int
    slots: list[_Slot]
    fed: int = 0

    @property
    def is_prefilled(self) -> bool:
        return self.fed == len(self.ids)

    @property
    def live(self) -> list[int]:
        return [n for n, slot in enumerate(self.slots) if not slot.done]


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
        self._pool = SlabPool(model.device)
        bound = settings.kv_bytes
        self._kv_cells = None if bound is None else bound // model.kv_bytes_per_token

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
            self._pool = SlabPool(self.model.device)  # out of memory, say: the next call starts with no block taken
            raise

    def _decode(
        self, prompts: Sequence[Prompt], counts: Counts, forced: Sequence[Sequence[Sequence[int]]] | None
    ) -> list[list[SlotTokens]]:
        waiting = deque(self._schedule(prompts))
        active: list[_Active] = []
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
                results[document.number] = [self._finished(slot) for slot in document.slots]
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
        active: list[_Active],
        waiting: deque[int],
        prompts: Sequence[Prompt],
        counts: Counts,
        forced: Sequence[Sequence[Sequence[int]]] | None,
    ) -> tuple[list[Feed], list[_Active]]:
        owners = [a for a in active if a.is_prefilled]
        feeds = [self._decode_feed(a) for a in owners]
        room = self.settings.step_rows - sum(len(f.ids) for f in feeds)
        for document in [a for a in active if not a.is_prefilled]:
            if room > 0:
                feeds.append(self._prefill_feed(document, room))
                owners.append(document)
                room -= len(feeds[-1].ids)
        while waiting and (room > 0 or not feeds) and self._admits(active, prompts[waiting[0]]):
            document = self._admit(waiting.popleft(), prompts, counts, forced)
            active.append(document)
            feeds.append(self._prefill_feed(document, max(1, room)))
            owners.append(document)
            room -= len(feeds[-1].ids)
        return feeds, owners

    def _admits(self, active: Sequence[_Active], prompt: Prompt) -> bool:
        if not active:
            return True
        slots = sum(len(a.live) for a in active)
        cells = sum(a.slab.columns for a in active) + block_width(_cells(prompt))
        fits = self._kv_cells is None or cells <= self._kv_cells
        return fits and slots + len(prompt.shared.stubs) <= self.settings.open_slots

    def _admit(
        self, number: int, prompts: Sequence[Prompt], counts: Counts, forced: Sequence[Sequence[Sequence[int]]] | None
    ) -> _Active:
        prompt = prompts[number]
        prefix = self._prefix(prompt.shared, counts)
        ids = prompt.memory_ids
        # Every slot's KV is reserved, so that nothing is ever preempted; terminators and K_max-th tokens are never fed.
        slab, block = self._pool.take(_cells(prompt))
        counts.documents += 1
        counts.slots += len(prompt.shared.stubs)
        counts.prompt_tokens += len(ids)
        allowed = prompt.allowed or [None] * len(prompt.shared.stubs)
        slots = [_Slot(forced[number][n] if forced else None, bound) for n, bound in enumerate(allowed)]
        return _Active(number, prompt, prompt.place(self.settings.layout), ids, prefix, slab, block, slots)

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
            self._step([Feed(slab, 0, ids, line, [NO_STUB] * len(line), zeros, [0], None, is_prefill=True)], counts)
        counts.prefill_seconds += time.perf_counter() - started
        counts.prefix_tokens += length
        self._prefixes.put(shared.prefix, slab)
        return slab

    def _prefill_feed(self, document: _Active, room: int) -> Feed:
        start, stop = document.fed, min(len(document.ids), document.fed + room)
        chunk = slice(start, stop)
        return Feed(
            slab=document.slab,
            block=document.block,
            ids=document.ids[chunk],
            positions=document.layout.positions[chunk],
            stubs=document.layout.stubs[chunk],
            indices=[0] * (stop - start),
            wanted=[end - start for end in document.layout.ends if start <= end < stop],
            prefix=document.prefix if document.prefix.used[0] else None,
            is_prefill=True,
        )

    def _decode_feed(self, document: _Active) -> Feed:
        live = document.live
        slots = [document.slots[n] for n in live]
        return Feed(
            slab=document.slab,
            block=document.block,
            ids=[slot.ids[-1] for slot in slots],
            positions=[document.layout.value_position(n, len(document.slots[n].ids)) for n in live],
            stubs=live,
            indices=[len(slot.ids) for slot in slots],
            wanted=range(len(live)),
            prefix=document.prefix if document.prefix.used[0] else None,
            is_prefill=False,
        )

    def _run(self, feeds: Sequence[Feed], owners: Sequence[_Active], counts: Counts) -> None:
        """Runs one step and hands its logits to the slots that wanted them."""
        logits = self._step(feeds, counts)
        targets: list[_Slot] = []
        for feed, document in zip(feeds, owners, strict=True):
            if feed.is_prefill:
                span = range(document.fed, document.fed + len(feed.ids))
                targets += [document.slots[n] for n, end in enumerate(document.layout.ends) if end in span]
                document.fed = span.stop
            else:
                targets += [document.slots[n] for n in document.live]
                counts.decode_rows += len(feed.ids)
        counts.steps += any(not f.is_prefill for f in feeds)
        if targets:
            self._emit(targets, logits)
            counts.generated_tokens += len(targets)

    def _step(self, feeds: Sequence[Feed], counts: Counts) -> Tensor:
        step = make_step(feeds, self.settings.layout, self.settings.visibility, self.model.device, fast=self.fast)
        counts.model_calls += 1
        return self.model.step(step.ids, step.positions, step.plan, step.rows)

    def _emit(self, slots: Sequence[_Slot], logits: Tensor) -> None:
        """Appends one token to each slot: the likeliest allowed, or the forced one. logits: [slots, vocabulary]."""
        wide = logits if logits.dtype == torch.float64 else logits.float()
        chosen = self._likeliest(slots, wide)
        if any(slot.forced is not None for slot in slots):
            picked = [slot.forced[len(slot.ids)] if slot.forced is not None else -1 for slot in slots]
            override = self.model.tensor(picked)
            chosen = torch.where(override >= 0, override, chosen)
        logprobs = wide.gather(-1, chosen[:, None])[:, 0] - wide.logsumexp(-1)
        for row, (slot, token, logprob) in enumerate(zip(slots, chosen.tolist(), logprobs.tolist(), strict=True)):
            slot.ids.append(token)
            slot.logprobs.append(logprob)
            if self.keep_logits:
                slot.logits.append(logits[row])
            last = len(slot.ids) == (len(slot.forced) if slot.forced is not None else self.settings.max_value_tokens)
            slot.done = last or token in self.stop_ids or not math.isfinite(logprob)

    def _likeliest(self, slots: Sequence[_Slot], logits: Tensor) -> Tensor:
        """The likeliest id of each row [slots], of those that the slot may write. logits: [slots, vocabulary]."""
        chosen = logits.argmax(-1)
        rows: dict[tuple[int, ...], list[int]] = {}  # slots of one document that have written the same share their ids
        for row, slot in enumerate(slots):
            if slot.allowed is not None and slot.forced is None:
                rows.setdefault(slot.allowed(slot.ids), []).append(row)
        for ids, same in rows.items():
            where, which = self.model.tensor(same), self.model.tensor(ids)
            chosen[where] = which[logits[where[:, None], which].argmax(-1)]
        return chosen

    def _finished(self, slot: _Slot) -> SlotTokens:
        truncated = slot.ids[-1] not in self.stop_ids
        logits = torch.stack(slot.logits) if slot.logits else None
        return SlotTokens(tuple(slot.ids), tuple(slot.logprobs), truncated, logits)


def _cells(prompt: Prompt) -> int:
    """Tokens whose KV a document may come to hold behind its prefix."""
    return len(prompt.memory_ids) + len(prompt.shared.stubs) * (prompt.max_value_tokens - 1)
