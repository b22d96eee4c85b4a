"""Figures of `jobs.timing.scale`: throughput in the steady state, lines through measurements, Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jobs.scores.markdown import table_head, table_row

#: Units that the driver's cost is carried to: 500 million rows in units of 10,000.
FAR = 50_000


def throughput(commits: Sequence[float], actors: int, rows: int) -> float:
    """Rows per second in the steady state. commits: seconds of each unit's, all of `rows` rows and one length.

    Actors work in a rhythm, so that commits come in bursts: time is taken between two commits that are whole rounds
    of all actors apart. The last round is left out, where actors have begun to run dry, and so is the first half, where
    some may not have started.
    """
    times = sorted(commits)
    whole = (len(times) - 1) // actors - 1  # rounds that end before the last one
    rounds = max(1, whole - whole // 2)
    last = len(times) - 1 - actors
    first = last - rounds * actors
    if first < 0:
        raise ValueError(f"{len(times)} units are too few for a steady state of {actors} actors")
    return rounds * actors * rows / (times[last] - times[first])


def line_through(points: Sequence[tuple[float, float]]) -> dict[str, float] | None:
    """{"base", "slope"} of the least-squares line; None of fewer than two different places."""
    n, sx, sy = len(points), sum(x for x, _ in points), sum(y for _, y in points)
    spread = n * sum(x * x for x, _ in points) - sx * sx
    if not spread:
        return None
    slope = (n * sum(x * y for x, y in points) - sx * sy) / spread
    return {"base": (sy - slope * sx) / n, "slope": slope}


def per_unit(measured: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The measurements, with the driver's CPU seconds per unit."""
    return [
        {**facts, "driver_cpu_seconds_per_unit": facts["driver_cpu_seconds"] / facts["units"]} for facts in measured
    ]


def markdown(facts: Mapping[str, Any]) -> str:
    """facts: the content of scale.json."""
    first = facts["scaling"][0]
    base = first["rows_per_second"] / first["actors"]
    lines = [
        "# Scale: a decoder of fixed cost",
        "",
        f"{facts['rows_per_unit']:,} rows of 2 KB and {facts['unit_seconds']:g} s of sleep a unit; Ray of a head and "
        f"up to {facts['nodes']} more nodes, all on this machine of {facts['cores']} cores. Rows per second are "
        "those of the steady state.",
        "",
        *table_head(["actors", "rows/s", "x one actor", "of the actors' sleep", "driver CPU s/unit", "cores busy"]),
    ]
    ideal = facts["rows_per_unit"] / facts["unit_seconds"]
    for job in facts["scaling"]:
        rate = job["rows_per_second"]
        lines.append(
            table_row(
                [
                    str(job["actors"]),
                    f"{rate:.0f}",
                    f"{rate / base:.2f}",
                    f"{100 * rate / ideal / job['actors']:.0f} %",
                    f"{job['driver_cpu_seconds_per_unit']:.3f}",
                    f"{job['busy_cores']:.1f}",
                ]
            )
        )
    lines += [
        "",
        "Of the actors' sleep: 100 % is an actor that never waits for a row. All cores busy: the reads and commits of "
        "so many actors are more than this machine can do, which says nothing of the driver.",
        "",
        "## What a driver costs",
        "",
        *table_head(["units", "CPU s", "CPU s/unit", "before the stream, s", "after the last commit, s", "peak MiB"]),
    ]
    for job in facts["driver"]:
        lines.append(
            table_row(
                [
                    f"{job['units']:,}",
                    f"{job['driver_cpu_seconds']:.1f}",
                    f"{job['driver_cpu_seconds_per_unit']:.3f}",
                    f"{job['before_stream_seconds']:.1f}",
                    f"{job['finish_seconds']:.1f}",
                    f"{job['driver_peak_mib']:,}",
                ]
            )
        )
    return "\n".join([*lines, "", *_far(facts), ""])


def _far(facts: Mapping[str, Any]) -> list[str]:
    cpu, memory = facts["driver_line"], facts["memory_line"]
    if cpu is None or memory is None:
        return ["One number of units says nothing of others: give several to `--units`."]
    rows = facts["rows_per_planned_unit"]
    total, most = cpu["base"] + FAR * cpu["slope"], memory["base"] + FAR * memory["slope"]
    limit = f"{1 / cpu['slope']:.0f} units a second" if cpu["slope"] > 0 else "not measurable"
    return [
        f"- A unit more costs the driver {cpu['slope']:.3f} CPU s and {1024 * memory['slope']:.0f} KiB; a million rows "
        f"in units of {rows:,}: {cpu['slope'] * 1e6 / rows:.1f} CPU s.",
        f"- Drawn out to {FAR:,} units ({FAR * rows / 1e6:,.0f} million rows): {total / 3600:.1f} CPU hours, "
        f"{most / 1024:.1f} GiB. A straight line, measured at up to "
        f"{max(f['units'] for f in facts['driver']):,} units.",
        f"- A driver on one core keeps up with {limit} at most.",
    ]
