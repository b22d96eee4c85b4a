"""What a job will take, before it runs: rows and units of footers, tokens of a sample, a throughput from somewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpd_core import sizing
from jobs.costs.fit import LEAST_UNITS, LEVEL, Places, estimate
from jobs.costs.runs import MeasuredRun, device, work
from jobs.costs.told import significant
from pipeline.job import JobError
from pipeline.prepare import Prepared, Start
from pipeline.resume import differences, settings_of


@dataclass(frozen=True, slots=True)
class AssumedPace:
    """How fast a job goes. seconds_per_row: of one actor, `low` and `high` the ends of an interval, None without one.

    source: where the number comes from. why: why there is no interval.
    """

    seconds_per_row: float
    low: float | None
    high: float | None
    source: str
    why: str


def given(rows_per_second: float, actors: int) -> AssumedPace:
    """A throughput of the whole job that the user states."""
    return AssumedPace(
        actors / rows_per_second, None, None, "--throughput", "the throughput was given, not measured here"
    )


def assumed(rows_per_second: float) -> AssumedPace:
    """What the configuration expects of one actor."""
    source = "units.documents_per_second of the configuration, an assumption"
    return AssumedPace(
        1 / rows_per_second, None, None, source, "the throughput is an assumption; give --run or --throughput"
    )


def measured(runs: Sequence[MeasuredRun], sample: Mapping[str, Any]) -> AssumedPace:
    """The fit of earlier runs' units, at the lengths of the `sample`; what actors waited between units is in it."""
    units = work(runs)
    why = no_interval(runs)
    point, bounds = estimate(units, places_of(sample), interval=not why)
    seconds = [run.metrics.seconds for run in runs]
    waiting = 1 + sum(s["idle"] for s in seconds) / sum(s["decode"] for s in seconds)
    where, dtype = device(runs[0])
    source = f"fit of {len(units.rows)} units of {', '.join(run.name for run in runs)} ({where}, {dtype})"
    low, high = (None, None) if bounds is None else (bounds.low * waiting, bounds.high * waiting)
    return AssumedPace(point * waiting, low, high, source, why)


def no_interval(runs: Sequence[MeasuredRun]) -> str:
    """Why the units of `runs` give no interval; empty where they do."""
    for run in runs:
        if not run.sampling.holds:
            return {
                "first": f"{run.name} measured the first rows of its input (--limit), which are no random sample of it",
                "mixed": f"{run.name} holds more than the random sample that its last run drew",
                "unfinished": f"{run.name} is not finished: its units are those that happened to be done",
            }[run.sampling.value]
    units = work(runs)
    if units.distinct >= LEAST_UNITS:
        return ""
    if units.distinct == len(units.rows):
        return f"{units.distinct} units were measured, fewer than {LEAST_UNITS}"
    return (
        f"{units.distinct} different units were measured, fewer than {LEAST_UNITS}; that runs measured some of them "
        f"again, {len(units.rows)} times in all, brings no new rows"
    )


def check_decoder(runs: Sequence[MeasuredRun], prepared: Prepared) -> None:
    """Raises `JobError` with the difference where a run was measured with another model, prompt or setting. What is
    `auto` in the job is what the run's machine decided."""
    decoder = prepared.job.decoder
    for run in runs:
        settings = sizing.reused(decoder.settings, settings_of(run.run))
        found = differences(run.run["facts"]["decoder"], replace(decoder, settings=settings).as_dict())
        if found:
            lines = "\n".join(found)
            raise JobError(f"{run.name} measured another decoder than this job has. The difference:\n{lines}")


def places_of(sample: Mapping[str, Any]) -> Places:
    """The places of a plan's sample, as JSON has them."""
    return Places(*np.array(sample["places"], dtype=np.float64).T)


