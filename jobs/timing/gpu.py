"""One prepared script for a borrowed GPU: `python -m jobs.timing.gpu --output out/gpu`, or `make gpu`. Under 8 minutes.

Random weights in published shapes and random ids, so that nothing is downloaded: what is measured is speed and whether
decoders agree, never quality. Four parts, each left out with its reason where it fails or time runs out:

1. oracle: HPD against the serial oracle in float32, token for token, on a small model of the same family, without CUDA
   graphs and replayed from them.
2. agreement: the same in bfloat16, teacher-forced, on the smallest shape: the share of tokens that both choose. Random
   weights have more near-ties than trained ones, so that it is rather too low.
3. speed: HPD and transformers' `generate` (batches of 8 and 32, with a growing and with a static cache, which
   transformers compiles and records as CUDA graphs on a GPU) write values of one fixed length on the same documents;
   HPD with and without CUDA graphs.
4. steps: how long one HPD step without prefill takes, by its rows, with and without CUDA graphs.

Beside each figure with CUDA graphs stands how many shapes were recorded: without any it is one without.

`--tiny` takes shapes of a few thousand weights, for a smoke test on a CPU. Its numbers mean nothing.
"""

from __future__ import annotations

import gc
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from jobs.timing.gpu_report import WITH_GRAPHS, Report
from jobs.timing.gpu_work import FEW, FULL, SMALL, TINY, Check, GpuScript, engines, random_model, steps, timed
from pipeline.shapes import ModelShape, model_shapes

SHAPES = ("qwen3-1.7b", "qwen3-8b")


def main(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for gpu.json and gpu.md.")],
    device: Annotated[str, typer.Option(help="cuda:0, or cpu with --tiny.")] = "cuda:0",
    tiny: Annotated[bool, typer.Option("--tiny", help="Tiny shapes on any device: a smoke test.")] = False,
    seconds: Annotated[float, typer.Option(help="After so long nothing is begun; 90 more, and a part stops.")] = 360.0,
) -> None:
    """Oracle equality in float32, agreement in bfloat16, HPD and AR at Qwen3's 1.7B and 8B shapes."""
    where = torch.device(device)
    if where.type == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("no CUDA device; --tiny --device cpu is a smoke test")
    if where.type != "cuda" and not tiny:
        raise typer.BadParameter("full shapes are for a GPU; add --tiny")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    plan, shapes = (FEW, [TINY]) if tiny else (FULL, [model_shapes()[name] for name in SHAPES])
    device_name = torch.cuda.get_device_name(where) if where.type == "cuda" else "CPU"
    facts: dict[str, Any] = {"device": device_name, "torch": torch.__version__, "tiny": tiny, "speed": {}, "steps": {}}
    report = Report(facts, seconds, output)
    checks = replace(
        plan, documents=min(8, plan.documents), text=min(40, plan.text), attributes=min(6, plan.attributes)
    )
    for part, shape, dtype in (
        ("oracle", TINY if tiny else SMALL, torch.float32),
        ("agreement", shapes[0], torch.bfloat16),
    ):
        _check(report, part, shape, dtype, where, checks)
        _free(where)
    for shape in shapes:
        _measure(report, shape, where, plan)
        _free(where)
    report.write()
    typer.echo((output / "gpu.md").read_text(encoding="utf-8"))


def _check(
    report: Report,
    part: str,
    shape: ModelShape,
    dtype: torch.dtype,
    device: torch.device,
    plan: GpuScript,
) -> None:
    check = report.attempt(part, lambda: Check.of(random_model(shape, dtype, device), plan))
    for graphs in (False, True) if check else ():
        name = part + WITH_GRAPHS * graphs
        found = report.attempt(name, partial(check.facts, graphs=graphs))
        if found:
            about = {"model": shape.name, "dtype": str(dtype).removeprefix("torch.")}
            report.facts[name] = about | found
            report.write()


def _measure(report: Report, shape: ModelShape, device: torch.device, plan: GpuScript) -> None:
    model = report.attempt(shape.name, partial(random_model, shape, torch.bfloat16, device))
    if model is None:
        return
    by_rows = report.facts["steps"][shape.name] = {}
    for documents in plan.step_documents:
        rows = documents * plan.attributes
        took = report.attempt(f"{shape.name}, steps of {rows}", partial(steps, model, plan, documents))
        if took:
            by_rows[str(rows)] = took
            report.write()
    prompts = plan.prompts(shape.vocabulary)
    rates = report.facts["speed"][shape.name] = {}
    for name, engine in engines(model, plan, prompts).items():
        took = report.attempt(f"{shape.name}, {name}", partial(timed, engine, plan.repeat, device))
        if took:
            recorded = engine.recorded and engine.recorded()
            rates[name] = {"docs_per_second": len(prompts) / took, "recorded": recorded}
            report.write()  # what is known is kept, should the device be taken back


def _free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


if __name__ == "__main__":
    typer.run(main)
