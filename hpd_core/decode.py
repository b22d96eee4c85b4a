"""Prefill, step loop, stop rule, refill: prompts -> value tokens.

Every step is one forward pass over a flat axis of real tokens: what each live slot has written last, and as much
prefill of waiting documents as fits in `tokens_per_step`. A slot that ends leaves at once, a document whose slots have
all ended frees its KV, and the next one is prefilled in (`admission.py`). Where a step has few rows, drafts of what
slots go on with are fed along and checked. On a GPU, steps without prefill are replayed (`graphs.py`), and read while
the next one runs (`flight.py`). The schedule is a pure function of the prompts, the settings and the decoded tokens.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from hpd_core.admission import Admission
from hpd_core.arena import Arena
from hpd_core.batch import Feed, make_step
from hpd_core.cache import PrefixCache, Slab, SlabPool
from hpd_core.call import Call, Forced
from hpd_core.choice import Chooser
from hpd_core.flight import Flight, may_fly
from hpd_core.graphs import GraphRunner
from hpd_core.layout import NO_STUB
from hpd_core.model import Model
from hpd_core.prompt import Prompt, SchemaPrompt
from hpd_core.rows import Counts
from hpd_core.settings import DecodeSettings, SettingsError, Visibility
from hpd_core.slots import ActiveDocument, Slot, SlotTokens

#: Cells of an arena at first, where nothing bounds it.
_CELLS = 16384
#: Longest shared prefix, in tokens, that a CPU copies in front of each document. A step that reads it where it lies
#: pays, in each layer, for two more products a prefix and their merging; a copy costs a millisecond and its cells.
_COPIED = 128


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
        copies: int | None = None,
    ) -> None:
        """copies: length of the longest shared prefix that is copied in front of each document, where longer ones are
        read where they lie; None: what is fast on the device.

        graphs: whether steps without prefill run over buffers of fixed shapes, which a GPU records and replays (see
        graphs.py); None: on a GPU where the settings say so, unless the model is spread over several. They change no
        answer. Raises SettingsError where they are asked for and cannot be had."""
        if settings.is_auto:
            raise SettingsError("a setting is auto: measure first (see hpd_core/sizing.py)")
        if graphs and (model.is_spread or not fast):
            why = "a model that is spread over several GPUs" if model.is_spread else "the plain twin (fast=False)"
            raise SettingsError(f"graphs=True: {why} is not recorded")
        self.model = model
        self.settings = settings
        self.stop_ids = stop_ids
        self.fast = fast
        self.keep_logits = keep_logits
        if graphs is None:
            graphs = settings.cuda_graphs and model.device.type == "cuda" and not model.is_spread and fast
        self._with_graphs = graphs
        if copies is None:
            copies = _COPIED if fast and not graphs and model.device.type == "cpu" else 0
        self._copies = copies
        self._admission = Admission(settings.step_rows, settings.open_slots)
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
            if cells is None:
                arena = Arena(_CELLS, self.model.device)
            else:
                prefixes = self._prefixes.budget // self.model.kv_bytes_per_token
                arena = Arena(cells + prefixes, self.model.device, is_bound=True)
            self._graphs = GraphRunner(self.model, arena, self.settings.layout, self.settings.visibility)
            self._prefixes = PrefixCache(self._prefixes.budget)
        self._pool = SlabPool(self.model.device, cells, arena)

    @property
    def recorded(self) -> int:
        """Shapes of steps of which there is a CUDA graph now."""
        return 0 if self._graphs is None else self._graphs.recorded

    @torch.inference_mode()
    def decode(self, prompts: Sequence[Prompt], counts: Counts, forced: Forced | None = None) -> list[list[SlotTokens]]:
        """Tokens of every slot of every prompt, in the order given; adds the work to `counts`.

        forced: ids that slot n of document d emits instead of the likeliest ones (teacher forcing); the model still
        computes every logit.
        """
        call = Call(prompts, counts, forced, self._copies)
        try:
            with self.model.as_current():
                while call.waiting or call.active:
                    self._advance(call)
        except BaseException:
            self._begin(self._pool.cells)  # out of memory, say: the next call starts afresh
            raise
        finally:
            self._flight = None  # all that it could choose is behind a terminator
        return call.results

    def _advance(self, call: Call) -> None:
        """One step, or what the last one has chosen where no step can be planned without it."""
        counts, prefixes = call.counts, call.counts.prefill_seconds
        started = time.perf_counter()
        share = 1.0
        enters = self._enters(call)
        if self._flight is not None and not self._flies_on(call, enters):
            self._flight.land(counts)
            self._flight = None
        else:
            feeds, owners = self._next_feeds(call, enters)
            self._run(feeds, owners, counts)
            prefilled = sum(len(f.ids) for f in feeds if f.is_prefill)
            share -= prefilled / sum(len(f.ids) for f in feeds)
        # Prefixes that were fed on the way have counted their own.
        seconds = time.perf_counter() - started - (counts.prefill_seconds - prefixes)
        counts.decode_seconds += seconds * share
        counts.prefill_seconds += seconds * (1 - share)
        call.finish()

    def _enters(self, call: Call) -> bool:
        """Whether documents that wait may be prefilled in the next step."""
        if not call.waiting:
            return False
        if not self._replays or call.is_prefilling:
            return True
        live, rows = call.live, sum(a.rows for a in call.active)
        if live and not self._fits(call):
            return False
        return self._admission.is_worth_a_step(live, rows, (call.asked[n] for n in call.waiting))

    def _flies_on(self, call: Call, enters: bool) -> bool:
        """Whether the next step can be planned before the flight's ids are known: it is none with prefill."""
        return self._replays and not enters and not call.is_prefilling and any(a.going for a in call.active)

    @property
    def _replays(self) -> bool:
        """Whether steps without prefill are replayed."""
        return self._graphs is not None and self._graphs.replays

    def _next_feeds(self, call: Call, enters: bool) -> tuple[list[Feed], list[ActiveDocument]]:
        decoding = [a for a in call.active if a.is_prefilled and a.going]
        room = self.settings.step_rows - sum(a.rows for a in decoding)
        entering, feeds = [], []
        for document in [a for a in call.active if not a.is_prefilled]:
            if room > 0:
                feeds.append(document.prefill_feed(room))
                entering.append(document)
                room -= len(feeds[-1].ids)
        while enters and call.waiting and (room > 0 or not (decoding or feeds)) and self._admits(call):
            document = self._admit(call)
            call.active.append(document)
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

    def _admits(self, call: Call) -> bool:
        """Whether the first document that waits may be taken: always where none is in flight."""
        first = call.asked[call.waiting[0]]
        return not call.active or (self._admission.has_slots(call.live, first) and self._fits(call))

    def _fits(self, call: Call) -> bool:
        """Whether there is room for the KV of the first document that waits, and for its prefix where that is new."""
        number = call.waiting[0]
        prefix = call.prompts[number].shared.prefix
        return self._pool.fits(call.asked[number].cells, 0 if prefix in self._prefixes else max(1, len(prefix)))

    def _admit(self, call: Call) -> ActiveDocument:
        number = call.waiting.popleft()
        prompt, asked, counts = call.prompts[number], call.asked[number], call.counts
        shared = self._prefix(prompt.shared, counts)
        prefix = shared if shared.used[0] else None
        slab, block = self._pool.take(asked.cells)
        if asked.copied:
            slab.copy(block, shared)
            prefix = None
        counts.documents += 1
        counts.slots += asked.slots
        counts.prompt_tokens += asked.rows
        allowed = prompt.allowed or [None] * asked.slots
        isolated = self.settings.visibility is Visibility.ISOLATED  # what breaks the lockstep changes answers elsewhere
        slots = []
        for n, bound in enumerate(allowed):
            taught = call.forced[number][n] if call.forced else None
            limit = self.settings.max_value_tokens if taught is None else len(taught)
            slots.append(Slot(limit, self.stop_ids, taught, bound, skips=isolated))
        layout = prompt.place(self.settings.layout)
        return ActiveDocument(number, prompt, layout, prompt.memory_ids, prefix, slab, block, slots)

    def _prefix(self, shared: SchemaPrompt, counts: Counts) -> Slab:
        slab = self._prefixes.get(shared.prefix)
        if slab is not None:
            counts.cached_tokens += len(shared.prefix)
            return slab
        length = len(shared.prefix)
        self._prefixes.make_room(max(1, length))
        slab = self._pool.take_prefix(length)
        started = time.perf_counter()
        for start in range(0, length, self.settings.step_rows):
            line = range(start, min(length, start + self.settings.step_rows))
            ids, zeros = shared.prefix[line.start : line.stop], [0] * len(line)
            cells = slab.append(0, len(line))
            feed = Feed(slab, 0, cells, ids, line, [NO_STUB] * len(line), zeros, line, [0], None, is_prefill=True)
            self._forward([feed], counts)
        counts.prefill_seconds += time.perf_counter() - started
        counts.prefix_tokens += length
        self._prefixes.put(shared.prefix, slab)
        return slab

    def _run(self, feeds: Sequence[Feed], owners: Sequence[ActiveDocument], counts: Counts) -> None:
        """Runs one step and hands its logits to the slots that wanted them: replayed and read a step late, replayed and
        read at once, or as it comes."""
        graphs = self._graphs
        if graphs is None or not graphs.replays or any(f.is_prefill for f in feeds):
            self._choose(feeds, owners, self._forward(feeds, counts), counts)
            return
        counts.model_calls += 1
        slots = [document.slots[n] for document in owners for n in document.going]
        if may_fly(self.settings, slots):
            before = self._flight
            self._flight = Flight.launch(graphs, feeds, slots, keep_logits=self.keep_logits)
            if before is not None:  # read while this one runs: a slot that has ended leaves one step late
                before.read(counts)
            return
        logits = graphs.step(feeds, logits=True).logits
        self._choose(feeds, owners, logits.clone() if self.keep_logits else logits, counts)

    def _forward(self, feeds: Sequence[Feed], counts: Counts) -> Tensor:
        """Logits [n, vocabulary] of what feeds of any kind want."""
        counts.model_calls += 1
        step = make_step(feeds, self.settings.layout, self.settings.visibility, self.model.device, fast=self.fast)
        return self.model.step(step.ids, step.positions, step.plan, step.rows)

    def _choose(self, feeds: Sequence[Feed], owners: Sequence[ActiveDocument], logits: Tensor, counts: Counts) -> None:
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
