"""What a corpus costs, term by term: fitted work, waiting, further tries, start, tail. Prices are scenarios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jobs.costs.fit import LEVEL, RESAMPLES, estimate, fit
from jobs.costs.planning import no_interval, places_of
from jobs.costs.runs import MeasuredRun, lengths, work

#: Numbers of actors in the table of days.
ACTORS = (1, 2, 4, 8, 16, 32, 64, 128)
#: Fewest runs that tell how far one run is from another.
LEAST_RUNS = 3
#: Corpus sizes of table and curve, in rows.
SIZES = (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000)


@dataclass(frozen=True, slots=True)
class Terms:
    """What work is made of. All seconds are of one actor, or of the wall where they say so.

    per_row: fitted work on one row; low, high: its interval, None without one. waiting, retried: factors >= 1 on all
    work. start: wall seconds of a job before its actors work and after they have, without the wait for the last unit.
    load: of an actor getting its decoder. unit: mean work on one unit.
    """

    per_row: float
    low: float | None
    high: float | None
    waiting: float
    retried: float
    start: float
    load: float
    unit: float

    def wall_seconds(self, rows: float, actors: int, per_row: float | None = None) -> float:
        """From begin to end on so many actors. At the end an actor that has nothing left waits, half a unit in the
        mean, for the last one."""
        one = self.per_row if per_row is None else per_row
        steady = rows * one * self.waiting * self.retried / actors
        return steady + self.load + self.start + self.tail_seconds(actors)

    def tail_seconds(self, actors: int) -> float:
        """Wall seconds that the wait for the last unit costs, as if all actors were paid for it."""
        return _tail(self.unit, actors)

    def dollars(self, rows: float, actors: int, actor_hour: float, per_row: float | None = None) -> float:
        """actor_hour: dollars for an hour of one actor."""
        return self.wall_seconds(rows, actors, per_row) * actors * actor_hour / 3600


def _tail(unit: float, actors: int) -> float:
    """Wall seconds in which actors wait, half a unit in the mean, for the last of them."""
    return unit * (actors - 1) / (2 * actors)


def terms(runs: Sequence[MeasuredRun], plan: Mapping[str, Any] | None, seed: int = 0) -> tuple[Terms, dict[str, Any]]:
    """The terms, and the facts of the fit, of sampling, of the target's lengths and of run-to-run spread."""
    units = work(runs)
    places = None if plan is None else places_of(plan["sample"])
    why = no_interval(runs)
    point, bounds = estimate(units, places, seed=seed, interval=not why)
    seconds = [run.metrics.seconds for run in runs]
    busy, idle = sum(s["decode"] for s in seconds), sum(s["idle"] for s in seconds)
    known = [run for run in runs if run.in_one_go and run.last.get("wasted_tokens") is not None]
    wasted = sum(run.last["wasted_tokens"] for run in known)
    fed = sum(run.metrics.decode.prompt_tokens for run in known)
    unit = busy / len(units.rows)
    # Neither the wait for the last unit nor a try that came to nothing is in any unit's seconds, so that both are in
    # what is left of the clock: they are terms of their own.
    rests = [
        max(0.0, rest - _tail(unit, run.actors) - run.wasted_seconds)
        for run in runs
        if (rest := run.rest_seconds) is not None
    ]
    found = Terms(
        per_row=point,
        low=bounds.low if bounds else None,
        high=bounds.high if bounds else None,
        waiting=1 + idle / busy,
        retried=1 + wasted / fed if fed else 1.0,
        start=float(np.mean(rests)) if rests else 0.0,
        load=sum(s["load"] for s in seconds) / sum(run.actors for run in runs),
        unit=unit,
    )
    facts = {
        "fit": _fit_facts(runs),
        "sampling": {
            "units": units.distinct,
            "measurements": len(units.rows),
            "interval": not why,
            "why": why or None,
            "level": LEVEL,
            "resamples": RESAMPLES,
            "seed": seed,
            "relative_width": (bounds.high - bounds.low) / point if bounds else None,
        },
        "target": target(runs, plan),
        "spread": spread(runs),
        "terms": {
            "seconds_per_row": found.per_row,
            "seconds_per_row_low": found.low,
            "seconds_per_row_high": found.high,
            "waiting": found.waiting,
            "waiting_share": 1 - 1 / found.waiting,
            "retried": found.retried,
            "retries_known": bool(known),
            "start_seconds": found.start,
            "start_known": bool(rests),
            "load_seconds": found.load,
            "unit_seconds": found.unit,
        },
    }
    return found, facts


