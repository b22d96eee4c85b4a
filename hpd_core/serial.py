"""The oracle: one document, one slot at a time, through transformers' own attention and cache.

Slow and obvious on purpose, and independent of `layout.py`, `mask.py`, `attention.py` and `cache.py`: positions are
added up here, masks come from the rule as docs/models.md has it. What Hyper-Parallel Decoding writes must equal it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from hpd_core.constraint import Allowed
from hpd_core.model import Model
from hpd_core.prompt import Prompt
from hpd_core.settings import DecodeSettings, Layout, Visibility
from hpd_core.slots import SlotTokens


@dataclass(frozen=True, slots=True)
class Token:
    """stub: number of the stub it belongs to, None in prefix and document. index: k of a k-th value token, else 0.
    block: number of the document's block that it stands in, None outside the document."""

    id: int
    position: int
    stub: int | None = None
    index: int = 0
    block: int | None = None


def sees(q: Token, x: Token, layout: Layout, visibility: Visibility, window: int | None) -> bool:
    """The visibility rule for two tokens of one prompt, as it is written."""
    if x.position > q.position and (x.block is None or x.block != q.block):
        return False
    if window is not None and abs(q.position - x.position) >= window:
        return False
    if x.stub is None or x.stub == q.stub:
        return True
    if layout is Layout.BRANCHES or q.stub is None or x.stub > q.stub:
        return False
    if x.index == 0:
        return True
    return visibility is Visibility.CAUSAL and x.index <= q.index


