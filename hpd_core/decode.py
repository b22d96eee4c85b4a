"""Prefill, step loop, stop rule, refill: prompts -> value tokens.

Every step is one forward pass over a flat axis of real tokens: what each live slot has written last, and as much
prefill of waiting documents as fits in `tokens_per_step`. A slot that ends leaves at once, a document whose slots have
all ended frees its KV, and the next one is prefilled in. Where a step has few rows, drafts of what slots go on with are
fed along and checked. On a GPU, steps without prefill are replayed, and read while the next one runs. The schedule is
a pure function of the prompts, the settings and the decoded tokens.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from hpd_core.arena import Arena
from hpd_core.batch import Feed, make_step
from hpd_core.cache import PrefixCache, Slab, SlabPool
from hpd_core.choice import Chooser
from hpd_core.flight import Flight
from hpd_core.graphs import GraphRunner
from hpd_core.layout import NO_STUB
from hpd_core.model import Model
from hpd_core.prompt import Prompt, SchemaPrompt
from hpd_core.rows import Counts
from hpd_core.settings import DecodeSettings, SettingsError, Visibility
from hpd_core.slots import ActiveDocument, Slot, SlotTokens

#: Rows of a step with prefill, while others decode, where steps without are replayed: enough work for its launches.
_MIXED_ROWS = 2048
#: Cells of an arena at first, where nothing bounds it.
_CELLS = 16384


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
        graphs: bool | None = None,
    ) -> None:
        """graphs: whether steps without prefill run over buffers of fixed shapes, which a GPU records and replays (see
        graphs.py); None: on a GPU where the settings say so, unless the model is spread over several. They change no
        answer."""
        if settings.is_auto:
            raise SettingsError("a setting is auto: measure first (see hpd_core/sizing.py)")
        self.model = model
        self.settings = settings
        self.stop_ids = stop_ids
        self.fast = fast
        self.keep_logits = keep_logits
        if graphs is None:
            graphs = settings.cuda_graphs and model.device.type == "cuda" and not model.is_spread and fast
        self._with_graphs = graphs
        self._chooser = Chooser(model, stop_ids, settings.absent_margin, keep_logits)
        self._prefixes = PrefixCache(settings.prefix_cache_mib * 2**20)
        bound = settings.kv_bytes
        self._begin(None if bound is None else bound // model.kv_bytes_per_token)

    def _begin(self, cells: int | None) -> None:
        """No block taken. Where slabs share an arena, which a failure may have left half grown, all KV is new."""
        arena: Arena | None = None
        self._graphs: GraphRunner | None = None
        self._flight: Flight | None = None
        if self._with_graphs:
            arena = Arena(_CELLS if cells is None else cells, self.model.device)
            self._graphs = GraphRunner(self.model, arena, self.settings.layout, self.settings.visibility)
            self._prefixes = PrefixCache(self._prefixes.budget)
        self._pool = SlabPool(self.model.device, cells, arena)

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
            self._begin(self._pool.cells)  # out of memory, say: the next call starts afresh
            raise
        finally:
            self._flight = None  # all that it could choose is behind a terminator

    def _decode(
        self, prompts: Sequence[Prompt], counts: Counts, forced: Sequence[Sequence[Sequence[int]]] | None
    ) -> list[list[SlotTokens]]:
        waiting = deque(self._schedule(prompts))
        active: list[ActiveDocument] = []
        results: list[list[SlotTokens]] = [[] for _ in prompts]
        while waiting or active:
            if self._flight is not None and not self._flies_on(active, waiting, prompts):
                started = time.perf_counter()
                self._flight.land(counts)
                self._flight = None
                counts.decode_seconds += time.perf_counter() - started
            else:
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
        decoding = [a for a in active if a.is_prefilled and a.going]
        room = self.settings.step_rows - sum(a.rows for a in decoding)
        entering, feeds = [], []
        for document in [a for a in active if not a.is_prefilled]:
            if room > 0:
                feeds.append(document.prefill_feed(room))
                entering.append(document)
                room -= len(feeds[-1].ids)
        enters = self._enters(active, waiting, prompts)
        while (
            enters and waiting and (room > 0 or not (decoding or feeds)) and self._admits(active, prompts[waiting[0]])
        ):
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

    def _enters(self, active: Sequence[ActiveDocument], waiting: Sequence[int], prompts: Sequence[Prompt]) -> bool:
        """Whether documents that wait may be prefilled in the next step.

        Where steps without prefill are replayed, one with it has to be worth its launches: documents wait until they
        fill it, take a quarter of the open slots, or are the last. Guesses, as long as no GPU has been measured.
        """
        if self._graphs is None or not waiting or not all(a.is_prefilled for a in active):
            return True
        slots, rows = sum(len(a.live) for a in active), sum(a.rows for a in active)
        if not slots:
            return True
        if rows >= self.settings.step_rows or not self._pool.fits(_cells(prompts[waiting[0]])):
            return False
        live = slots
        for number in waiting:
            more = len(prompts[number].shared.stubs)
            if slots + more > self.settings.open_slots:
                return 4 * (slots - live) >= self.settings.open_slots
            slots += more
            rows += len(prompts[number].memory_ids)
            if rows >= min(_MIXED_ROWS, self.settings.step_rows):
                return True
        return True

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
        slab = Slab(1, max(1, length), self.model.device, self._pool.arena)
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
        if self._graphs is not None and not any(f.is_prefill for f in feeds) and self._may_fly(owners):
            counts.model_calls += 1
            slots = [document.slots[n] for document in owners for n in document.going]
            before = self._flight
            self._flight = Flight.launch(self._graphs, feeds, slots, keep_logits=self.keep_logits)
            if before is not None:  # read while this one runs: a slot that has ended leaves one step late
                before.read(counts)
            return
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
            choices = self._chooser.choices([slot for _, slot in targets], logits)
            for (document, slot), chosen in zip(targets, choices, strict=True):
                rejected = slot.take(chosen)
                if rejected:
                    document.slab.give_back(document.block, rejected)

    def _step(self, feeds: Sequence[Feed], counts: Counts) -> Tensor:
        counts.model_calls += 1
        if self._graphs is not None and not any(f.is_prefill for f in feeds):
            logits = self._graphs.step(feeds).logits
            return logits.clone() if self.keep_logits else logits
        step = make_step(feeds, self.settings.layout, self.settings.visibility, self.model.device, fast=self.fast)
        return self.model.step(step.ids, step.positions, step.plan, step.rows)

    def _may_fly(self, documents: Sequence[ActiveDocument]) -> bool:
        """Whether the device alone can choose these documents' next ids. Not under `causal`: a row that is fed behind
        the end of a value would be seen."""
        return (
            self.settings.visibility is Visibility.ISOLATED
            and not self.settings.draft_tokens
            and all(document.slots[n].allowed is None for document in documents for n in document.going)
        )

    def _flies_on(self, active: Sequence[ActiveDocument], waiting: Sequence[int], prompts: Sequence[Prompt]) -> bool:
        """Whether the next step can be planned before the flight's ids are known: it is none with prefill."""
        enters = waiting and self._enters(active, waiting, prompts)
        return not enters and all(a.is_prefilled for a in active) and any(a.going for a in active)


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
