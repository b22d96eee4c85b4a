"""Several engines in turns on the same documents, and the figures of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from hpd_core.rows import Counts
from jobs.timing.engines import HPD, PRESENT, REFERENCE, Engine
from jobs.timing.work import ModelSize, Turn, computed_flops, live_tokens, needed_flops, slot_share, step_fill


@dataclass(frozen=True, slots=True)
class Machine:
    """What engines are measured against. rates: the machine's matrix rate in FLOP/s, once per round; the best one is
    the roof. dollars_per_hour: an assumption that the user sets."""

    size: ModelSize
    rates: tuple[float, ...]
    dollars_per_hour: float

    @property
    def roof(self) -> float:
        return max(self.rates)


@dataclass(frozen=True, slots=True)
class Measurement:
    """The runs of one engine, one per round. documents: rows that went in, repeats of one another among them."""

    engine: Engine
    documents: int
    runs: tuple[Turn, ...]

    @property
    def seconds(self) -> tuple[float, ...]:
        return tuple(run.seconds for run in self.runs)

    @property
    def last(self) -> Turn:
        """Counts are those of the last round: with caches kept the first may have had to fill them."""
        return self.runs[-1]

    @property
    def counts(self) -> Counts:
        return self.last.counts

    @property
    def docs_per_second(self) -> float:
        return self.documents / median(self.seconds)

    @property
    def spread(self) -> tuple[float, float]:
        """Slowest and fastest round, documents per second."""
        return self.documents / max(self.seconds), self.documents / min(self.seconds)

    def as_dict(self, machine: Machine) -> dict[str, Any]:
        counts, last, seconds = self.counts, self.last, median(self.seconds)
        needed, traced = needed_flops(machine.size, counts), last.traced
        computed = None if traced is None else computed_flops(machine.size, traced)
        return {
            "engine": self.engine.name,
            "label": self.engine.label,
            "batch": self.engine.batch,
            "without": self.engine.without or None,
            "documents": self.documents,
            "seconds": [round(s, 4) for s in self.seconds],
            "cpu_seconds": [round(run.cpu_seconds, 4) for run in self.runs],
            "docs_per_second": self.docs_per_second,
            "docs_per_second_spread": list(self.spread),
            "tokens_per_second": counts.generated_tokens / seconds,
            "steps": None if traced is None else counts.steps,
            # A prefill emits tokens as well, so 0 steps are counted as one.
            "tokens_per_step": None if traced is None else counts.generated_tokens / max(1, counts.steps),
            "rows_per_pass": None if traced is None else traced.tokens / max(1, traced.calls),
            "slot_share": slot_share(counts, last.widest),
            "slots_per_step": last.widest or None,
            "step_fill": None if traced is None else step_fill(counts, traced.calls, last.room),
            "live_tokens_per_document": live_tokens(counts) / self.documents,
            "needed_flops_per_document": needed / self.documents,
            # At most so many where the engine does not tell what its cache saved.
            "needed_flops_is_bound": not last.cache_told,
            "computed_flops_per_document": None if computed is None else computed / self.documents,
            "waste": None if computed is None else 1 - needed / computed if computed else 0.0,
            "roofline_share": needed / seconds / machine.roof,
            "peak_bytes": max(run.peak_bytes for run in self.runs),
            "dollars_per_1000": machine.dollars_per_hour / 3600 * seconds / self.documents * 1000,
            "counts": counts.as_dict(),
            "traced": None if traced is None else asdict(traced),
        }


def measure(
    engines: Sequence[Engine],
    run: Callable[[Engine], Turn | None],
    between: Callable[[], None],
    repeat: int,
    say: Callable[[str], None] = lambda _: None,
) -> dict[Engine, list[Turn]]:
    """Runs every engine `repeat` times, in turns, each round starting with another one; `between` before each round.
    An engine whose run gives None has failed and is out.

    What slows the machine down for a while then falls on all of them, and none is always first after another.
    """
    runs: dict[Engine, list[Turn]] = {engine: [] for engine in engines}
    for turn in range(repeat):
        between()
        for place in range(len(engines)):
            engine = engines[(place + turn) % len(engines)]
            if engine not in runs:
                continue
            done = run(engine)
            if done is None:
                del runs[engine]
                continue
            runs[engine].append(done)
            say(f"round {turn + 1}/{repeat}: {engine.label}: {runs[engine][-1].seconds:.1f} s")
    return runs


def best(measurements: Sequence[Measurement], name: str) -> Measurement | None:
    """The fastest batch size of an engine."""
    found = [m for m in measurements if m.engine.name == name]
    return max(found, key=lambda m: m.docs_per_second) if found else None


def ratio(of: Measurement, to: Measurement) -> dict[str, float]:
    """Documents per second of one over another: of the medians, and the least and most of any round by itself."""
    rounds = [theirs / own for own, theirs in zip(of.seconds, to.seconds, strict=True)]
    return {"median": of.docs_per_second / to.docs_per_second, "low": min(rounds), "high": max(rounds)}


def comparison(measurements: Sequence[Measurement], machine: Machine) -> dict[str, Any]:
    """All figures of HPD and its baselines, the ratios to AR at batch 1 and at its best batch, the step factors. What
    needs an engine that was left out is None or missing."""
    by_batch = {(m.engine.name, m.engine.batch): m for m in measurements}
    hpd, widest = by_batch[HPD, 0], best(measurements, REFERENCE)
    one_by_one, single = by_batch.get((HPD, 1)), by_batch.get((REFERENCE, 1))
    assert widest is not None, "AR has a batch at least"
    rows = [
        m.as_dict(machine)
        | {
            "ratio_to_ar_batch_1": m.docs_per_second / single.docs_per_second if single else None,
            "ratio_to_ar_best": m.docs_per_second / widest.docs_per_second,
        }
        for m in measurements
    ]
    against = {"ar_best": ratio(hpd, widest)}
    if single is not None:
        against["ar_batch_1"] = ratio(hpd, single)
    present = best(measurements, PRESENT)
    own = [m for m in measurements if not m.engine.peer]
    others = [m for m in own if m.engine.name not in (HPD, REFERENCE, PRESENT)]
    peers = [m for m in measurements if m.engine.peer]
    if present is not None:
        against["ar_present_best"] = ratio(hpd, present)
    if others:
        other = max(others, key=lambda m: m.docs_per_second)
        against["other_best"] = ratio(hpd, other)
    if peers:
        peer = max(peers, key=lambda m: m.docs_per_second)
        against["peer_best"] = ratio(hpd, peer)
    return {
        "engines": rows,
        "ar_best": widest.engine.label,
        "ar_present_best": present.engine.label if present else None,
        "other_best": other.engine.label if others else None,
        "peer_best": peer.engine.label if peers else None,
        "hpd_against": against,
        "steps": step_factors(one_by_one, single) if one_by_one and single else None,
    }


def ablation(measurements: Sequence[Measurement], machine: Machine) -> dict[str, Any]:
    """All figures of HPD as it is and without one optimisation each: `brings` is how many times as fast it makes it."""
    whole = next(m for m in measurements if not m.engine.without)
    return {"engines": [m.as_dict(machine) | {"brings": ratio(whole, m)} for m in measurements]}


def step_factors(hpd: Measurement, single: Measurement) -> dict[str, float]:
    """How many times fewer steps HPD takes than AR at batch 1, document by document: predicted and counted.

    Predicted is (sum over documents of what AR writes - 1) / (sum of the longest value - 1): the first token of each
    comes out of the prefill and takes no step. `values_only` is the paper's factor, sum of value lengths / longest
    value, which leaves out the keys that AR writes as well.
    """
    longest = hpd.counts.longest_value_tokens
    return {
        "predicted": (single.counts.generated_tokens - single.documents) / max(1, longest - hpd.counts.documents),
        "counted": single.counts.steps / max(1, hpd.counts.steps),
        "values_only": hpd.counts.generated_tokens / max(1, longest),
    }