def describe(
    prepared: Prepared, start: Start, sample: Mapping[str, Any], seed: int, pace: AssumedPace
) -> dict[str, Any]:
    """The content of `hpd plan --json`; the sample is that of `RowSample.as_dict`."""
    job, plan = prepared.job, prepared.plan
    left, actors = sum(unit.rows for unit in start.todo), job.pool.max_size
    usable = sample["documents"] / sample["rows"]

    def hours(seconds_per_row: float | None) -> float | None:
        return None if seconds_per_row is None else left * seconds_per_row / actors / 3600

    def dollars(hours: float | None) -> float | None:
        return None if hours is None else hours * job.price_per_hour

    found = {
        name: hours(value) for name, value in (("", pace.seconds_per_row), ("_low", pace.low), ("_high", pace.high))
    }
    return {
        "model": job.decoder.model.name,
        "output": prepared.output.uri,
        "files": len(plan.files),
        "bad_files": [str(file) for file in plan.bad],
        "unreached": [str(file) for file in plan.unreached],
        "rows": plan.rows,
        "units": len(plan.units),
        "rows_left": left,
        "units_left": len(start.todo),
        "rows_per_unit": plan.rows / max(1, len(plan.units)),
        "actors": actors,
        "seed": seed,
        "sample": dict(sample),
        "prompt_tokens": round(left * usable * sample["prompt_tokens_per_document"]),
        "slots": round(left * usable * sample["attributes_per_document"]),
        "level": LEVEL,
        "pace": {"actor_seconds_per_row": pace.seconds_per_row, "source": pace.source, "no_interval": pace.why or None},
        **{f"hours{name}": value for name, value in found.items()},
        "dollars_per_hour": job.price_per_hour,
        **{f"dollars{name}": dollars(value) for name, value in found.items()},
    }


def shown(facts: Mapping[str, Any]) -> Iterator[str]:
    """The facts for people."""
    sample, pace = facts["sample"], facts["pace"]
    done = facts["rows"] - facts["rows_left"]
    begun = f", {done:,} rows of them committed already" if done else ""
    yield f"input        {facts['rows']:,} row(s) in {facts['files']:,} file(s), {facts['units']:,} unit(s){begun}"
    unusable = ", ".join(f"{count:,} not ({reason})" for reason, count in list(sample["rows_unusable"].items())[:3])
    cut = f", {sample['documents_cut']:,} of them cut" if sample["documents_cut"] else ""
    yield (
        f"looked at    {sample['rows']:,} random rows (seed {facts['seed']}): {sample['documents']:,} can be used{cut}"
        + (f", {unusable}" if unusable else "")
    )
    yield (
        f"documents    {sample['prompt_tokens_per_document']:,.0f} prompt tokens each (median "
        f"{sample['prompt_tokens_median']:,}, longest {sample['prompt_tokens_longest']:,}), "
        f"{sample['attributes_per_document']:.1f} attributes, "
        f"after {sample['prefix_tokens_per_document']:,.0f} shared ones"
    )
    yield from (f"             {line}" for line in bars(sample["prompt_lengths"]))
    yield f"to do        {facts['prompt_tokens']:,} prompt tokens, {facts['slots']:,} values"
    yield f"pace         {significant(1 / pace['actor_seconds_per_row'])} rows a second and actor: {pace['source']}"
    price = f"at {facts['dollars_per_hour']:g} dollars an hour" if facts["dollars_per_hour"] else "no price is set"
    yield f"hours        {_with_ends(facts, 'hours')} on {facts['actors']} actor(s)"
    yield f"dollars      {_with_ends(facts, 'dollars')} ({price})"
    if pace["no_interval"]:
        yield f"no interval  {pace['no_interval']}"


def bars(histogram: Mapping[str, int], width: int = 40) -> Iterator[str]:
    """A histogram of lengths as lines of text."""
    most, total = max(histogram.values()), sum(histogram.values())
    for edge, count in histogram.items():
        yield f"to {int(edge):>7,} {'#' * round(width * count / most):<{width}} {100 * count / total:5.1f} %"


def _with_ends(facts: Mapping[str, Any], name: str) -> str:
    low, high = facts[f"{name}_low"], facts[f"{name}_high"]
    level = f"{100 * facts['level']:g} % interval"
    ends = "" if low is None else f" ({significant(low)} to {significant(high)}, {level})"
    return f"{significant(facts[name])}{ends}"


def check_sample(plan: Mapping[str, Any]) -> None:
    """Raises `JobError` where `plan` is not what `hpd plan --json` prints."""
    try:
        numbers = [*plan["sample"]["lengths"].values(), plan["rows_per_unit"], *places_of(plan["sample"]).documents]
        good = sum(plan["sample"]["lengths"].values()) > 0 and all(number >= 0 for number in numbers)
        named = (f"{kind}_tokens_per_document" for kind in ("prompt", "prefix", "key", "stub"))
        good = good and all(plan["sample"][name] >= 0 for name in (*named, "attributes_per_document", "rows"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise JobError(f"the plan is not what `hpd plan --json` prints: {error!r}") from error
    if not good:
        raise JobError("the plan is not what `hpd plan --json` prints: it counts no document")
