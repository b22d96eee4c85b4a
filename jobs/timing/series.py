"""One benchmark from its plan to its facts: record, start, take turns, sum up."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hpd_core import sizing
from hpd_core.settings import DecoderSpec, Quantization
from jobs.timing.engines import ESSENTIAL, HPD, Engine
from jobs.timing.process import EngineFailed, Fleet, Probe, Roof, Worker
from jobs.timing.rounds import Machine, Measurement, ablation, comparison, measure
from jobs.timing.shapes import Lengths, Shape
from jobs.timing.work import Order, Ready, Turn
from pipeline.job import JobError


@dataclass(frozen=True, slots=True)
class Series:
    """What to measure. repeat: rounds. cold: caches are empty at the start of every run."""

    spec: DecoderSpec
    shape: Shape
    lengths: Lengths
    engines: tuple[Engine, ...]
    repeat: int
    threads: int | None
    cold: bool
    dollars_per_hour: float

    @property
    def is_ablation(self) -> bool:
        return any(engine.without for engine in self.engines)


def run_series(plan: Series, say: Callable[[str], None]) -> dict[str, Any]:
    """All figures, as benchmark.json has them. Raises JobError where HPD or AR cannot run; any other engine that cannot
    start is left out with its reason."""
    plan = _sized(plan, say)
    order = Order(Engine(HPD), plan.spec, plan.threads, plan.shape.documents, None, plan.cold)
    if plan.lengths is Lengths.GOLD:
        order = replace(order, forced=plan.shape.gold)
    if plan.lengths is Lengths.RECORDED:
        say("recording what the model answers")
        order = replace(order, forced=_recorded(order))
    fleet = Fleet(lambda engine: replace(order, engine=engine), len(plan.engines))
    roof = None
    try:
        engines, left_out, ready = _started(plan, fleet, say)
        roof = Worker(Roof(ready.hidden, ready.intermediate, ready.dtype, ready.threads))
        rates: list[float] = []

        def rate() -> None:
            rates.append(roof.ask("rate"))
            say(f"matrix rate: {rates[-1] / 1e9:.1f} GFLOP/s")

        runs = measure(engines, _running(fleet), rate, plan.repeat, say)
        rate()
    finally:
        fleet.close()
        if roof is not None:
            roof.stop()
    machine = Machine(ready.size, tuple(rates), plan.dollars_per_hour)
    measurements = [Measurement(engine, len(plan.shape.documents), tuple(runs[engine])) for engine in engines]
    figures = ablation(measurements, machine) if plan.is_ablation else comparison(measurements, machine)
    return {**_about(plan, machine, ready, fleet.kept), "left_out": left_out, **figures}


def _sized(plan: Series, say: Callable[[str], None]) -> Series:
    """The plan with numbers in place of `auto` settings, the same for all engines."""
    if not plan.spec.settings.is_auto:
        return plan
    try:
        worker = Worker(Probe(plan.spec, plan.threads))
        try:
            measured = worker.ask("measure")
        finally:
            worker.stop()
    except EngineFailed as error:
        raise JobError(f"`auto` settings cannot be measured: {error}") from error
    settings = sizing.decided(plan.spec.settings, measured)
    say(f"measured: {measured}")
    say(f"decided: {sizing.shown(settings)}")
    return replace(plan, spec=replace(plan.spec, settings=settings))


def _recorded(order: Order) -> tuple[dict[str, str], ...]:
    try:
        worker = Worker(order)
    except EngineFailed as error:
        raise JobError(f"{HPD}: {error}") from error
    try:
        return tuple(worker.ask("record"))
    finally:
        worker.stop()


def _started(plan: Series, fleet: Fleet, say: Callable[[str], None]) -> tuple[list[Engine], dict[str, str], Ready]:
    """The engines that can run, why others cannot, and what HPD said when it was ready."""
    engines, left_out, first = [], {}, None
    for engine in plan.engines:
        say(f"starting: {engine.label}")
        try:
            ready = fleet.ready(engine)
        except EngineFailed as error:
            if engine.name in ESSENTIAL:
                raise JobError(f"{engine.label}: {error}") from error
            left_out[engine.label] = str(error)
            continue
        engines.append(engine)
        first = first or ready
    assert first is not None
    return engines, left_out, first


def _running(fleet: Fleet) -> Callable[[Engine], Turn]:
    def run(engine: Engine) -> Turn:
        try:
            outcome: Turn = fleet.run(engine)
        except EngineFailed as error:
            hint = "" if engine.name in ESSENTIAL else f"; --skip {engine.name} leaves it out"
            raise JobError(f"{engine.label}: {error}{hint}") from error
        return outcome

    return run


def _about(plan: Series, machine: Machine, ready: Ready, kept: bool) -> dict[str, Any]:
    kind = "ablations" if plan.is_ablation else "comparison"
    documents = len(plan.shape.documents)
    model = plan.spec.model
    kept_as = "" if model.quantization is Quantization.NONE else f" {model.quantization.value}"
    how = f"{plan.repeat} rounds, {plan.lengths} lengths, {plan.spec.settings.layout}, {model.name}{kept_as}"
    return {
        "kind": kind,
        "heading": f"{plan.shape.name}: {documents} documents, {how}",
        "shape": plan.shape.name,
        "documents": documents,
        "repeated_documents": plan.shape.repeats,
        "rows_left_out": plan.shape.faults,
        "attributes_per_document": sum(len(d.schema) for d in plan.shape.documents) / documents,
        "tokens_per_document": ready.document_tokens / documents,
        "repeat": plan.repeat,
        "lengths": plan.lengths.value,
        "cold": plan.cold,
        "processes": "one per engine, kept" if kept else "one per engine, started for each turn",
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "threads": ready.threads,
            "roof": machine.roof,
            "rates": list(machine.rates),
            "hidden": ready.hidden,
            "intermediate": ready.intermediate,
            "dtype": ready.dtype,
            "body": machine.size.body,
            "head": machine.size.head,
            "dollars_per_hour": plan.dollars_per_hour,
        },
        "spec": plan.spec.as_dict(),
    }
