"""One engine in one process: loads, warms up, runs when told to. Imports torch: import it where it is needed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from hpd_core.extractor import Extractor, Forced, HyperParallelDecoder
from hpd_core.model import Model
from hpd_core.normal import is_one_line
from hpd_core.prompt import EncodedDocument
from hpd_core.rows import RowStatus, ValueStatus
from hpd_core.schema import Schema
from jobs.decoders import load
from jobs.timing.build import build
from jobs.timing.engines import HPD
from jobs.timing.work import ModelSize, Order, Ready, Traced, Turn
from pipeline.peak import forget_peak, resident_bytes


@dataclass(slots=True)
class Station:
    """A warm engine."""

    order: Order
    loaded: HyperParallelDecoder = field(init=False)
    encoded: list[EncodedDocument] = field(init=False)

    def __post_init__(self) -> None:
        self.loaded = load(self.order.spec, self.order.threads)
        self.encoded = [self.loaded.encoder.encode(document) for document in self.order.documents]
        self._build()
        # One document of each schema, so that a shared prefix is computed before the first timed round and not in it.
        first: dict[Schema, int] = {}
        for number, document in enumerate(self.order.documents):
            first.setdefault(document.schema, number)
        chosen = sorted({*first.values(), *range(min(2, len(self.encoded)))})
        forced = self.order.forced
        self._decoder.extract_encoded([self.encoded[n] for n in chosen], forced and [forced[n] for n in chosen])

    _decoder: Extractor = field(init=False)
    _widest: Any = field(init=False)

    def _build(self) -> None:
        self._decoder, self._widest = build(self.order.engine, self.loaded)

    @property
    def ready(self) -> Ready:
        config = self.loaded.model.hf.config.get_text_config()
        return Ready(
            size=model_size(self.loaded.model),
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            dtype=str(self.loaded.model.dtype).removeprefix("torch."),
            threads=torch.get_num_threads(),
            document_tokens=sum(len(d.ids) for d in self.encoded),
            resident=resident_bytes("VmRSS"),
        )

    def run(self) -> Turn:
        """All documents once, timed."""
        if self.order.cold:
            self._build()
        forget_peak()
        with traced(self.loaded.model) as passes:
            cpu, started = time.process_time(), time.perf_counter()
            counts = self._decoder.extract_encoded(self.encoded, self.order.forced).counts
            seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        whole = Traced(len(passes), sum(tokens for tokens, _ in passes), sum(rows for _, rows in passes))
        room = self.loaded.encoder.settings.step_rows if self.order.engine.name == HPD else 0
        return Turn(seconds, cpu, counts, whole, self._widest(), resident_bytes("VmHWM"), room=room)

    def record(self) -> Forced:
        """What the model itself answers, absent values left out: answers to force on every engine."""
        return [answers_of(row) for row in self._decoder.extract_encoded(self.encoded).rows]


def answers_of(row: Any) -> dict[str, str]:
    """The texts that a row's slots wrote, as answers that can be forced: on one line, absent ones left out."""
    if row.status is RowStatus.ERROR:
        return {}
    texts = {v.attribute: v.raw for v in row.values if v.status is not ValueStatus.ABSENT and v.raw.strip()}
    return {name: text if is_one_line(text) else " ".join(text.split()) for name, text in texts.items()}


def model_size(model: Model) -> ModelSize:
    """Parameters of a dense model; experts that a token does not pass are counted as well."""
    hf = model.hf
    head = hf.get_output_embeddings().weight
    embeddings = {id(p) for p in (head, hf.get_input_embeddings().weight)}
    body = sum(p.numel() for p in hf.parameters() if id(p) not in embeddings)
    return ModelSize(body, head.numel())


@contextmanager
def traced(model: Model) -> Iterator[list[tuple[int, int]]]:
    """(rows, rows with logits) of every forward pass of the model inside, whoever calls it."""
    passes: list[tuple[int, int]] = []

    def note(_: Any, __: Any, keywords: dict[str, Any]) -> None:
        rows = int(keywords["input_ids"].numel())
        keep = keywords.get("logits_to_keep", 0)
        if isinstance(keep, torch.Tensor):
            passes.append((rows, len(keep)))
        else:  # the last so many of each sequence; 0 is all of them
            sequences = int(keywords["input_ids"].shape[0])
            passes.append((rows, min(rows, sequences * keep) if keep else rows))

    handle = model.hf.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield passes
    finally:
        handle.remove()
