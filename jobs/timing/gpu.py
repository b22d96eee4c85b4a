"""One prepared script for a borrowed GPU: `python -m jobs.timing.gpu --output out/gpu`, or `make gpu`. Under 8 minutes.

Random weights in published shapes and random ids, so that nothing is downloaded: what is measured is speed and whether
decoders agree, never quality. Four parts, each left out with its reason where it fails or time runs out:

1. oracle: HPD against the serial oracle in float32, token for token, on a small model of the same family.
2. agreement: the same in bfloat16, teacher-forced, on the smallest shape: the share of tokens that both choose. Random
   weights have more near-ties than trained ones, so that it is rather too low.
3. speed: HPD and transformers' `generate` (batches of 8 and 32, with a growing and with a static cache, which
   transformers compiles and records as CUDA graphs on a GPU) write values of one fixed length on the same documents;
   HPD with and without CUDA graphs.
4. steps: how long one HPD step without prefill takes, by its rows, with and without CUDA graphs.

`--tiny` takes shapes of a few thousand weights, for a smoke test on a CPU. Its numbers mean nothing.
"""

from __future__ import annotations

import gc
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
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
from pipeline.shapes import ModelShape, model_shapes

SHAPES = ("qwen3-1.7b", "qwen3-8b")
_SMALL = ModelShape("small", "made up", "", 256, 512, 4, 8, 4, 32, 1024, False, 0)
_TINY = replace(
    _SMALL, name="tiny", hidden=32, intermediate=64, layers=2, heads=4, kv_heads=2, head_dim=8, vocabulary=64
)
_STOP = frozenset({0})  # a random id is never 0: values are as long as they are told to be
_KEY = 3


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
        shared = SchemaPrompt(schema, ids(self.prefix), (), tuple(ids(_KEY) for _ in range(self.attributes)))
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
        initializer_range=0.1 if shape.layers <= _SMALL.layers else 0.02,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    with device:
        return Model(AutoModelForCausalLM.from_config(config, dtype=dtype))


def oracle(model: Model, plan: GpuScript) -> dict[str, Any]:
    """HPD against the oracle, free and teacher-forced. agreement: share of tokens that both choose given the oracle's.

    worst: largest difference of logits over the largest logit of its document.
    """
    prompts = plan.prompts(model.hf.config.vocab_size, seed=1)
    settings = replace(plan.settings, max_value_tokens=8, tokens_per_step=64)
    prompts = [replace(prompt, max_value_tokens=8) for prompt in prompts]
    stop = frozenset(range(0, model.hf.config.vocab_size, 5))
    expected = [decode_serial(model, prompt, settings, stop) for prompt in prompts]
    decoder = Decoder(model, settings, stop, keep_logits=True)
    free = decoder.decode(prompts, Counts())
    forced = decoder.decode(prompts, Counts(), [[slot.ids for slot in slots] for slots in expected])
    tokens = same = slots_same = slots = 0
    worst = 0.0
    for found, taught, truth in zip(free, forced, expected, strict=True):
        largest = max(1.0, max(float(_logits(slot).abs().max()) for slot in truth))
        for one, other, real in zip(found, taught, truth, strict=True):
            ours, theirs = _logits(other), _logits(real)
            slots, slots_same = slots + 1, slots_same + (one.ids == real.ids)
            tokens += len(real.ids)
            same += int((ours.argmax(-1).cpu() == torch.tensor(real.ids)).sum())
            worst = max(worst, float((ours.double() - theirs.double()).abs().max()) / largest)
    return {"tokens": tokens, "agreement": same / tokens, "slots": slots, "equal_slots": slots_same, "worst": worst}


def _logits(slot: SlotTokens) -> torch.Tensor:
    assert slot.logits is not None  # both decoders were told to keep them
    return slot.logits


def _checked(shape: ModelShape, dtype: torch.dtype, device: torch.device, plan: GpuScript) -> dict[str, Any]:
    return oracle(random_model(shape, dtype, device), plan)


