"""A cluster that a person can follow: jobs go through the states they are given, one at each look."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jobs.cluster.submission import Clock, ClusterUnavailableError, RemoteJob, State, Submission


@dataclass
class FakeCluster:
    """script: states of a submitted job, the last one for ever. logs: what it has written at each look. at_look: called
    with the number of each look. silent: looks at which nobody answers. deaf: how often a job is told to stop in vain.
    read: after how many looks the log was read."""

    script: Sequence[State] = (State.PENDING, State.RUNNING, State.SUCCEEDED)
    logs: Sequence[str] = ("",)
    exit_code: int | None = None
    known: dict[str, RemoteJob] = field(default_factory=dict)
    at_look: Callable[[int], None] = lambda _: None
    silent: range = range(0)
    deaf: int = 0
    quicker: bool = False
    address: str = "http://head:8265"
    looks: int = 0
    submitted: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    read: list[int] = field(default_factory=list)

    def add(self, id: str, state: State, metadata: Mapping[str, str] = {}) -> None:
        self.known[id] = RemoteJob(id, state, metadata=metadata)

    def jobs(self) -> Sequence[RemoteJob]:
        return list(self.known.values())

    def job(self, id: str) -> RemoteJob | None:
        look, self.looks = self.looks, self.looks + 1
        self.at_look(look)
        if look in self.silent:
            raise ClusterUnavailableError(f"the Ray cluster at {self.address} cannot be reached: nobody answers")
        if id in self.known and id not in self.stopped and self.script:
            state = self.script[min(look, len(self.script) - 1)]
            self.known[id] = replace(self.known[id], state=state, exit_code=self.exit_code if state.ended else None)
        return self.known.get(id)

    def submit(self, id: str, submission: Submission) -> bool:
        self.add(id, State.PENDING, submission.metadata)
        if self.quicker:
            return False
        self.submitted.append(id)
        return True

    def log(self, id: str) -> str:
        self.read.append(self.looks)
        return self.logs[min(self.looks, len(self.logs)) - 1]

    def stop(self, id: str) -> bool:
        if self.deaf:
            self.deaf -= 1
            return False
        self.stopped.append(id)
        self.known[id] = replace(self.known[id], state=State.STOPPED)
        return True


@dataclass
class FakeTime:
    """Seconds pass only while somebody sleeps."""

    seconds: float = 0.0
    slept: list[float] = field(default_factory=list)

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.seconds, self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.seconds += seconds
