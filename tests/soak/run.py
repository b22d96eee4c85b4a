"""One soak: drivers one after the other, each killed when its time has come, until one of them ends by itself."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.soak.job import Plan
from tests.soak.kills import Kill
from tests.soak.memory import Sample, sample

REPOSITORY = Path(__file__).resolve().parents[2]
POLL = 0.1
#: Seconds without a committed unit after which the soak is given up, and of a command that only looks at the output.
PATIENCE = 900.0
#: Exit codes after which `hpd extract` is to be run again, and what Ray says that gives a start 30 s and no more: on a
#: machine that is busy elsewhere that is no fault of the job's, but it is counted.
_AGAIN, _TOO_SLOW = (4,), "timed out during startup"

Log = Callable[..., None]


class SoakError(RuntimeError):
    """The soak cannot go on: what it says is itself a violation."""


@dataclass
class Run:
    """What happened. Times are seconds since the soak began.

    commits: (time, rows done) of every commit. starts: [start, first commit or None] of every driver. made: kills, as
    (time, target). reruns: drivers that ended in order and incomplete. slow_starts: those whose Ray did not start in
    time. ended: when the last one did.
    """

    commits: list[tuple[float, int]] = field(default_factory=list)
    starts: list[list[float | None]] = field(default_factory=list)
    made: list[tuple[float, str]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    reruns: int = 0
    slow_starts: int = 0
    ended: float = 0.0

    @property
    def rows(self) -> int:
        return self.commits[-1][1] if self.commits else 0


class Soak:
    """plan: of the job. kills: in order. work: local folder. log: takes an event and its facts. env: of drivers, beside
    this process's own. every: seconds between two samples of memory. seed: draws which actor is killed."""

    def __init__(
        self, plan: Plan, kills: list[Kill], work: Path, log: Log, env: Mapping[str, str], *, every: float, seed: int
    ) -> None:
        self.run = Run()
        self._plan, self._kills, self._work, self._log = plan, list(kills), work, log
        self._env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", **env}
        self._every, self._draw = every, random.Random(f"actors {seed}")
        self._began = time.monotonic()
        self._units = 0
        self._due: float | None = None  # when the first of the kills is to strike
        self._again: float | None = None  # when the driver under way is killed whatever it has done
        self._sampled = self._moved = 0.0
        self._left: dict[int, psutil.Process] = {}
        plan.write(work / "plan.json")

    def now(self) -> float:
        return time.monotonic() - self._began

    def until_done(self) -> Run:
        """Raises `SoakError` where a driver ends otherwise than by a kill or in order, or nothing moves any more."""
        code: int | None = None
        while code != 0:
            code = self._driver()
            slow = code == 1 and _TOO_SLOW in self._said()
            if code in _AGAIN or slow:
                self.run.reruns += not slow
                self.run.slow_starts += slow
                self._log("rerun", exit_code=code, slow_start=slow)
            elif code not in (0, None):
                raise SoakError(f"a driver ended with exit code {code}: {self._said()}")
        self.run.ended = self.now()
        return self.run

    def _driver(self) -> int | None:
        """Starts a driver and stays with it; its exit code, None where it was killed."""
        number = len(self.run.starts)
        events = _Events(self._work / f"events-{number:03d}.jsonl")
        self.run.starts.append([self.now(), None])
        self._log("driver", number=number)
        command = [sys.executable, "-m", "tests.soak.driver", str(self._work / "plan.json"), str(events.path)]
        with open(self._work / "said.txt", "wb") as said:
            driver = subprocess.Popen(command, cwd=REPOSITORY, stdout=said, stderr=said, env=self._env)
        process = psutil.Process(driver.pid)
        try:
            while True:
                ended = driver.poll()  # before the events, so that none of them is missed
                for event in events.new():
                    self._take(event, number)
                if ended is not None:
                    self._log("ended", number=number, exit_code=ended)
                    return ended
                if self.now() - self._moved > PATIENCE:
                    raise SoakError(f"nothing was committed for {PATIENCE:g} s: {self._said()}")
                if self._strike(process, number):
                    return None
                self._sample(process)
                time.sleep(POLL)
        finally:
            if driver.poll() is None:
                self._left |= {p.pid: p for p in _family(process)}
                driver.kill()
            driver.wait()

    def _take(self, event: Mapping[str, Any], number: int) -> None:
        """Takes in an event of a driver."""
        if event["event"] == "running" and event["rows_done"] < self.run.rows:
            raise SoakError(f"{self.run.rows} rows were committed, and the next driver knows {event['rows_done']}")
        if event["event"] != "unit_committed":
            if event["event"] in ("unit_given_up", "error"):
                self._log(event["event"], reason=event.get("reason", ""))
            return
        now = self.now()
        self._units = event["units_done"]
        self.run.commits.append((now, event["rows_done"]))
        if self.run.starts[number][1] is None:
            self.run.starts[number][1] = now
        self._moved = now

    def _strike(self, driver: psutil.Process, number: int) -> bool:
        """Kills whose time has come; whether that was the driver."""
        if self._again is not None and self.now() >= self._again:
            self._again = None
            return self._killed(driver, "driver", number)
        if not self._kills or self._units < self._kills[0].units:
            return False
        kill = self._kills[0]
        self._due = self.now() + kill.wait if self._due is None else self._due
        if self.now() < self._due:
            return False
        if kill.target == "actor":
            actors = list(self._actors())
            if not actors or self.run.starts[number][1] is None:
                return False
            victim = self._draw.choice(actors)
        else:
            victim = driver
            self._again = None if kill.again is None else self.now() + kill.again
        self._kills.pop(0)
        self._due = None
        return self._killed(victim, kill.target, number) and kill.target == "driver"

    def _killed(self, victim: psutil.Process, target: str, number: int) -> bool:
        if target == "driver":
            self._left |= {p.pid: p for p in _family(victim)}
        os.kill(victim.pid, signal.SIGKILL)
        self.run.made.append((self.now(), target))
        self._log("kill", target=target, driver=number, units=self._units, rows=self.run.rows)
        return True

    def _actors(self) -> Iterator[psutil.Process]:
        """Living actors, those of a killed driver too."""
        folder = self._plan.actors_folder
        for path in folder.iterdir() if folder.exists() else ():
            try:
                process = psutil.Process(int(path.name))
                if process.status() != psutil.STATUS_ZOMBIE and process.create_time() <= path.stat().st_mtime + 1:
                    yield process
            except psutil.Error:
                path.unlink(missing_ok=True)

    def _sample(self, driver: psutil.Process) -> None:
        if self.now() - self._sampled < self._every:
            return
        self._sampled = self.now()
        pairs = [("driver", driver), *(("actor", actor) for actor in self._actors())]
        found = [s for role, process in pairs if (s := sample(role, process, self.run.rows)) is not None]
        self.run.samples += found
        self._log("memory", rows=self.run.rows, mib=[[s.role, s.process, round(s.bytes / 2**20, 1)] for s in found])

    def _said(self) -> str:
        return (self._work / "said.txt").read_text(errors="replace")[-2000:]

    @property
    def left(self) -> list[Kill]:
        """Kills that were not made."""
        return self._kills

    def sweep(self) -> int:
        """Ends what killed drivers have left behind; how many processes that were."""
        alive = [p for p in self._left.values() if p.is_running()]
        for process in alive:
            try:
                process.kill()
            except psutil.Error:
                continue
        psutil.wait_procs(alive, timeout=30)
        return len(alive)


def command(words: list[str], env: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON object of a command that ends with one."""
    ended = subprocess.run(
        [sys.executable, "-m", *words], cwd=REPOSITORY, env={**os.environ, **env}, capture_output=True, text=True
    )
    try:
        return ended.returncode, json.loads(ended.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return ended.returncode, {"said": (ended.stdout + ended.stderr)[-2000:]}


def _family(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


class _Events:
    """The lines that a driver has written so far, whole ones alone: a kill may cut the last."""

    def __init__(self, path: Path) -> None:
        self.path, self._at = path, 0

    def new(self) -> Iterator[dict[str, Any]]:
        if not self.path.exists():
            return
        with open(self.path, "rb") as file:
            file.seek(self._at)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._at += len(line)
                yield json.loads(line)