def target(runs: Sequence[MeasuredRun], plan: Mapping[str, Any] | None) -> dict[str, Any]:
    """The lengths that the cost is predicted for: the plan's random rows, else the measured units'. outside: share of
    the target's documents that are shorter or longer than any that was measured, by bins; None where it cannot be told.
    prefixes_fed: share of the shared prefixes that was fed and not reused, as in the measured units."""
    sample = {edge: n for edge, n in sorted(lengths(runs).items(), key=lambda item: int(item[0]))}
    decode = [run.metrics.decode for run in runs]
    wanted: Mapping[str, int] = sample if plan is None else plan["sample"]["lengths"]
    total = sum(wanted.values())
    outside = None
    if sample and total and plan is not None:
        first, last = min(map(int, sample)), max(map(int, sample))
        outside = sum(n for edge, n in wanted.items() if not first <= int(edge) <= last) / total
    tokens = sum(d.prompt_tokens for d in decode) / sum(d.documents for d in decode)
    edges = sorted({*sample, *wanted}, key=int)
    measured = sum(sample.values())
    return {
        "source": "units" if plan is None else "plan",
        "rows": None if plan is None else plan["sample"]["rows"],
        "prompt_tokens_per_document": tokens if plan is None else plan["sample"]["prompt_tokens_per_document"],
        "measured_prompt_tokens_per_document": tokens,
        "outside": outside,
        "prefixes_fed": work(runs).prefixes_fed,
        "rows_per_unit": None if plan is None else plan["rows_per_unit"],
        "measured_rows_per_unit": sum(run.metrics.rows_in for run in runs) / sum(len(run.units) for run in runs),
        "lengths": [
            {
                "tokens": int(edge),
                "measured": sample.get(edge, 0) / measured if measured else 0.0,
                "target": wanted.get(edge, 0) / total if total else 0.0,
            }
            for edge in edges
        ],
    }


def spread(runs: Sequence[MeasuredRun]) -> dict[str, Any] | None:
    """How far each run is from what the fit over all of them says of its units; None of too few runs."""
    if len(runs) < LEAST_RUNS:
        return None
    units = work(runs)
    fitted = fit(units, np.ones((1, len(units.rows))))
    expected = units.features @ fitted.coefficients[0] * fitted.calibration[0]
    edges = np.cumsum([len(run.units) for run in runs])[:-1]
    pairs = zip(np.split(units.seconds, edges), np.split(expected, edges), strict=True)
    ratios = [float(seen.sum() / said.sum()) for seen, said in pairs]
    return {"runs": len(runs), "slowest": max(ratios), "fastest": min(ratios), "ratios": ratios}


def days(found: Terms, rows: float, actor_hour: float) -> list[dict[str, float]]:
    """Days and dollars on 1 to many actors."""
    return [
        {
            "actors": actors,
            "days": found.wall_seconds(rows, actors) / 86400,
            "dollars": found.dollars(rows, actors, actor_hour),
        }
        for actors in ACTORS
    ]


def sizes(found: Terms, rows: float, actors: int, actor_hour: float) -> list[dict[str, float | None]]:
    """Dollars of corpora of several sizes, `rows` among them, with the ends of the interval."""
    chosen = sorted({*SIZES, int(rows)})
    return [
        {
            "documents": size,
            "dollars": found.dollars(size, actors, actor_hour),
            "low": None if found.low is None else found.dollars(size, actors, actor_hour, found.low),
            "high": None if found.high is None else found.dollars(size, actors, actor_hour, found.high),
        }
        for size in chosen
    ]


def _fit_facts(runs: Sequence[MeasuredRun]) -> dict[str, Any]:
    units = work(runs)
    fitted = fit(units, np.ones((1, len(units.rows))))
    a, b, c = fitted.coefficients[0].tolist()
    expected = units.features @ fitted.coefficients[0] * fitted.calibration[0]
    timed = units.seconds > 0  # one without a document may take no time
    off = np.abs(units.seconds - expected)[timed] / units.seconds[timed]
    shares = units.features.sum(axis=0) * fitted.coefficients[0]
    total = shares.sum() or 1.0
    return {
        "seconds_per_unit": a,
        "seconds_per_prefill_token": b,
        "seconds_per_value_token": c,
        "calibration": float(fitted.calibration[0]),
        "unit_share": float(shares[0] / total),
        "prefill_share": float(shares[1] / total),
        "value_token_share": float(shares[2] / total),
        "median_error": float(np.median(off)),
        "prefill_tokens_per_row": float(units.features[:, 1].sum() / units.rows.sum()),
        "value_tokens_per_row": float(units.value_tokens.sum() / units.rows.sum()),
    }
