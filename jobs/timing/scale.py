"""Whether throughput follows the number of actors, and what a driver costs: `python -m jobs.timing.scale`.

The decoder is a sleep of fixed length: actors cost nothing, and a machine of few cores can hold many. All else is
real: a Ray cluster of several nodes, Parquet of 2 KB rows that is read, handed on and committed. Each measurement is a
job of its own with a driver in a process of its own. Reads and commits of all actors share the cores of this machine:
choose the sleep long enough (the report says how busy they were).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from jobs.timing.fake import SCHEMA, SPEC, FixedCost, TextEncoder, TextReader, write_catalog
from jobs.timing.scale_report import line_through, markdown, per_unit, throughput
from pipeline.events import Event, Progress
from pipeline.job import JobSpec, Pool, UnitCaps
from pipeline.peak import resident_bytes

#: CPUs of the cluster beside the actors': for reading, committing and the ledger.
_SPARE = 2
#: Rows of a unit that a plan would cut, see UnitCaps.
_UNIT_ROWS = 10_000


def point(
    catalog: str, output: str, address: str, actors: int, units: int, rows: int, seconds: float
) -> dict[str, Any]:
    """One job of `units` units of `rows` rows, `seconds` of sleep each, in this process: what a driver saw and cost.

    CPU seconds are of the driver's process, all of its threads, from before the plan to after the last write.
    """
    from pipeline.run import run  # brings Ray in

    job = JobSpec(
        (catalog,),
        output,
        SPEC,
        TextReader(),
        (SCHEMA,),
        encoder_factory=TextEncoder,
        decoder_factory=FixedCost(seconds / rows),
        units=UnitCaps(rows=rows, seconds=1e9),
        pool=Pool(actors, actors),
        limit=units * rows,
        ray_address=address,
    )
    times: list[float] = []
    began: list[tuple[float, float]] = []

    def watch(state: Progress) -> None:
        if state.event is Event.RUNNING:
            began.append((time.monotonic(), time.process_time()))
        if state.event is Event.COMMITTED:
            times.append(time.monotonic())

    started, cpu = time.monotonic(), time.process_time()
    summary = run(job, progress=watch)
    ended, spent = time.monotonic(), time.process_time()
    if not summary.complete or summary.rows_in != units * rows:
        raise RuntimeError(f"{summary.rows_in} of {units * rows} rows: {'; '.join(summary.failures)}")
    stream, stream_cpu = began[0]
    return {
        "actors": actors,
        "units": units,
        "rows": units * rows,
        "before_stream_seconds": stream - started,
        "stream_seconds": times[-1] - stream,
        "finish_seconds": ended - times[-1],
        "driver_cpu_seconds": spent - cpu,
        "driver_cpu_before_stream_seconds": stream_cpu - cpu,
        "driver_peak_mib": resident_bytes("VmHWM") // 2**20,
        "commits": [round(t - stream, 4) for t in times],
    }


def measured(catalog: Path, folder: Path, address: str, **what: Any) -> dict[str, Any]:
    """`point` in a process of its own, with the machine's load beside it."""
    order = {"catalog": str(catalog), "address": address, **what}
    order["output"] = str(folder / f"{what['actors']}-{what['units']}-{what['seconds']}")
    before, started = _busy_seconds(), time.monotonic()
    command = [sys.executable, "-m", __spec__.name, "--point", json.dumps(order)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    cores = (_busy_seconds() - before) / (time.monotonic() - started)
    return facts | {"busy_cores": round(cores, 2)}


@contextmanager
def ray_cluster(actors: int, nodes: int) -> Iterator[str]:
    """Address of a Ray of one head and `nodes` more on this machine, with a CPU for each actor and `_SPARE` more."""
    from ray.cluster_utils import Cluster

    share, rest = divmod(actors, nodes)
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": _SPARE, "include_dashboard": False})
    try:
        for number in range(nodes):
            made.add_node(num_cpus=share + (number < rest))
        made.wait_for_nodes()
        yield made.address
    finally:
        made.shutdown()


def series(
    folder: Path, actors: Sequence[int], nodes: int, rounds: int, seconds: float, rows: int, counts: Sequence[int]
) -> dict[str, Any]:
    """Both measurements: throughput with each number of actors, and a driver's cost over numbers of units."""
    most = max(rounds * max(actors), *counts) * rows
    typer.echo(f"writing {most:,} rows of 2 KB", err=True)
    catalog = write_catalog(folder / "catalog", most, rows_per_file=10 * rows)
    scaling = []
    for count in actors:
        with ray_cluster(count, min(nodes, count)) as address:
            facts = measured(catalog, folder, address, actors=count, units=rounds * count, rows=rows, seconds=seconds)
        scaling.append(facts | {"rows_per_second": throughput(facts["commits"], count, rows)})
        typer.echo(f"{count} actors: {scaling[-1]['rows_per_second']:.0f} rows a second", err=True)
    driving = []
    for units in counts:
        with ray_cluster(2, min(nodes, 2)) as address:
            driving.append(measured(catalog, folder, address, actors=2, units=units, rows=rows, seconds=0.0))
        typer.echo(f"{units} units: driver {driving[-1]['driver_cpu_seconds']:.1f} CPU s", err=True)
    for facts in (*scaling, *driving):
        del facts["commits"]
    return {
        "cores": os.cpu_count(),
        "nodes": nodes,
        "rows_per_unit": rows,
        "unit_seconds": seconds,
        "rows_per_planned_unit": _UNIT_ROWS,
        "scaling": per_unit(scaling),
        "driver": per_unit(driving),
        "driver_line": line_through([(f["units"], f["driver_cpu_seconds"]) for f in driving]),
        "memory_line": line_through([(f["units"], f["driver_peak_mib"]) for f in driving]),
    }


def main(
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder for scale.json and scale.md.")] = None,
    actors: Annotated[str, typer.Option(help="Numbers of actors.")] = "1,2,4,8",
    nodes: Annotated[int, typer.Option(min=1, help="Most nodes beside the head.")] = 4,
    rounds: Annotated[int, typer.Option(min=4, help="Units of each actor.")] = 12,
    seconds: Annotated[float, typer.Option(min=0.01, help="Sleep of a unit.")] = 5.0,
    rows: Annotated[int, typer.Option(min=1, help="Rows of a unit.")] = 1000,
    units: Annotated[str, typer.Option(help="Numbers of units that a driver's cost is measured at.")] = "50,200,800",
    point_: Annotated[str, typer.Option("--point", hidden=True)] = "",
) -> None:
    """Prints the report, and writes it where --output says."""
    if point_:
        print(json.dumps(point(**json.loads(point_))))
        return
    numbers = [[int(word) for word in words.split(",")] for words in (actors, units)]
    with _scratch() as folder, _scratch() as sessions:
        # A cluster leaves word of itself where Ray looks for one: nobody else is to find this one.
        os.environ["RAY_TMPDIR"] = sessions
        facts = series(Path(folder), numbers[0], nodes, rounds, seconds, rows, numbers[1])
    text = markdown(facts)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        (output / "scale.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        (output / "scale.md").write_text(text, encoding="utf-8")
    print(text)


def _scratch() -> tempfile.TemporaryDirectory[str]:
    """Ray's last processes may still write into it when it is removed."""
    return tempfile.TemporaryDirectory(prefix="hpd", ignore_cleanup_errors=True)


def _busy_seconds() -> float:
    """Core seconds that this machine has worked since it started, whoever for."""
    user, nice, system, _, _, irq, soft = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    typer.run(main)
