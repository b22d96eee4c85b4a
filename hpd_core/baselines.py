"""What people run today, through transformers' own `generate`: the yardsticks of every benchmark.

They get the same token ids, parser, typing and counting as Hyper-Parallel Decoding, so that a comparison compares
decoders and nothing else:

- `ArDecoder`: one prompt per document, every attribute written one after another, keys included; batched, or alone with
  prompt-lookup drafts.
- `PerAttributeDecoder`: one prompt per document and attribute, batched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from hpd_core.decode import SlotTokens
from hpd_core.extractor import Forced, count_values, make_row, source_of
from hpd_core.model import Model
from hpd_core.prompt import EncodedDocument, PromptEncoder
from hpd_core.reading import Reading, ValueStatus, read
from hpd_core.rows import Counts, Extraction, Row, RowStatus, Value
from hpd_core.schema import Schema
from hpd_core.settings import Grounding, SettingsError


@dataclass(frozen=True, slots=True)
class _Request:
    """One sequence to generate: prompt ids, most new tokens, lines after which it ends, ids forced on it."""

    ids: tuple[int, ...]
    limit: int
    lines: int
    forced: tuple[int, ...] | None = None


class ArDecoder:
    """Autoregressive decoding: one prompt per document writes `Name: value` for every attribute.

    The prompt ends with the first key, as every slot of HPD starts with its own: without it a small model without
    fine-tuning starts to talk about the task, and hardly ever answers it.

    batch_size: documents per batch, sorted by length and padded on the left. lookup: draft tokens looked up in the
    prompt (transformers allows it at batch 1 only); 0 is off.
    """

    def __init__(self, model: Model, encoder: PromptEncoder, *, batch_size: int = 8, lookup: int = 0) -> None:
        if lookup and batch_size != 1:
            raise ValueError(
                f"prompt lookup needs batch_size 1, not {batch_size}: transformers drafts for one sequence"
            )
        _refuse_constraint(encoder)
        self.model, self.encoder, self.batch_size, self.lookup = model, encoder, batch_size, lookup

    def extract_encoded(self, documents: Sequence[EncodedDocument], forced: Forced | None = None) -> Extraction:
        requests = [self._request(d, forced[n] if forced is not None else None) for n, d in enumerate(documents)]
        counts = Counts(documents=len(documents), slots=sum(len(d.schema) for d in documents))
        texts = _generate(self.model, self.encoder, requests, self.batch_size, self.lookup, counts)
        rows = [_parse(self.encoder, d, ids) for d, ids in zip(documents, texts, strict=True)]
        count_values(rows, counts)
        return Extraction(rows, counts)

    def _request(self, document: EncodedDocument, answers: dict[str, str] | None) -> _Request:
        prompt = self.encoder.prompt(document)
        keys = _first_line_stubs(self.encoder, document.schema)
        limit = sum(map(len, keys[1:])) + len(keys) * prompt.max_value_tokens
        written = None
        if answers is not None:
            absent = self.encoder.template.absent
            values = [self.encoder.value_ids(a, answers.get(a.name, absent)) for a in document.schema]
            written = tuple(i for key, value in zip(keys, values, strict=True) for i in (*key, *value))[len(keys[0]) :]
        return _Request((*prompt.shared.prefix, *prompt.document, *keys[0]), limit, len(keys), written)


class PerAttributeDecoder:
    """One prompt per document and attribute, each ending in the attribute's key: a prompt of its own in every batch."""

    def __init__(self, model: Model, encoder: PromptEncoder, *, batch_size: int = 32) -> None:
        _refuse_constraint(encoder)
        self.model, self.encoder, self.batch_size = model, encoder, batch_size

    def extract_encoded(self, documents: Sequence[EncodedDocument], forced: Forced | None = None) -> Extraction:
        requests: list[_Request] = []
        for number, document in enumerate(documents):
            answers = forced[number] if forced is not None else None
            requests += self._requests(document, answers)
        counts = Counts(documents=len(documents), slots=len(requests))
        written = iter(_generate(self.model, self.encoder, requests, self.batch_size, 0, counts))
        rows = [self._row(d, [next(written) for _ in d.schema]) for d in documents]
        count_values(rows, counts)
        return Extraction(rows, counts)

    def _requests(self, document: EncodedDocument, answers: dict[str, str] | None) -> Iterator[_Request]:
        prompt = self.encoder.prompt(document)
        for attribute, stub in zip(document.schema, _first_line_stubs(self.encoder, document.schema), strict=True):
            ids = (*prompt.shared.prefix, *prompt.document, *stub)
            text = None if answers is None else answers.get(attribute.name, self.encoder.template.absent)
            value = None if text is None else tuple(self.encoder.value_ids(attribute, text))
            yield _Request(ids, prompt.max_value_tokens, 1, value)

    def _row(self, document: EncodedDocument, slots: Sequence[tuple[int, ...]]) -> Row:
        stop_ids = self.encoder.stop_ids
        tokens = [SlotTokens(ids, (0.0,) * len(ids), ids[-1] not in stop_ids) for ids in slots]
        return make_row(self.encoder, document, tokens)


