"""What a soak showed: its figures, what is wrong, and a page for people."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.soak.memory import slope
from tests.soak.run import Run

#: Rows, and units, that a slope of memory is told for: what is kept of a unit does not hang on its rows.
PER, PER_UNITS = 100_000, 1_000
_METHOD = """\
Made by `make soak`: the decoder's answer is a hash of the row's text. Actors and drivers are killed by SIGKILL at units
drawn from the seed, and a driver that is gone is started again until one ends by itself. Time lost is the wall time
without that of one driver at the undisturbed pace. Memory is resident and a process's own, without what it has mapped
from Ray's object store; its slope is that of the second half of each life.
"""


@dataclass(frozen=True)
class Pace:
    """rows_per_second: of commits behind the last kill, once they came evenly. None where too few did."""

    rows_per_second: float | None
    rows: int = 0
    seconds: float = 0.0


def undisturbed(run: Run) -> Pace:
    """The pace behind the last kill: from its second commit on, so that no start is in it."""
    last = run.made[-1][0] if run.made else 0.0
    begun = max([last, *(first for _, first in run.starts if first is not None)])
    calm = [(at, rows) for at, rows in run.commits if at > begun]
    if len(calm) < 10:
        return Pace(None)
    (first, before), (end, after) = calm[1], calm[-1]
    seconds, rows = end - first, after - before
    return Pace(rows / seconds if seconds > 0 and rows else None, rows, seconds)


@dataclass(frozen=True)
class Report:
    """facts: JSON-able. wrong: violations, none where all is as promised."""

    facts: dict[str, Any] = field(default_factory=dict)
    wrong: tuple[str, ...] = ()


def figures(run: Run, documents: int, decoded: int, unit_rows: float) -> dict[str, Any]:
    """unit_rows: of the mean unit. documents: rows with text. decoded: documents that decoders were handed, those of
    killed ones included."""
    pace = undisturbed(run)
    firsts = [first - start for start, first in run.starts if first is not None and start is not None]
    end = run.commits[-1][0] if run.commits else run.ended
    facts: dict[str, Any] = {
        "seconds": run.ended,
        "drivers": len(run.starts),
        "reruns": run.reruns,
        "slow_starts": run.slow_starts,
        "killed": {target: sum(t == target for _, t in run.made) for target in ("driver", "actor")},
        "seconds_to_first_commit": sorted(round(s, 2) for s in firsts),
        "documents": documents,
        "decoded_again": decoded - documents,
        "rows_per_second_undisturbed": pace.rows_per_second,
        "undisturbed_rows": pace.rows,
        "undisturbed_seconds": pace.seconds,
        "seconds_lost": None,
    }
    if pace.rows_per_second and firsts:
        # What one driver would have taken: its start, every row at the undisturbed pace, its end.
        facts["seconds_lost"] = run.ended - (firsts[0] + run.rows / pace.rows_per_second + run.ended - end)
    for role in ("driver", "actor"):
        mine = [s for s in run.samples if s.role == role]
        grown = slope(mine)
        facts[f"{role}_mib_peak"] = max((s.bytes for s in mine), default=0) / 2**20
        facts[f"{role}_mib_per_{PER}_rows"] = None if grown is None else grown * PER / 2**20
        facts[f"{role}_mib_per_{PER_UNITS}_units"] = None if grown is None else grown * unit_rows * PER_UNITS / 2**20
    return facts


def page(facts: dict[str, Any], wrong: tuple[str, ...]) -> str:
    """The summary in Markdown, without a name of the machine's."""

    def number(value: object, unit: str = "", digits: int = 1) -> str:
        return "not measured" if value is None else f"{value:,.{digits}f}{unit}"

    killed, seconds = facts["killed"], facts["seconds"]
    lost = facts["seconds_lost"]
    share = f" ({lost / seconds:.0%} of the whole)" if lost is not None and seconds else ""
    starts = facts["seconds_to_first_commit"]
    middle = number(starts[len(starts) // 2] if starts else None, " s")
    memory = {
        role: f"at most {number(facts[f'{role}_mib_peak'], ' MiB', 0)}; gains per {PER:,} rows: "
        + number(facts[f"{role}_mib_per_{PER}_rows"], " MiB", 2)
        + f", per {PER_UNITS:,} units: {number(facts[f'{role}_mib_per_{PER_UNITS}_units'], ' MiB')}"
        for role in ("driver", "actor")
    }
    rows = [
        ("date", facts["date"]),
        ("options", f"`{facts['options']}`"),
        ("machine", facts["machine"]),
        ("rows, shards, units", f"{facts['rows']:,}, {facts['shards']:,}, {facts['units']:,}"),
        ("killed", f"{killed['driver']} drivers, {killed['actor']} actors"),
        ("drivers", facts["drivers"]),
        ("of them incomplete (exit code 4); too slow for Ray", f"{facts['reruns']}; {facts['slow_starts']}"),
        ("wall time", number(seconds, " s")),
        ("start of a driver to its first commit, median", middle),
        ("undisturbed pace, behind the last kill", number(facts["rows_per_second_undisturbed"], " rows/s")),
        ("time lost to kills and resumes", number(lost, " s") + share),
        ("rows decoded more than once", f"{facts['decoded_again']:,} of {facts['documents']:,} with text"),
        ("driver, resident", memory["driver"]),
        ("actor, resident", memory["actor"]),
        ("`hpd verify`", facts["verify"]),
        ("own check", facts["check"]),
        ("run again", f"{facts['calls_of_a_rerun']} model calls"),
    ]
    lines = ["# Soak", "", "**Every row once, in order, with its own answer.**" if not wrong else "**VIOLATED.**", ""]
    lines += [f"- {one}" for one in wrong] + [""] * bool(wrong)
    lines += ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows), ""]
    return "\n".join([*lines, _METHOD])