def tokens_of(prompt: Prompt, layout: Layout) -> list[Token]:
    """Prefix, document and every stub of a prompt, placed by hand."""
    line = [Token(i, p) for p, i in enumerate(prompt.shared.prefix)]
    start = len(line)
    line += [Token(i, start + n, block=n // prompt.document_block) for n, i in enumerate(prompt.document)]
    start = len(line)
    for number, stub in enumerate(prompt.shared.stubs):
        line += [Token(i, start + k, number) for k, i in enumerate(stub)]
        if layout is Layout.GAPS:
            start += len(stub) + prompt.max_value_tokens
    return line


@torch.inference_mode()
def decode_serial(
    model: Model,
    prompt: Prompt,
    settings: DecodeSettings,
    stop_ids: frozenset[int],
    forced: Sequence[Sequence[int]] | None = None,
) -> list[SlotTokens]:
    """Tokens of every slot of one prompt, with their logits [tokens, vocabulary]."""
    replay = _lockstep if settings.visibility is Visibility.CAUSAL else _one_slot_at_a_time
    with model.native_attention("sdpa") as hf:
        return replay(hf, prompt, settings, stop_ids, forced)


def _one_slot_at_a_time(
    hf: Any, prompt: Prompt, settings: DecodeSettings, stop_ids: frozenset[int], forced: Sequence[Sequence[int]] | None
) -> list[SlotTokens]:
    """`isolated`: what slot n sees is a plain sequence of rising positions, decoded as one, with a KV cache."""
    line = tokens_of(prompt, settings.layout)
    results = []
    for slot in range(len(prompt.shared.stubs)):
        wanted = {None, *range(slot + 1)} if settings.layout is Layout.GAPS else {None, slot}
        seen = [t for t in line if t.stub in wanted]
        cache = DynamicCache()
        writer = _writer(slot, prompt, settings, stop_ids, forced)
        fresh = seen
        while True:
            logits = _forward(hf, fresh, seen, settings, cache)[-1]
            writer.write(logits)
            if writer.done:
                break
            fresh = [Token(writer.ids[-1], seen[-1].position + 1, slot, len(writer.ids))]
            seen = [*seen, *fresh]
        results.append(writer.result())
    return results


def _lockstep(
    hf: Any, prompt: Prompt, settings: DecodeSettings, stop_ids: frozenset[int], forced: Sequence[Sequence[int]] | None
) -> list[SlotTokens]:
    """`causal`: all slots of the document side by side, everything computed anew at every step."""
    line = tokens_of(prompt, settings.layout)
    writers = [_writer(n, prompt, settings, stop_ids, forced) for n in range(len(prompt.shared.stubs))]
    last = {n: max(i for i, t in enumerate(line) if t.stub == n) for n in range(len(writers))}
    while not all(w.done for w in writers):
        logits = _forward(hf, line, line, settings, None)
        for number, writer in enumerate(writers):
            if writer.done:
                continue
            writer.write(logits[last[number]])
            if not writer.done:
                here = line[last[number]]
                line.append(Token(writer.ids[-1], here.position + 1, number, len(writer.ids)))
                last[number] = len(line) - 1
    return [w.result() for w in writers]


def _writer(
    slot: int,
    prompt: Prompt,
    settings: DecodeSettings,
    stop_ids: frozenset[int],
    forced: Sequence[Sequence[int]] | None,
) -> _Writer:
    allowed = prompt.allowed[slot] if prompt.allowed else None
    return _Writer(settings, stop_ids, forced[slot] if forced else None, allowed)


class _Writer:
    def __init__(
        self,
        settings: DecodeSettings,
        stop_ids: frozenset[int],
        forced: Sequence[int] | None,
        allowed: Allowed | None,
    ) -> None:
        self.limit = settings.max_value_tokens if forced is None else len(forced)
        self.margin = settings.absent_margin
        self.stop_ids, self.forced, self.allowed = stop_ids, forced, allowed
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.logits: list[Tensor] = []

    def write(self, logits: Tensor) -> None:
        """One id after the other, whatever is forced: none is skipped here."""
        if self.forced is not None:
            token = self.forced[len(self.ids)]
        elif self.allowed is not None:
            choices = self.allowed(self.ids)
            token = max(choices, key=lambda i: self._score(logits, i))
            if len(choices) == 1 and self.allowed.may_force:
                self.ids.append(token)
                self.logprobs.append(0.0)
                return
        else:
            token = int(logits.argmax())
            if self.margin and not self.ids:
                token = max(range(len(logits)), key=lambda i: self._score(logits, i))
        wide = logits if logits.dtype == torch.float64 else logits.float()
        self.ids.append(token)
        self.logprobs.append(float(torch.log_softmax(wide, -1)[token]))
        self.logits.append(logits)

    def _score(self, logits: Tensor, i: int) -> float:
        """What an id is chosen by: an end must win by the margin where it would be all that is written."""
        return float(logits[i]) - (self.margin if i in self.stop_ids and not self.ids else 0.0)

    @property
    def done(self) -> bool:
        return bool(self.ids) and (self.ids[-1] in self.stop_ids or len(self.ids) == self.limit)

    def result(self) -> SlotTokens:
        logits = torch.stack(self.logits) if self.logits else None
        truncated = self.ids[-1] not in self.stop_ids
        forced = len(self.ids) - len(self.logits)
        return SlotTokens(tuple(self.ids), tuple(self.logprobs), truncated, logits, forced)


def _forward(hf: Any, fresh: Sequence[Token], seen: Sequence[Token], settings: DecodeSettings, cache: Any) -> Tensor:
    """Logits [fresh, vocabulary] of `fresh`, the last tokens of `seen`."""
    device = hf.device
    masks = dict(_masks(hf.config.get_text_config(), fresh, seen, settings, hf.dtype, device))
    result = hf(
        input_ids=torch.tensor([[t.id for t in fresh]], device=device),
        position_ids=torch.tensor([[t.position for t in fresh]], device=device),
        attention_mask=next(iter(masks.values())) if len(masks) == 1 else masks,
        cache=cache,
        use_cache=cache is not None,
    )
    logits: Tensor = result.logits[0]
    return logits


def _masks(
    config: Any,
    fresh: Sequence[Token],
    seen: Sequence[Token],
    settings: DecodeSettings,
    dtype: torch.dtype,
    device: Any,
) -> Iterator[tuple[str, Tensor]]:
    """One additive mask [1, 1, fresh, seen] per kind of layer, as transformers' models take them ready-made."""
    window = getattr(config, "sliding_window", None)
    kinds = list(dict.fromkeys(getattr(config, "layer_types", None) or [""]))
    for kind in kinds:
        near = window if kind in ("", "sliding_attention") else None
        shown = [[sees(q, x, settings.layout, settings.visibility, near) for x in seen] for q in fresh]
        mask = torch.zeros(len(fresh), len(seen), dtype=dtype)
        mask.masked_fill_(~torch.tensor(shown), float("-inf"))
        yield kind, mask[None, None].to(device)
