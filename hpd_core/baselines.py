"""What people run today, through transformers' own `generate`: the yardsticks of every benchmark.

They get the same token ids, parser, typing and counting as Hyper-Parallel Decoding, so that a comparison compares
decoders and nothing else:

- `ArDecoder`: one prompt per document, every attribute written one after another, keys included; batched, or alone with
  prompt-lookup drafts.
- `PerAttributeDecoder`: one prompt per document and attribute, batched.
- `CachedPerAttributeDecoder`: the same, with the KV of the shared prefix and of the document computed once.

`continuous.py` has the first two through transformers' continuous batching.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from hpd_core.extractor import Forced, make_row, source_of
from hpd_core.generation import Request, calls_counted, generate_all, padded, write_batch
from hpd_core.model import Model
from hpd_core.prompt import EncodedDocument, PromptEncoder
from hpd_core.reading import Reading, ValueStatus, read
from hpd_core.rows import Counts, Extraction, Row, RowStatus, Value
from hpd_core.schema import Attribute
from hpd_core.settings import ClosedValues, Grounding, SettingsError
from hpd_core.slots import SlotTokens


class Keys(StrEnum):
    """Which attributes an autoregressive answer writes."""

    #: All of them, with the word for absent where there is no value.
    EVERY = "every"
    #: Those that have a value, and an end of text after them. Only where answers are forced: the prompt asks for all.
    PRESENT = "present"


class ArDecoder:
    """Autoregressive decoding: one prompt per document writes `Name: value` for every attribute.

    The prompt ends with the first key that is written, as every slot of HPD starts with its own: without it a small
    model without fine-tuning starts to talk about the task, and hardly ever answers it.

    batch_size: documents per batch, sorted by length and padded on the left. lookup: draft tokens looked up in the
    prompt (transformers allows it at batch 1 only); 0 is off.
    """

    def __init__(
        self, model: Model, encoder: PromptEncoder, *, batch_size: int = 8, lookup: int = 0, keys: Keys = Keys.EVERY
    ) -> None:
        if lookup and batch_size != 1:
            raise ValueError(
                f"prompt lookup needs batch_size 1, not {batch_size}: transformers drafts for one sequence"
            )
        _refuse_constraint(encoder)
        self.model, self.encoder, self.batch_size, self.lookup, self.keys = model, encoder, batch_size, lookup, keys

    def extract_encoded(self, documents: Sequence[EncodedDocument], forced: Forced | None = None) -> Extraction:
        if self.keys is Keys.PRESENT and forced is None:
            raise SettingsError("present keys only: needs forced answers, the prompt asks for every key")
        asked = [self._asked(d, forced[n] if forced is not None else None) for n, d in enumerate(documents)]
        pairs = zip(documents, asked, strict=True)
        requests = [self._request(d, a, forced[n] if forced is not None else None) for n, (d, a) in enumerate(pairs)]
        counts = Counts(documents=len(documents), slots=sum(len(d.schema) for d in documents))
        texts = self._write(requests, counts)
        rows = [_parse(self.encoder, d, a, ids) for d, a, ids in zip(documents, asked, texts, strict=True)]
        counts.count_values(rows)
        return Extraction(rows, counts)

    def _write(self, requests: Sequence[Request], counts: Counts) -> list[tuple[int, ...]]:
        return generate_all(self.model, self.encoder, requests, self.batch_size, self.lookup, counts)

    def _asked(self, document: EncodedDocument, answers: dict[str, str] | None) -> list[Attribute]:
        """The attributes that are written, in order."""
        if self.keys is Keys.EVERY or answers is None:
            return list(document.schema)
        return [a for a in document.schema if a.name in answers]

    def _request(
        self, document: EncodedDocument, asked: Sequence[Attribute], answers: dict[str, str] | None
    ) -> Request:
        prompt = self.encoder.prompt(document)
        keys = _first_line_stubs(self.encoder, asked)
        limit = sum(map(len, keys[1:])) + len(keys) * prompt.max_value_tokens
        written = None
        if answers is not None:
            absent = self.encoder.template.absent
            values = [self.encoder.value_ids(a, answers.get(a.name, absent)) for a in asked]
            whole = [i for key, value in zip(keys, values, strict=True) for i in (*key, *value)]
            if self.keys is Keys.PRESENT:
                # How many lines there are is not known: the text must be ended, in place of the last newline.
                if whole[-1:] == [self.encoder.newline_id]:
                    whole.pop()
                whole.append(min(self.encoder.eos_ids))
            written = tuple(whole[len(keys[0]) if keys else 0 :])
        shared = prompt.shared.prefix
        ids = (*shared, *prompt.document, *(keys[0] if keys else ()))
        return Request(ids, limit, len(keys), written, len(shared), len(prompt.document))


class PerAttributeDecoder:
    """One prompt per document and attribute, each ending in the attribute's key: a prompt of its own in every batch.

    batch_size: prompts per batch.
    """

    def __init__(self, model: Model, encoder: PromptEncoder, *, batch_size: int = 32) -> None:
        _refuse_constraint(encoder)
        self.model, self.encoder, self.batch_size = model, encoder, batch_size

    def extract_encoded(self, documents: Sequence[EncodedDocument], forced: Forced | None = None) -> Extraction:
        requests: list[Request] = []
        for number, document in enumerate(documents):
            answers = forced[number] if forced is not None else None
            requests += self._requests(document, answers)
        counts = Counts(documents=len(documents), slots=len(requests))
        written = iter(self._write(requests, counts))
        rows = [self._row(d, [next(written) for _ in d.schema]) for d in documents]
        counts.count_values(rows)
        return Extraction(rows, counts)

    def _write(self, requests: Sequence[Request], counts: Counts) -> list[tuple[int, ...]]:
        return generate_all(self.model, self.encoder, requests, self.batch_size, 0, counts)

    def _requests(self, document: EncodedDocument, answers: dict[str, str] | None) -> Iterator[Request]:
        prompt = self.encoder.prompt(document)
        shared = prompt.shared.prefix
        for attribute, stub in zip(document.schema, _first_line_stubs(self.encoder, document.schema), strict=True):
            ids = (*shared, *prompt.document, *stub)
            text = None if answers is None else answers.get(attribute.name, self.encoder.template.absent)
            value = None if text is None else tuple(self.encoder.value_ids(attribute, text))
            yield Request(ids, prompt.max_value_tokens, 1, value, len(shared), len(prompt.document))

    def _row(self, document: EncodedDocument, slots: Sequence[tuple[int, ...]]) -> Row:
        stop_ids = self.encoder.stop_ids
        tokens = [SlotTokens(ids, (0.0,) * len(ids), ids[-1] not in stop_ids) for ids in slots]
        return make_row(self.encoder, document, tokens)


class CachedPerAttributeDecoder(PerAttributeDecoder):
    """The same prompts, with what they share computed once: the prefix per schema and decoder, the document per batch.

    What an engine with prefix caching does, through transformers' public `DynamicCache`: the prefix's KV is copied for
    the documents of a batch, their texts are prefilled onto it, and each row of the batch continues a copy of its
    document. Prefixes are kept between calls.
    """

    def __init__(self, model: Model, encoder: PromptEncoder, *, batch_size: int = 32) -> None:
        super().__init__(model, encoder, batch_size=batch_size)
        self._prefixes: dict[tuple[int, ...], DynamicCache] = {}

    @torch.inference_mode()
    def _write(self, requests: Sequence[Request], counts: Counts) -> list[tuple[int, ...]]:
        written: dict[int, tuple[int, ...]] = {}
        with self.model.native_attention("sdpa") as hf, calls_counted(hf, counts):
            for prefix, batch in self._batches(requests):
                rows = [number for numbers in batch.values() for number in numbers]
                owners = [place for place, numbers in enumerate(batch.values()) for _ in numbers]
                texts = [text[len(prefix) :] for text in batch]
                cache, ids, real = self._prefilled(hf, prefix, texts, counts)
                cache.batch_select_indices(torch.tensor(owners, device=hf.device))
                keys = [requests[n].ids[requests[n].prefix + requests[n].document :] for n in rows]
                stubs, real_stubs = padded(keys, min(self.encoder.eos_ids), hf.device)
                whole = torch.cat([ids[owners], stubs], 1), torch.cat([real[owners], real_stubs], 1)
                chosen = [requests[n] for n in rows]
                written.update(
                    zip(rows, write_batch(hf, self.encoder, chosen, *whole, counts, cache=cache), strict=True)
                )
                counts.prompt_tokens += sum(map(len, keys))
        counts.cached_tokens += sum(len(r.ids) for r in requests) - counts.prompt_tokens - counts.prefix_tokens
        return [written[n] for n in range(len(requests))]

    def _batches(
        self, requests: Sequence[Request]
    ) -> Iterator[tuple[tuple[int, ...], dict[tuple[int, ...], list[int]]]]:
        """(prefix, {prefix + document: its requests}), documents of like length and one prefix together."""
        documents: dict[tuple[int, ...], dict[tuple[int, ...], list[int]]] = {}
        for number, request in enumerate(requests):
            shared, text = request.ids[: request.prefix], request.ids[: request.prefix + request.document]
            documents.setdefault(shared, {}).setdefault(text, []).append(number)
        for prefix, group in documents.items():
            batch: dict[tuple[int, ...], list[int]] = {}
            for text, numbers in sorted(group.items(), key=lambda item: len(item[0])):
                if batch and sum(map(len, batch.values())) + len(numbers) > self.batch_size:
                    yield prefix, batch
                    batch = {}
                batch[text] = numbers
            yield prefix, batch

    def _prefilled(
        self, hf: Any, prefix: tuple[int, ...], texts: Sequence[tuple[int, ...]], counts: Counts
    ) -> tuple[DynamicCache, Tensor, Tensor]:
        """The KV of prefix and documents, their ids and which are real (both [documents, prefix + longest]).

        Documents are padded between prefix and text: positions are counted over real tokens.
        """
        if prefix not in self._prefixes:
            self._prefixes[prefix] = DynamicCache(config=hf.config)
            if prefix:
                hf(
                    input_ids=torch.tensor([prefix], device=hf.device),
                    cache=self._prefixes[prefix],
                    use_cache=True,
                    logits_to_keep=1,
                )
            counts.prefix_tokens += len(prefix)
        ids, real = padded(texts, min(self.encoder.eos_ids), hf.device)
        line = torch.tensor([prefix], dtype=ids.dtype, device=hf.device).expand(len(texts), -1)
        ids, real = torch.cat([line, ids], 1), torch.cat([torch.ones_like(line), real], 1)
        cache = copy.deepcopy(self._prefixes[prefix])
        if prefix:
            cache.batch_repeat_interleave(len(texts))
        positions = (real.cumsum(-1) - 1).clamp(min=0)[:, len(prefix) :]
        hf(
            input_ids=ids[:, len(prefix) :],
            attention_mask=real,
            position_ids=positions,
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        counts.prompt_tokens += sum(map(len, texts))
        return cache, ids, real


def _refuse_constraint(encoder: PromptEncoder) -> None:
    if encoder.settings.grounding is Grounding.ENFORCE:
        raise SettingsError("grounding 'enforce': the baselines write freely; compare decoders with 'mark' or 'off'")
    if encoder.settings.closed_values is ClosedValues.LISTED:
        raise SettingsError("closed_values 'listed': the baselines write freely; compare decoders with 'free'")
    if encoder.settings.absent_margin:
        raise SettingsError("absent_margin: the baselines write what is likeliest; compare decoders with 0")


def _first_line_stubs(encoder: PromptEncoder, attributes: Iterable[Attribute]) -> list[tuple[int, ...]]:
    return [encoder.stub(attribute)[0] for attribute in attributes]


def _parse(encoder: PromptEncoder, document: EncodedDocument, asked: Sequence[Attribute], ids: Sequence[int]) -> Row:
    """Lines `Name: value`, as list items or not -> values. The first line of a name counts; a name that is not there is
    absent."""
    text = encoder.decode(ids)
    if asked:
        text = f"{asked[0].name}:{text}"
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
