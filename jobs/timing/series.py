"""One benchmark from its plan to its facts: record, start, take turns, sum up."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpd_core import sizing
from hpd_core.model_spec import ModelSpec, Quantization
from hpd_core.spec import DecoderSpec
from jobs.timing.engines import ESSENTIAL, HPD, Engine
from jobs.timing.peers.environment import python_of
from jobs.timing.process import EngineFailed, ExportWeights, Fleet, Probe, Roof, Worker
from jobs.timing.rounds import Machine, Measurement, ablation, comparison, measure
from jobs.timing.shapes import Lengths, Shape
from jobs.timing.work import Order, PeerPlace, PeerReady, Ready, Turn
from pipeline.job import JobError


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """folder: that holds, or is to hold, the environments of peers. precision: see `work.PeerPlace`."""

    folder: Path = Path()
    precision: str = "float32"


@dataclass(frozen=True, slots=True)
class Series:
    """What to measure. repeat: rounds. cold: caches are empty at the start of every run. peers: how those among the
    engines are run."""

    spec: DecoderSpec
    shape: Shape
    lengths: Lengths
    engines: tuple[Engine, ...]
    repeat: int
    threads: int | None
    cold: bool
    dollars_per_hour: float
    peers: PeerSettings = PeerSettings()

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
    places, missing = _peer_places(plan, say)
    plan = replace(plan, engines=tuple(e for e in plan.engines if e.label not in missing))
    fleet = Fleet(lambda e: replace(order, engine=e, peer=places.get(e.peer)), len(plan.engines))
    roof = None
    try:
        engines, left_out, ready, peers = _started(plan, fleet, say)
        left_out |= missing
        roof = Worker(Roof(ready.hidden, ready.intermediate, ready.dtype, ready.threads))
        rates: list[float] = []

        def rate() -> None:
            rates.append(roof.ask("rate"))
            say(f"matrix rate: {rates[-1] / 1e9:.1f} GFLOP/s")

        runs = measure(engines, _running(fleet, left_out), rate, plan.repeat, say)
        rate()
    finally:
        fleet.close()
        if roof is not None:
            roof.stop()
    machine = Machine(ready.size, tuple(rates), plan.dollars_per_hour)
    measurements = [Measurement(engine, len(plan.shape.documents), tuple(runs[engine])) for engine in runs]
    figures = ablation(measurements, machine) if plan.is_ablation else comparison(measurements, machine)
    about = {**_about(plan, machine, ready, fleet.kept), "left_out": left_out}
    if peers:
        about["peers"] = {label: {"version": p.version, "settings": dict(p.settings)} for label, p in peers.items()}
    return {**about, **figures}


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


def _peer_places(plan: Series, say: Callable[[str], None]) -> tuple[dict[str, PeerPlace], dict[str, str]]:
    """{peer: where it runs}, {label of an engine: why its peer is not to be had}. Installs, and writes the weights."""
    places: dict[str, PeerPlace] = {}
    missing: dict[str, str] = {}
    model = ""
    for peer in dict.fromkeys(e.peer for e in plan.engines if e.peer):
        try:
            python = python_of(peer, plan.peers.folder, say)
            if not model:
                say("writing the weights for other engines, float32, adapter merged (once)")
                model = _exported(plan.spec.model)
        except EngineFailed as error:
            missing |= {e.label: str(error) for e in plan.engines if e.peer == peer}
            continue
        places[peer] = PeerPlace(str(python), model, plan.peers.precision)
    return places, missing


def _exported(model: ModelSpec) -> str:
    worker = Worker(ExportWeights(model))
    try:
        return str(worker.ask("export"))
    finally:
        worker.stop()


def _started(
    plan: Series, fleet: Fleet, say: Callable[[str], None]
) -> tuple[list[Engine], dict[str, str], Ready, dict[str, PeerReady]]:
    """The engines that can run, why others cannot, what HPD said when it was ready, and what each peer said."""
    engines, left_out, first = [], {}, None
    peers: dict[str, PeerReady] = {}
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
        if engine.peer:
            peers[engine.label] = ready
        else:
            first = first or ready
    assert first is not None
    return engines, left_out, first, peers


def _running(fleet: Fleet, left_out: dict[str, str]) -> Callable[[Engine], Turn | None]:
    """Runs an engine; a peer that fails is left out from there on, which ends no benchmark."""

    def run(engine: Engine) -> Turn | None:
        try:
            outcome: Turn = fleet.run(engine)
        except EngineFailed as error:
            if engine.peer:
                left_out[engine.label] = str(error)
                return None
            hint = "" if engine.name in ESSENTIAL else f"; --skip {engine.name} leaves it out"
            raise JobError(f"{engine.label}: {error}{hint}") from error
        return outcome

    return run


def _about(plan: Series, machine: Machine, ready: Ready, kept: bool) -> dict[str, Any]:
    kind = "ablations" if plan.is_ablation else "comparison"
    documents = len(plan.shape.documents)
    model = plan.spec.model
    kept_as = "" if model.quantization is Quantization.NONE else f" {model.quantization.value}"
    rounds = f"{plan.repeat} round{'s' if plan.repeat > 1 else ''}"
    how = f"{rounds}, {plan.lengths} lengths, {plan.spec.settings.layout}, {model.name}{kept_as}"
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
