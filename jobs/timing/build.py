"""Engines by name -> decoders, and HPD with one optimisation less. Imports torch: import it where it is needed.

Each variant is the decoder itself with one setting or one hook changed, and writes the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hpd_core.baselines import ArDecoder, Keys
from hpd_core.batch import Feed, make_step
from hpd_core.call import Call
from hpd_core.continuous import ContinuousArDecoder, ContinuousPerAttributeDecoder
from hpd_core.decode import Decoder
from hpd_core.extractor import Extractor, Forced, HyperParallelDecoder
from hpd_core.prompt import EncodedDocument, Prompt, SchemaPrompt
from hpd_core.rows import Counts
from hpd_core.slots import ActiveDocument, SlotTokens
from jobs.decoders import OneByOne, named
from jobs.timing.engines import HPD, Engine

#: Rows per step of the paper's largest stacked prompt.
PAPER_ROWS = 96


class WatchedDecoder(Decoder):
    """The decoder as it is; notes the most value tokens that one step fed."""

    widest = 0

    def _run(self, feeds: Sequence[Feed], owners: Any, counts: Counts) -> None:
        self.widest = max(self.widest, sum(len(f.ids) for f in feeds if not f.is_prefill))
        super()._run(feeds, owners, counts)


class StaticBatches(WatchedDecoder):
    """No refill: a batch is as many documents as have slots for one full step, and the next one waits for its end."""

    _held = 0  # slots of the batch, those that have ended among them

    def _admits(self, call: Call) -> bool:
        slots = call.asked[call.waiting[0]].slots
        if call.active and self._held + slots > min(self.settings.step_rows, self.settings.open_slots):
            return False
        self._held = slots + (self._held if call.active else 0)
        return True


class PrefillApart(WatchedDecoder):
    """No mixed steps: a step is prefill or decode. It is prefill, of a full step, once half of the rows have ended."""

    def _next_feeds(self, call: Call, enters: bool) -> tuple[list[Feed], list[ActiveDocument]]:
        begun = [a for a in call.active if not a.is_prefilled]
        rows = sum(len(a.live) for a in call.active if a.is_prefilled)
        if not begun and (rows > self.settings.step_rows // 2 or not call.waiting):
            return super()._next_feeds(call, False)
        everybody, call.active = call.active, list(begun)
        found = super()._next_feeds(call, enters)
        call.active = [*everybody, *call.active[len(begun) :]]
        return found


class PrefixEveryTime(WatchedDecoder):
    """No shared prefix: it is the beginning of every document, at the same positions."""

    def decode(
        self, prompts: Sequence[Prompt], counts: Counts, forced: Sequence[Sequence[Sequence[int]]] | None = None
    ) -> list[list[SlotTokens]]:
        return super().decode([self._whole(prompt) for prompt in prompts], counts, forced)

    def _whole(self, prompt: Prompt) -> Prompt:
        shared = prompt.shared
        bare = SchemaPrompt(shared.schema, (), shared.suffix, shared.stubs)
        return replace(prompt, shared=bare, document=shared.prefix + prompt.document)


class AllLogits(WatchedDecoder):
    """The head runs on every row of a step."""

    def _forward(self, feeds: Sequence[Feed], counts: Counts) -> Tensor:
        step = make_step(feeds, self.settings.layout, self.settings.visibility, self.model.device, fast=self.fast)
        counts.model_calls += 1
        every = torch.arange(len(step.ids), device=self.model.device)
        return self.model.step(step.ids, step.positions, step.plan, every)[step.rows]


class EachByItself(HyperParallelDecoder):
    """Documents that repeat are decoded again."""

    def _owners(self, documents: Sequence[EncodedDocument], forced: Forced | None) -> list[int]:
        return list(range(len(documents)))


_VARIANTS: dict[str, type[WatchedDecoder]] = {
    "refill": StaticBatches,
    "mixed-steps": PrefillApart,
    "prefix-cache": PrefixEveryTime,
    "last-logits": AllLogits,
}
#: {name: (loaded HPD decoder, keys) -> decoder}: engines that work with forced answers only.
_FORCED_ONLY: dict[str, Callable[[HyperParallelDecoder, int], Extractor]] = {
    "ar-present": lambda hpd, batch: ArDecoder(hpd.model, hpd.encoder, batch_size=batch, keys=Keys.PRESENT),
    "ar-continuous": lambda hpd, _: ContinuousArDecoder(hpd.model, hpd.encoder),
    "ar-present-continuous": lambda hpd, _: ContinuousArDecoder(hpd.model, hpd.encoder, keys=Keys.PRESENT),
    "per-attribute-continuous": lambda hpd, _: ContinuousPerAttributeDecoder(hpd.model, hpd.encoder),
}


def build(engine: Engine, loaded: HyperParallelDecoder) -> tuple[Extractor, Callable[[], int]]:
    """The engine over loaded weights, with empty caches, and what tells its widest decode step (0: not known)."""
    if engine.name == HPD:
        hpd = _hpd(engine.without, loaded)
        one_by_one = engine.batch == 1 or engine.without == "stacking"
        return OneByOne(hpd) if one_by_one else hpd, partial(_widest, hpd)
    make = _FORCED_ONLY.get(engine.name) or named(engine.name)
    return make(loaded, engine.batch), lambda: engine.batch


def _widest(hpd: HyperParallelDecoder) -> int:
    assert isinstance(hpd.decoder, WatchedDecoder)
    return hpd.decoder.widest


def _hpd(without: str, loaded: HyperParallelDecoder) -> HyperParallelDecoder:
    kind = EachByItself if without == "duplicates" else HyperParallelDecoder
    hpd = kind(loaded.model, loaded.encoder)
    settings = loaded.encoder.settings
    if without == "wide-steps":
        settings = replace(settings, tokens_per_step=PAPER_ROWS)
    decoder = _VARIANTS.get(without, WatchedDecoder)
    hpd.decoder = decoder(loaded.model, settings, loaded.encoder.stop_ids, fast=without != "fast-attention")
    return hpd
