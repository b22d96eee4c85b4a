"""Everything that a cost report says, as one JSON-able tree: report.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpd_core.settings import AUTO
from jobs.costs import rivals
from jobs.costs.corpus import Terms, days, sizes, terms
from jobs.costs.paper import arithmetic
from jobs.costs.planning import check_sample
from jobs.costs.runs import MeasuredRun, device
from pipeline.checked import unknown_key
from pipeline.job import JobError
from pipeline.metrics import Metrics, total
from pipeline.peak import DEVICE, RESIDENT
from pipeline.prices import Prices
from pipeline.resume import revision_of

#: What training and labels are taken to cost where nobody says: an assumption, in dollars.
FINETUNE_DOLLARS = 100.0


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


def assemble(
    runs: Sequence[MeasuredRun],
    asked: Scenario,
    *,
    plan: Mapping[str, Any] | None = None,
    benchmark: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The content of report.json. plan: of `hpd plan --json`; benchmark: of `rivals.read_comparison`."""
    if plan is not None:
        check_sample(plan)
    prices = price_classes(runs[0], asked)
    where, dtype = device(runs[0])
    found, facts = terms(runs, plan, asked.seed)
    metrics, actors = total(run.metrics for run in runs), runs[0].actors
    usual = next(iter(prices.classes.values()))
    ours = found.dollars(asked.documents, actors, usual / actors)
    decoder = runs[0].run["facts"]["decoder"]
    tokens = rivals.hosted_tokens(runs, plan)
    hosted = rivals.hosted(asked.prices.hosted.values(), tokens, asked.documents, ours)
    methods = [] if benchmark is None else rivals.methods(benchmark, asked.documents, ours)
    per_1000 = ours / asked.documents * 1000
    spent = FINETUNE_DOLLARS if asked.finetune_dollars is None else asked.finetune_dollars
    asking = rivals.ways_to_ask(hosted, asked.documents)
    return {
        "documents": asked.documents,
        "per": 1000,
        "runs": [run.as_dict() for run in runs],
        "measured": {
            "model": _model_name(runs[0]),
            "device": where,
            "dtype": dtype,
            "revision": revision_of(runs[0].run["facts"]),
            "machine": prices.machine,
            "actors": actors,
            "units": sum(len(run.units) for run in runs),
            **_throughput(metrics),
        },
        "prices": _price_table(runs, found, prices, asked.documents, actors),
        "price_source": prices.source,
        "stages": stages(runs),
        "unit_points": _unit_points(runs),
        **facts,
        "estimate": _estimate(found, asked.documents, actors, usual / actors),
        "days": days(found, asked.documents, usual / actors),
        "sizes": sizes(found, asked.documents, actors, usual / actors),
        "hosted_tokens": tokens,
        "hosted": hosted,
        "benchmark": None if benchmark is None else _about(benchmark, decoder),
        "methods": methods,
        "ways": _ways(per_1000, ours, methods, asking),
        "roofline": [] if benchmark is None else _roofline(asked.prices, benchmark, metrics, prices.machine),
        "finetune": {
            "dollars": spent,
            "assumed": asked.finetune_dollars is None,
            "others": rivals.break_even(spent, [(way["name"], way["dollars_per_1000"]) for way in asking], per_1000),
        },
        "paper": arithmetic(),
    }


def price_classes(run: MeasuredRun, asked: Scenario) -> PriceClasses:
    """Prices of an hour of everything that the run used. Raises `JobError` where there is none."""
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


def stages(runs: Sequence[MeasuredRun]) -> list[dict[str, Any]]:
    """Where the actors' time went, in seconds of actors: their work by part, then what is paid for beside it."""
    metrics = total(run.metrics for run in runs)
    decode, seconds = metrics.decode, metrics.seconds
    rest = sum(run.rest_seconds * run.actors for run in runs if run.rest_seconds is not None)
    parts = {
        "prefill": decode.prefill_seconds,
        "decode steps": decode.decode_seconds,
        "around the model": max(0.0, seconds["decode"] - decode.prefill_seconds - decode.decode_seconds),
        "waiting between units": seconds["idle"],
        "loading the model": seconds["load"],
        "start, tail, finish": rest,
    }
    whole = sum(parts.values()) or 1.0
    return [{"name": name, "seconds": value, "share": value / whole} for name, value in parts.items()]


def _throughput(metrics: Metrics) -> dict[str, Any]:
    decode, seconds = metrics.decode, metrics.seconds
    busy, waiting = seconds["decode"], seconds["idle"]
    return {
        "rows": metrics.rows_in,
        "rows_error": metrics.rows_error,
        "rows_per_second": metrics.rows_in / (busy + waiting),
        "rows_per_busy_second": metrics.rows_in / busy,
        "utilisation": busy / (busy + waiting),
        "idle_share": waiting / (busy + waiting),
        "slots_per_step": decode.slots_per_step,
        "value_tokens_fed_per_step": decode.value_tokens_fed_per_step,
        "tokens_per_step": decode.generated_tokens / max(1, decode.steps),
        "prompt_tokens_per_document": decode.prompt_tokens / decode.documents,
        "values_per_document": decode.slots / decode.documents,
        # Of an actor: a machine must have as much for each, beside what Ray and the object store take.
        "peak_memory_gib": _gib(metrics.peak_memory.get(RESIDENT)),
        "peak_device_memory_gib": _gib(metrics.peak_memory.get(DEVICE)),
        "tokenize_seconds_per_row": seconds["tokenize"] / metrics.rows_in,
    }


