"""The baselines through transformers' continuous batching: paged KV, refill, shared pages.

It is what `generate_batch` does, by its manager, which takes a length per request. There is no teacher forcing, so that
only lengths are forced: a request writes as many tokens as its forced answer has, whatever they are, and never ends
before. The work is the same; the rows that come back are of the answers that were to be written. Runs on CPU with
transformers 5.24; without `num_blocks` it takes and zeroes 60 % of the machine's memory at every start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from hpd_core.baselines import ArDecoder, Keys, PerAttributeDecoder
from hpd_core.generation import Request, calls_counted
from hpd_core.model import Model
from hpd_core.prompt import PromptEncoder
from hpd_core.rows import Counts
from hpd_core.settings import SettingsError

#: Tokens of a page of KV; only whole pages are shared. transformers' own 256 is longer than most prompts here.
_PAGE = 16
#: Most tokens of KV held: 1.5 GB of SmolLM2-135M in float32, more than 100 documents of 300 tokens in flight.
_HELD = 32768
#: Seconds without a token after which the engine counts as stuck.
_PATIENCE = 600.0


class ContinuousArDecoder(ArDecoder):
    """`ArDecoder` with continuous batching. batch_tokens: most tokens of one forward pass."""

    def __init__(
        self, model: Model, encoder: PromptEncoder, *, keys: Keys = Keys.EVERY, batch_tokens: int | None = None
    ) -> None:
        super().__init__(model, encoder, keys=keys)
        self._batch_tokens = batch_tokens or encoder.settings.step_rows

    def _write(self, requests: Sequence[Request], counts: Counts) -> list[tuple[int, ...]]:
        return write_continuously(self.model, self.encoder, requests, self._batch_tokens, counts)


class ContinuousPerAttributeDecoder(PerAttributeDecoder):
    """`PerAttributeDecoder` with continuous batching, whose pages of equal prompt beginnings are shared."""

    def __init__(self, model: Model, encoder: PromptEncoder, *, batch_tokens: int | None = None) -> None:
        super().__init__(model, encoder)
        self._batch_tokens = batch_tokens or encoder.settings.step_rows

    def _write(self, requests: Sequence[Request], counts: Counts) -> list[tuple[int, ...]]:
        return write_continuously(self.model, self.encoder, requests, self._batch_tokens, counts)


def write_continuously(
    model: Model, encoder: PromptEncoder, requests: Sequence[Request], batch_tokens: int, counts: Counts
) -> list[tuple[int, ...]]:
    """The forced ids of every request, after as many were generated.

    Raises SettingsError where nothing is forced (a request cannot end after so many lines), RuntimeError where
    transformers' background thread fails.
    """
    if any(request.forced is None for request in requests):
        raise SettingsError("continuous batching: needs forced answers, it knows no end after so many lines")
    answers = [request.forced or () for request in requests]
    before = counts.model_calls
    started = perf_counter()
    with model.native_attention("sdpa") as hf, calls_counted(hf, counts), _tokens_counted(hf) as fed:
        _run(hf, encoder, requests, answers, batch_tokens)
    counts.decode_seconds += perf_counter() - started
    counts.generated_tokens += sum(map(len, answers))
    written = sum(len(ids) - 1 for ids in answers)
    counts.decode_rows += written
    counts.slot_steps += written
    counts.steps += counts.model_calls - before
    counts.prompt_tokens += sum(fed) - counts.decode_rows
    counts.cached_tokens += sum(len(r.ids) for r in requests) - counts.prompt_tokens
    return answers


@torch.inference_mode()
def _run(
    hf: Any, encoder: PromptEncoder, requests: Sequence[Request], answers: Sequence[Sequence[int]], batch_tokens: int
) -> None:
    longest = max(len(r.ids) + len(a) for r, a in zip(requests, answers, strict=True))
    pages = -(-max(_HELD, longest + batch_tokens) // _PAGE)
    manager = hf.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=min(encoder.eos_ids)),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=_PAGE, num_blocks=pages, max_batch_tokens=batch_tokens
        ),
    )
    manager.start()
    try:
        # As `generate_batch` does: equal beginnings follow each other, so that their pages are found again.
        order = sorted(range(len(requests)), key=lambda n: requests[n].ids, reverse=True)
        for n in order:
            manager.add_request(
                list(requests[n].ids), request_id=str(n), max_new_tokens=len(answers[n]), eos_token_id=-1
            )
        waiting, last = set(range(len(requests))), perf_counter()
        while waiting:
            result = manager.get_result(timeout=1)
            if result is not None:
                last = perf_counter()
                if result.error is not None or len(result.generated_tokens) != len(answers[int(result.request_id)]):
                    raise RuntimeError(f"continuous batching: request {result.request_id}: {result.error or 'cut'}")
                waiting.discard(int(result.request_id))
            elif not manager.is_running() or perf_counter() - last > _PATIENCE:
                raise RuntimeError("continuous batching: transformers' background thread ended or stands still")
    finally:
        manager.stop(block=True, hard_stop=True)


@contextmanager
def _tokens_counted(hf: Any) -> Iterator[list[int]]:
    """Tokens of every forward pass: with shared pages, what was fed is known to the engine alone."""
    fed: list[int] = []

    def count(_: Any, __: Any, keywords: dict[str, Any]) -> None:
        fed.append(int(keywords["input_ids"].numel()))

    handle = hf.register_forward_pre_hook(count, with_kwargs=True)
    try:
        yield fed
    finally:
        handle.remove()
