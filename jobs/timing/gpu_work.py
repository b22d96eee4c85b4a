"""What `gpu.py` measures: random models and documents, HPD against its oracle, HPD and AR against the clock."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from hpd_core.decode import Decoder
from hpd_core.generation import padded
from hpd_core.model import Model
from hpd_core.prompt import Prompt, SchemaPrompt
from hpd_core.rows import Counts
from hpd_core.schema import Attribute, Schema
from hpd_core.serial import decode_serial
from hpd_core.settings import DecodeSettings
from hpd_core.slots import SlotTokens
from pipeline.shapes import ModelShape

SMALL = ModelShape("small", "made up", "", 256, 512, 4, 8, 4, 32, 1024, False, 0)
TINY = replace(SMALL, name="tiny", hidden=32, intermediate=64, layers=2, heads=4, kv_heads=2, head_dim=8, vocabulary=64)
KEY = 3
_STOP = frozenset({0})  # a random id is never 0: values are as long as they are told to be
#: Runs with CUDA graphs before one that counts: shapes are seen in the first and recorded in the second.
_SEEN_AND_RECORDED = 2


@dataclass(frozen=True, slots=True)
class GpuScript:
    """documents of `text` tokens after a prefix of `prefix`, with `attributes` values of `value` tokens each."""

    documents: int
    text: int
    prefix: int
    attributes: int
    value: int
    batches: tuple[int, ...]
    repeat: int
    step_documents: tuple[int, ...]
    step_value: int

    @property
    def settings(self) -> DecodeSettings:
        return DecodeSettings(max_value_tokens=max(24, self.value), tokens_per_step=4096, max_slots=4096)

    def prompts(self, vocabulary: int, seed: int = 0) -> list[Prompt]:
        draw = random.Random(seed)

        def ids(length: int) -> tuple[int, ...]:
            return tuple(draw.randrange(1, vocabulary) for _ in range(length))

        schema = Schema("s", tuple(Attribute(f"a{n}") for n in range(self.attributes)))
        shared = SchemaPrompt(schema, ids(self.prefix), (), tuple(ids(KEY) for _ in range(self.attributes)))
        lengths = [max(1, self.text * (50 + draw.randrange(100)) // 100) for _ in range(self.documents)]
        return [Prompt(shared, ids(length), self.settings.max_value_tokens) for length in lengths]


FULL = GpuScript(
    documents=128,
    text=96,
    prefix=128,
    attributes=12,
    value=5,
    batches=(8, 32),
    repeat=3,
    step_documents=(1, 8, 32, 128),
    step_value=17,
)
FEW = GpuScript(
    documents=4, text=9, prefix=7, attributes=3, value=3, batches=(2,), repeat=1, step_documents=(1, 4), step_value=4
)


def random_model(shape: ModelShape, dtype: torch.dtype, device: torch.device) -> Model:
    """Qwen3 of the shape with random weights, made where it is to run."""
    config = Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=4096,
        initializer_range=0.1 if shape.layers <= SMALL.layers else 0.02,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    with device:
        return Model(AutoModelForCausalLM.from_config(config, dtype=dtype))


@dataclass(frozen=True, slots=True)
class Check:
    """A model, prompts, and what the oracle writes to them."""

    model: Model
    settings: DecodeSettings
    stop: frozenset[int]
    prompts: Sequence[Prompt]
    expected: Sequence[Sequence[SlotTokens]]

    @classmethod
    def of(cls, model: Model, plan: GpuScript) -> Check:
        vocabulary = model.hf.config.vocab_size
        settings = replace(plan.settings, max_value_tokens=8, tokens_per_step=64)
        prompts = [replace(prompt, max_value_tokens=8) for prompt in plan.prompts(vocabulary, seed=1)]
        stop = frozenset(range(0, vocabulary, 5))
        return cls(model, settings, stop, prompts, [decode_serial(model, p, settings, stop) for p in prompts])

    def facts(self, *, graphs: bool) -> dict[str, Any]:
        """HPD against the oracle, free and teacher-forced. agreement: share of tokens that both choose given the
        oracle's. worst: largest difference of logits over the largest logit of its document. recorded: shapes that were
        replayed from CUDA graphs; None where there were to be none."""
        decoder = Decoder(self.model, self.settings, self.stop, keep_logits=True, graphs=graphs)
        for _ in range(_SEEN_AND_RECORDED if graphs else 0):
            decoder.decode(self.prompts, Counts())
        free = decoder.decode(self.prompts, Counts())
        taught = [[slot.ids for slot in slots] for slots in self.expected]
        for _ in range(_SEEN_AND_RECORDED if graphs else 0):
            decoder.decode(self.prompts, Counts(), taught)
        forced = decoder.decode(self.prompts, Counts(), taught)
        tokens = same = slots_same = slots = 0
        worst = 0.0
        for found, others, truth in zip(free, forced, self.expected, strict=True):
            largest = max(1.0, max(float(_logits(slot).abs().max()) for slot in truth))
            for one, other, real in zip(found, others, truth, strict=True):
                ours, theirs = _logits(other), _logits(real)
                slots, slots_same = slots + 1, slots_same + (one.ids == real.ids)
                tokens += len(real.ids)
                same += int((ours.argmax(-1).cpu() == torch.tensor(real.ids)).sum())
                worst = max(worst, float((ours.double() - theirs.double()).abs().max()) / largest)
        return {
            "tokens": tokens,
            "agreement": same / tokens,
            "slots": slots,
            "equal_slots": slots_same,
            "worst": worst,
            "recorded": decoder.recorded if graphs else None,
        }


def _logits(slot: SlotTokens) -> torch.Tensor:
    assert slot.logits is not None  # both decoders were told to keep them
    return slot.logits


@dataclass(frozen=True, slots=True)
class GpuEngine:
    """run: writes all documents. warm: runs that do not count. recorded: how many shapes are replayed from CUDA graphs;
    None where there are to be none."""

    run: Callable[[], None]
    warm: int = 1
    recorded: Callable[[], int] | None = None


def timed(engine: GpuEngine, repeat: int, device: torch.device) -> float:
    """Median seconds of a run after those that are not counted."""
    seconds = []
    for number in range(engine.warm + repeat):
        wait(device)
        started = time.perf_counter()
        engine.run()
        wait(device)
        if number >= engine.warm:
            seconds.append(time.perf_counter() - started)
    return median(seconds)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def hpd(model: Model, plan: GpuScript, prompts: Sequence[Prompt], *, graphs: bool) -> GpuEngine:
    decoder = Decoder(model, plan.settings, _STOP, graphs=graphs)
    forced = [[_value(model, plan.value)] * plan.attributes for _ in prompts]

    def run() -> None:
        decoder.decode(prompts, Counts(), forced)

    return GpuEngine(run, 1 + graphs, (lambda: decoder.recorded) if graphs else None)


def _value(model: Model, length: int) -> list[int]:
    return [1 + n % (model.hf.config.vocab_size - 1) for n in range(length)]


def steps(model: Model, plan: GpuScript, documents: int) -> dict[str, float]:
    """Milliseconds of one step without prefill, one row for each slot of `documents` documents, with CUDA graphs and
    without, and how many shapes were recorded. Seconds of the host, planning included; median of the plan's repeats,
    after two that are not counted, in which shapes are seen and recorded."""
    prompts = replace(plan, documents=documents).prompts(model.hf.config.vocab_size)
    forced = [[_value(model, plan.step_value)] * plan.attributes for _ in prompts]
    found: dict[str, float] = {}
    for graphs in (True, False):
        decoder = Decoder(model, plan.settings, _STOP, graphs=graphs)
        took = []
        for _ in range(_SEEN_AND_RECORDED + plan.repeat):
            counts = Counts()
            decoder.decode(prompts, counts, forced)
            took.append(1000 * counts.decode_seconds / counts.steps)
        found["graphs" if graphs else "none"] = median(took[_SEEN_AND_RECORDED:])
        if graphs:
            found["recorded"] = decoder.recorded
    return found


@torch.inference_mode()
def generate(model: Model, plan: GpuScript, prompts: Sequence[Prompt], batch: int, cache: str) -> None:
    """Keys and values of every document one after another, the first key apart, which stands in the prompt."""
    new = plan.attributes * (plan.value + KEY) - KEY
    texts = sorted(((*p.shared.prefix, *p.document, *p.shared.stubs[0]) for p in prompts), key=len)
    widest = len(texts[-1])
    with model.native_attention("sdpa") as hf:
        for start in range(0, len(texts), batch):
            # A static cache is compiled for its width: all batches have one, which costs padding.
            rows = texts[start : start + batch] + ([(0,) * widest] if cache == "static" else [])
            ids, real = padded(rows, 0, model.device)
            ids, real = ids[:batch], real[:batch]
            hf.generate(
                input_ids=ids,
                attention_mask=real,
                do_sample=False,
                min_new_tokens=new,
                max_new_tokens=new,
                eos_token_id=None,
                pad_token_id=0,
                cache_implementation=cache or None,
            )


def engines(model: Model, plan: GpuScript, prompts: Sequence[Prompt]) -> dict[str, GpuEngine]:
    found = {
        "hpd": hpd(model, plan, prompts, graphs=True),
        "hpd, no graphs": hpd(model, plan, prompts, graphs=False),
    }
    for cache in ("", "static"):
        for batch in plan.batches:
            name = f"ar, batch {batch}{', static cache' if cache else ''}"
            found[name] = GpuEngine(partial(generate, model, plan, prompts, batch, cache))
    return found
