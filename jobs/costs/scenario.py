"""What a cost report is asked for, and what an hour of the measured machines costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jobs.costs.runs import MeasuredRun
from pipeline.checked import unknown_key
from pipeline.job import JobError
from pipeline.prices import Prices


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a report is asked for.

    documents: rows of the corpus. dollars_per_hour, machine: of everything that the run used; None for what its
    configuration says. finetune_dollars: what training and labels cost; None where it is not known.
    fallback_dollars_per_hour: of everything, where the configuration says nothing.
    """

    documents: float
    prices: Prices
    machine: str | None = None
    dollars_per_hour: float | None = None
    finetune_dollars: float | None = None
    seed: int = 0
    fallback_dollars_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class PriceClasses:
    """machine: its name, None where only a price is known. classes: {class: dollars per hour of everything}, the first
    one the usual."""

    machine: str | None
    classes: Mapping[str, float]
    source: str


def price_classes(runs: Sequence[MeasuredRun], asked: Scenario) -> PriceClasses:
    """Prices of an hour of everything that one run used. Raises `JobError` where there is none, or the runs' jobs have
    different ones: a price is not in the fingerprint, and one for all of them would be the price of none."""
    first, found = runs[0], _price_classes(runs[0], asked)
    for other in runs[1:]:
        theirs = _price_classes(other, asked)
        if theirs.classes != found.classes:
            a, b = (", ".join(f"{name} {hour:g}" for name, hour in p.classes.items()) for p in (found, theirs))
            raise JobError(
                f"{other.name} ran at another price than {first.name}: {b} dollars an hour, not {a}; "
                "give --dollars-per-hour"
            )
    return found


def _price_classes(run: MeasuredRun, asked: Scenario) -> PriceClasses:
    price = run.run.get("config", {}).get("price") or {}
    machines = float(price.get("machines") or 1)
    if asked.dollars_per_hour is not None:
        return PriceClasses(None, {"as given": asked.dollars_per_hour}, "--dollars-per-hour")
    name = asked.machine or price.get("machine")
    if asked.machine is None and price.get("dollars_per_hour") is not None:
        return PriceClasses(
            None, {"as configured": float(price["dollars_per_hour"]) * machines}, "price.dollars_per_hour of the job"
        )
    if name is None and asked.fallback_dollars_per_hour is not None:
        return PriceClasses(None, {"as given": asked.fallback_dollars_per_hour}, "--fallback-dollars-per-hour")
    if name is None:
        raise JobError(f"{run.name}: its job has no price; give --dollars-per-hour or --machine")
    known = asked.prices.machines
    if name not in known:
        raise JobError(f"{asked.prices.origin}: {unknown_key(name, list(known)).replace('key', 'machine', 1)}")
    classes = {kind: dollars * machines for kind, dollars in known[name].classes.items()}
    return PriceClasses(name, classes, f"{asked.prices.origin}, {known[name].date}: {known[name].source}")