def _refuse_constraint(encoder: PromptEncoder) -> None:
    if encoder.settings.grounding is Grounding.ENFORCE:
        raise SettingsError("grounding 'enforce': the baselines write freely; compare decoders with 'mark' or 'off'")


def _first_line_stubs(encoder: PromptEncoder, schema: Schema) -> list[tuple[int, ...]]:
    return [encoder.stub(attribute)[0] for attribute in schema]


def _parse(encoder: PromptEncoder, document: EncodedDocument, ids: Sequence[int]) -> Row:
    """Lines `Name: value`, as list items or not -> values. The first line of a name counts; a name that is not there is
    absent."""
    text = f"{next(iter(document.schema)).name}:{encoder.decode(ids)}"
    whole = ids[-1] in encoder.stop_ids
    lines: dict[str, tuple[str, bool]] = {}
    written = text.split("\n")
    for number, line in enumerate(written):
        name, colon, raw = line.partition(":")
        if colon:
            cut = number == len(written) - 1 and not whole
            lines.setdefault(name.strip(" -*").casefold(), (raw.removeprefix(" "), cut))
    values, source = [], source_of(encoder, document)
    for attribute in document.schema:
        raw, cut = lines.get(attribute.name.casefold(), ("", False))
        read_as = Reading(None, ValueStatus.TRUNCATED) if cut else read(attribute, raw, source)
        # tokens 0, logprob NaN: a value has no tokens of its own in a text that was written in one piece
        values.append(Value(attribute.name, read_as.value, read_as.status, raw, float("nan"), 0, read_as.spans))
    status_of_row = RowStatus.CUT if document.cut else RowStatus.OK
    return Row(document.schema, status_of_row, tuple(values), document_tokens=len(document.ids), text=document.text)


@torch.inference_mode()
def _generate(
    model: Model, encoder: PromptEncoder, requests: Sequence[_Request], batch_size: int, lookup: int, counts: Counts
) -> list[tuple[int, ...]]:
    """New ids of every request, in order. Batches hold neighbours in length, so that padding is small."""
    order = sorted(range(len(requests)), key=lambda n: len(requests[n].ids))
    written: dict[int, tuple[int, ...]] = {}
    with model.native_attention("sdpa") as hf, _calls_counted(hf, counts):
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            batch = [requests[n] for n in chosen]
            before, started = counts.model_calls, perf_counter()
            for number, ids in zip(chosen, _generate_batch(hf, encoder, batch, lookup), strict=True):
                written[number] = ids
            counts.decode_seconds += perf_counter() - started
            counts.steps += counts.model_calls - before - 1  # the first call is the prefill
            counts.prompt_tokens += sum(len(r.ids) for r in batch)
    counts.generated_tokens += sum(map(len, written.values()))
    return [written[n] for n in range(len(requests))]


def _generate_batch(
    hf: Any, encoder: PromptEncoder, batch: Sequence[_Request], lookup: int
) -> Iterator[tuple[int, ...]]:
    width = max(len(r.ids) for r in batch)
    pad = min(encoder.eos_ids)
    ids = torch.tensor([[pad] * (width - len(r.ids)) + list(r.ids) for r in batch], device=hf.device)
    real = torch.tensor([[0] * (width - len(r.ids)) + [1] * len(r.ids) for r in batch], device=hf.device)
    forced = all(r.forced is not None for r in batch)
    processors = LogitsProcessorList([_Forced(width, [r.forced or () for r in batch], pad)] if forced else [])
    ended = _Ended(width, batch, encoder.stop_ids - encoder.eos_ids, encoder.eos_ids)
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
    )
    for row, request in zip(out[:, width:].tolist(), batch, strict=True):
        yield tuple(row[: ended.length(row, request)])


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
        self, width: int, batch: Sequence[_Request], newline_ids: frozenset[int], eos_ids: frozenset[int]
    ) -> None:
        self.width, self.batch = width, batch
        self._newlines, self._eos = newline_ids, eos_ids

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        new = input_ids[:, self.width :].tolist()
        ended = [
            self.length(row, r) < len(row) or self._is_whole(row, r) for row, r in zip(new, self.batch, strict=True)
        ]
        return torch.tensor(ended, device=input_ids.device)

    def length(self, row: Sequence[int], request: _Request) -> int:
        """Ids of `row` that belong to the answer."""
        if request.forced is not None:
            return min(len(row), len(request.forced))
        lines = 0
        for k, token in enumerate(row[: request.limit]):
            lines += token in self._newlines
            if lines == request.lines or token in self._eos:
                return k + 1
        return min(len(row), request.limit)

    def _is_whole(self, row: Sequence[int], request: _Request) -> bool:
        if request.forced is not None:
            return len(row) >= len(request.forced)
        ended_by_token = row[-1] in self._eos or sum(t in self._newlines for t in row) >= request.lines
        return ended_by_token or len(row) >= request.limit


@contextmanager
def _calls_counted(hf: Any, counts: Counts) -> Iterator[None]:
    def count(*_: Any) -> None:
        counts.model_calls += 1

    handle = hf.register_forward_pre_hook(count)
    try:
        yield
    finally:
        handle.remove()