def timed(run: Callable[[], None], repeat: int, device: torch.device) -> float:
    """Median seconds of a run after one that is not counted."""
    seconds = []
    for number in range(repeat + 1):
        wait(device)
        started = time.perf_counter()
        run()
        wait(device)
        if number:
            seconds.append(time.perf_counter() - started)
    return sorted(seconds)[len(seconds) // 2]


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def run_hpd(model: Model, plan: GpuScript, prompts: Sequence[Prompt], *, graphs: bool) -> Callable[[], None]:
    decoder = Decoder(model, plan.settings, _STOP, graphs=graphs)
    forced = [[_value(model, plan.value)] * plan.attributes for _ in prompts]

    def run() -> None:
        decoder.decode(prompts, Counts(), forced)

    return run


def _value(model: Model, length: int) -> list[int]:
    return [1 + n % (model.hf.config.vocab_size - 1) for n in range(length)]


def step_milliseconds(model: Model, plan: GpuScript, documents: int, *, graphs: bool) -> float:
    """Of one step without prefill, one row for each slot of `documents` documents: median of the plan's repeats, after
    two that are not counted, in which shapes are seen and recorded. Seconds of the host, planning included."""
    decoder = Decoder(model, plan.settings, _STOP, graphs=graphs)
    prompts = replace(plan, documents=documents).prompts(model.hf.config.vocab_size)
    forced = [[_value(model, plan.step_value)] * plan.attributes for _ in prompts]
    found = []
    for _ in range(2 + plan.repeat):
        counts = Counts()
        decoder.decode(prompts, counts, forced)
        found.append(1000 * counts.decode_seconds / counts.steps)
    return sorted(found[2:])[plan.repeat // 2]


def _with_and_without(model: Model, plan: GpuScript, documents: int) -> dict[str, float]:
    return {
        "graphs": step_milliseconds(model, plan, documents, graphs=True),
        "none": step_milliseconds(model, plan, documents, graphs=False),
    }


@torch.inference_mode()
def _generate(model: Model, plan: GpuScript, prompts: Sequence[Prompt], batch: int, cache: str) -> None:
    """Keys and values of every document one after another, the first key apart, which stands in the prompt."""
    new = plan.attributes * (plan.value + _KEY) - _KEY
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


def engines(model: Model, plan: GpuScript, prompts: Sequence[Prompt]) -> dict[str, Callable[[], None]]:
    found = {
        "hpd": run_hpd(model, plan, prompts, graphs=True),
        "hpd, no graphs": run_hpd(model, plan, prompts, graphs=False),
    }
    for cache in ("", "static"):
        for batch in plan.batches:
            name = f"ar, batch {batch}{', static cache' if cache else ''}"
            found[name] = partial(_generate, model, plan, prompts, batch, cache)
    return found


class Report:
    """What was found, and what was left out and why. budget: seconds after which nothing more is begun."""

    def __init__(self, facts: dict[str, Any], budget: float) -> None:
        self.facts = facts | {"left_out": {}}
        self._until = time.perf_counter() + budget

    def attempt(self, name: str, part: Callable[[], Any]) -> Any:
        """The part's result; None where it failed or there is no time left."""
        if time.perf_counter() > self._until:
            self.facts["left_out"][name] = "no time left"
            return None
        try:
            return part()
        except Exception as error:  # the other parts are worth having: the device is lent for minutes
            self.facts["left_out"][name] = f"{type(error).__name__}: {error}".splitlines()[0]
            return None

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "gpu.json").write_text(json.dumps(self.facts, indent=2) + "\n", encoding="utf-8")
        (folder / "gpu.md").write_text(markdown(self.facts), encoding="utf-8")


def markdown(facts: dict[str, Any]) -> str:
    lines = [f"# {facts['device']}, torch {facts['torch']}{', TINY SHAPES: no measurement' * facts['tiny']}", ""]
    for name in ("oracle", "agreement"):
        if found := facts.get(name):
            lines.append(
                f"- {name}, {found['dtype']}, {found['model']}: {100 * found['agreement']:.2f} % of "
                f"{found['tokens']:,} tokens agree; {found['equal_slots']} of {found['slots']} values "
                f"equal; logits differ by up to {found['worst']:.1e}"
            )
    lines += ["", "| model | engine | docs/s | x best AR |", "|---|---|---:|---:|"]
    for model, rates in facts.get("speed", {}).items():
        best = max((rate for name, rate in rates.items() if not name.startswith("hpd")), default=0.0)
        for name, rate in rates.items():
            lines.append(f"| {model} | {name} | {rate:,.2f} | {f'{rate / best:.2f}' if best else '–'} |")
    if facts["steps"]:
        lines += ["", "| model | rows of a step without prefill | ms, CUDA graphs | ms, none |", "|---|---:|---:|---:|"]
    for model, steps in facts["steps"].items():
        for rows, took in steps.items():
            lines.append(f"| {model} | {rows} | {took['graphs']:.2f} | {took['none']:.2f} |")
    lines += ["", *(f"Left out: {name}: {why}" for name, why in facts["left_out"].items()), ""]
    return "\n".join(lines)


def main(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for gpu.json and gpu.md.")],
    device: Annotated[str, typer.Option(help="cuda:0, or cpu with --tiny.")] = "cuda:0",
    tiny: Annotated[bool, typer.Option("--tiny", help="Tiny shapes on any device: a smoke test.")] = False,
    seconds: Annotated[float, typer.Option(help="After so long no further part is begun.")] = 360.0,
) -> None:
    """Oracle equality in float32, agreement in bfloat16, HPD and AR at Qwen3's 1.7B and 8B shapes."""
    where = torch.device(device)
    if where.type == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("no CUDA device; --tiny --device cpu is a smoke test")
    if where.type != "cuda" and not tiny:
        raise typer.BadParameter("full shapes are for a GPU; add --tiny")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    plan, shapes = (FEW, [_TINY]) if tiny else (FULL, [model_shapes()[name] for name in SHAPES])
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else "CPU"
    facts: dict[str, Any] = {"device": name, "torch": torch.__version__, "tiny": tiny, "speed": {}, "steps": {}}
    report = Report(facts, seconds)
    checks = replace(
        plan, documents=min(8, plan.documents), text=min(40, plan.text), attributes=min(6, plan.attributes)
    )
    for part, shape, dtype in (
        ("oracle", _TINY if tiny else _SMALL, torch.float32),
        ("agreement", shapes[0], torch.bfloat16),
    ):
        found = report.attempt(part, partial(_checked, shape, dtype, where, checks))
        if found:
            about = {"model": shape.name, "dtype": str(dtype).removeprefix("torch.")}
            report.facts[part] = about | found
            report.write(output)
        _free(where)
    for shape in shapes:
        model = report.attempt(shape.name, partial(random_model, shape, torch.bfloat16, where))
        if model is None:
            continue
        prompts = plan.prompts(shape.vocabulary)
        steps = report.facts["steps"][shape.name] = {}
        for documents in plan.step_documents:
            rows = documents * plan.attributes
            took = report.attempt(f"{shape.name}, steps of {rows}", partial(_with_and_without, model, plan, documents))
            if took:
                steps[str(rows)] = took
                report.write(output)
        rates = report.facts["speed"][shape.name] = {}
        for engine, run in engines(model, plan, prompts).items():
            took = report.attempt(f"{shape.name}, {engine}", partial(timed, run, plan.repeat, where))
            if took:
                rates[engine] = len(prompts) / took
                report.write(output)  # what is known is kept, should the device be taken back
        del model
        _free(where)
    report.write(output)
    typer.echo((output / "gpu.md").read_text(encoding="utf-8"))


def _free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


if __name__ == "__main__":
    typer.run(main)