def _gib(size: int | None) -> float | None:
    return None if size is None else size / 2**30


def _price_table(
    runs: Sequence[MeasuredRun], found: Terms, prices: PriceClasses, rows: float, actors: int
) -> list[dict[str, Any]]:
    metrics = total(run.metrics for run in runs)
    busy, waiting = (metrics.seconds[stage] / actors / metrics.rows_in for stage in ("decode", "idle"))
    wall = [run for run in runs if run.in_one_go]
    table = []
    for name, hour in prices.classes.items():
        whole = sum(run.last["seconds"] for run in wall) * hour / 3600
        ends = [
            None if end is None else found.dollars(rows, actors, hour / actors, end) for end in (found.low, found.high)
        ]
        table.append(
            {
                "name": name,
                "dollars_per_hour": hour,
                "dollars_per_1000": (busy + waiting) * hour / 3600 * 1000,
                "waiting_per_1000": waiting * hour / 3600 * 1000,
                "whole_run_per_1000": whole / sum(run.metrics.rows_in for run in wall) * 1000 if wall else None,
                "dollars": found.dollars(rows, actors, hour / actors),
                "low": ends[0],
                "high": ends[1],
            }
        )
    return table


def _estimate(found: Terms, rows: float, actors: int, actor_hour: float) -> dict[str, Any]:
    """The corpus on as many actors as were measured. work, waiting, retries, start, tail: dollars of each term."""
    hour = actor_hour / 3600
    work = rows * found.per_row * hour
    waiting = work * (found.waiting - 1)
    dollars = found.dollars(rows, actors, actor_hour)
    ends = [None if end is None else found.dollars(rows, actors, actor_hour, end) for end in (found.low, found.high)]
    return {
        "actors": actors,
        "dollars": dollars,
        "low": ends[0],
        "high": ends[1],
        "dollars_per_1000": dollars / rows * 1000,
        "actor_hours": found.wall_seconds(rows, actors) * actors / 3600,
        "days": found.wall_seconds(rows, actors) / 86400,
        "terms": [
            {"name": "work", "dollars": work},
            {"name": "waiting between units", "dollars": waiting},
            {"name": "work done again", "dollars": (work + waiting) * (found.retried - 1)},
            {"name": "start, loading, finish", "dollars": (found.start + found.load) * actors * hour},
            {"name": "tail", "dollars": found.tail_seconds(actors) * actors * hour},
        ],
    }


def _ways(
    per_1000: float, ours: float, methods: Sequence[Mapping[str, Any]], asking: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """All ways by their cost. The benchmark's own HPD is left out: it is what the others are held against."""
    found = [{"name": "HPD, measured here", "dollars_per_1000": per_1000, "dollars": ours}]
    for row in [*(m for m in methods if m["name"] != "hpd"), *asking]:
        found.append({name: row[name] for name in ("name", "dollars_per_1000", "dollars")})
    return sorted(found, key=lambda way: way["dollars"])


def _roofline(
    prices: Prices, benchmark: Mapping[str, Any], metrics: Metrics, machine: str | None
) -> list[dict[str, Any]]:
    size = float(benchmark["machine"]["body"]), float(benchmark["machine"]["head"])
    return rivals.roofline(prices.machines.values(), metrics.decode, metrics.rows_in, size, machine)


def _about(benchmark: Mapping[str, Any], decoder: Mapping[str, Any]) -> dict[str, Any]:
    model = dict(benchmark.get("spec", {}).get("model", {}))
    if model.get("dtype") == AUTO:  # as it was asked for; a run writes down what that became
        model["dtype"] = benchmark["machine"].get("dtype")
    same = all(model.get(key) == decoder["model"].get(key) for key in ("source", "adapter", "dtype", "quantization"))
    return {
        "heading": benchmark.get("heading", ""),
        "documents": benchmark.get("documents"),
        "body": benchmark["machine"]["body"],
        "head": benchmark["machine"]["head"],
        "same_model": same,
    }


def _unit_points(runs: Sequence[MeasuredRun]) -> list[dict[str, float]]:
    """Slots that had work per step, and rows per second of an actor, of each unit."""
    return [
        {"slots_per_step": u.decode.slots_per_step, "rows_per_second": u.rows_in / u.seconds["decode"]}
        for run in runs
        for u in run.units
        if u.decode.steps and u.seconds["decode"]
    ]


def _model_name(run: MeasuredRun) -> str:
    model = run.run.get("config", {}).get("model") or {}
    return str(model.get("name") or run.run["facts"]["decoder"]["model"]["source"])
