"""Many prompts through transformers' own `generate`: batching by length, teacher forcing, stop rules, counting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from hpd_core.model import Model
from hpd_core.prompt import PromptEncoder
from hpd_core.rows import Counts


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to generate.

    limit: most new tokens. lines: written lines after which it ends. forced: ids that it writes in place of the
    likeliest ones. prefix, document: how many of `ids` are the schema's shared prefix, and the document after it; the
    rest is the key that the answer follows.
    """

    ids: tuple[int, ...]
    limit: int
    lines: int
    forced: tuple[int, ...] | None = None
    prefix: int = 0
    document: int = 0


@torch.inference_mode()
def generate_all(
    model: Model, encoder: PromptEncoder, requests: Sequence[Request], batch_size: int, lookup: int, counts: Counts
) -> list[tuple[int, ...]]:
    """New ids of every request, in order. Batches hold neighbours in length, so that padding is small."""
    order = sorted(range(len(requests)), key=lambda n: len(requests[n].ids))
    written: dict[int, tuple[int, ...]] = {}
    with model.native_attention("sdpa") as hf, calls_counted(hf, counts):
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            batch = [requests[n] for n in chosen]
            ids, real = padded([r.ids for r in batch], min(encoder.eos_ids), hf.device)
            written.update(zip(chosen, write_batch(hf, encoder, batch, ids, real, counts, lookup=lookup), strict=True))
            counts.prompt_tokens += sum(len(r.ids) for r in batch)
    return [written[n] for n in range(len(requests))]


def padded(sequences: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids padded on the left, and which of them are real: both [sequences, longest]."""
    width = max(map(len, sequences))
    ids = [[pad] * (width - len(s)) + list(s) for s in sequences]
    real = [[0] * (width - len(s)) + [1] * len(s) for s in sequences]
    return torch.tensor(ids, device=device), torch.tensor(real, device=device)


def write_batch(
    hf: Any,
    encoder: PromptEncoder,
    batch: Sequence[Request],
    ids: Tensor,
    real: Tensor,
    counts: Counts,
    *,
    lookup: int = 0,
    cache: Any = None,
) -> list[tuple[int, ...]]:
    """New ids of one batch. ids, real: [batch, width] as `padded` makes them; cache: a transformers cache that holds
    the first columns of `ids` already.

    Adds tokens, steps and seconds to `counts`. A batch feeds what a sequence has written as long as any of its
    sequences goes on; `decode_rows` and `slot_steps` are those that the sequence itself needed.
    """
    width, pad = ids.shape[1], min(encoder.eos_ids)
    forced = all(r.forced is not None for r in batch)
    processors = LogitsProcessorList([_Forced(width, [r.forced or () for r in batch], pad)] if forced else [])
    ended = _Ended(width, batch, encoder.stop_ids - encoder.eos_ids, encoder.eos_ids)
    before, started = counts.model_calls, perf_counter()
    out = hf.generate(
        input_ids=ids,
        attention_mask=real,
        do_sample=False,
        max_new_tokens=max(len(r.forced) if r.forced is not None else r.limit for r in batch),
        eos_token_id=sorted(encoder.eos_ids),
        pad_token_id=pad,
        logits_processor=processors,
        stopping_criteria=StoppingCriteriaList([ended]),
        prompt_lookup_num_tokens=lookup or None,
        **({} if cache is None else {"cache": cache}),
    )
    rows = zip(out[:, width:].tolist(), batch, strict=True)
    written = [tuple(row[: ended.length(row, request)]) for row, request in rows]
    counts.decode_seconds += perf_counter() - started
    steps = counts.model_calls - before - 1  # the first call is the prefill
    fed = sum(len(ids) - 1 for ids in written)  # the last one is never fed
    counts.steps += steps
    counts.generated_tokens += sum(map(len, written))
    counts.decode_rows += fed
    counts.slot_steps += steps if lookup else fed  # transformers looks up for one sequence at a time
    return written


class _Forced(LogitsProcessor):
    """Teacher forcing: leaves one token possible at each step; after the forced ids, padding."""

    def __init__(self, width: int, forced: Sequence[Sequence[int]], pad: int) -> None:
        self.width, self.forced, self.pad = width, forced, pad

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        step = input_ids.shape[1] - self.width
        tokens = [ids[step] if step < len(ids) else self.pad for ids in self.forced]
        only = torch.full_like(scores, float("-inf"))
        return only.scatter_(1, torch.tensor(tokens, device=scores.device)[:, None], 0.0)


class _Ended(StoppingCriteria):
    """Ends a sequence at its forced length, or at an eos id, its number of lines, or its limit."""

    def __init__(
        self, width: int, batch: Sequence[Request], newline_ids: frozenset[int], eos_ids: frozenset[int]
    ) -> None:
        self.width, self.batch = width, batch
        self._newlines, self._eos = newline_ids, eos_ids

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        new = input_ids[:, self.width :].tolist()
        ended = [
            self.length(row, r) < len(row) or self._is_whole(row, r) for row, r in zip(new, self.batch, strict=True)
        ]
        return torch.tensor(ended, device=input_ids.device)

    def length(self, row: Sequence[int], request: Request) -> int:
        """Ids of `row` that belong to the answer."""
        if request.forced is not None:
            return min(len(row), len(request.forced))
        lines = 0
        for k, token in enumerate(row[: request.limit]):
            lines += token in self._newlines
            if lines == request.lines or token in self._eos:
                return k + 1
        return min(len(row), request.limit)

    def _is_whole(self, row: Sequence[int], request: Request) -> bool:
        if request.forced is not None:
            return len(row) >= len(request.forced)
        ended_by_token = row[-1] in self._eos or sum(t in self._newlines for t in row) >= request.lines
        return ended_by_token or len(row) >= request.limit


@contextmanager
def calls_counted(hf: Any, counts: Counts) -> Iterator[None]:
    def count(*_: Any) -> None:
        counts.model_calls += 1

    handle = hf.register_forward_pre_hook(count)
    try:
        yield
    finally:
        handle.remove()
