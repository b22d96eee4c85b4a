"""An engine of another project that a person can follow: `python -m tests.jobs.fake_peer`, FAKE_PEER is its fault."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from jobs.timing.peers.worker import Ids, serve


class FakePeer:
    """Remembers every prompt as long as its cache lives, and writes what it was told to. way: what it does wrong."""

    version = "fake 1.0"
    spins = 0.0

    def __init__(self, way: str, order: dict[str, Any]) -> None:
        if way == "broken":
            raise ImportError("no such\nlibrary")
        self._way, self._cache = way, set[tuple[int, ...]]()
        below = subprocess.Popen(["sleep", "600"]).pid if way == "below" else 0
        self.settings = {"below": below} | {key: order[key] for key in ("precision", "threads", "longest")}

    def reset(self) -> None:
        self._cache.clear()

    def write(self, prompts: Sequence[Ids], lengths: Sequence[int]) -> tuple[list[int], int | None]:
        print("loading tensors 100 %")  # engines talk on stdout
        if self._way == "dies" and len(prompts) > 2:
            os._exit(7)
        found = 0
        for ids in map(tuple, prompts):
            found += max((n for n in range(len(ids) + 1) if ids[:n] in self._cache), default=0)
            self._cache.add(ids)
        written = [n - (self._way == "short" and n > 1) for n in lengths]
        return written, None if self._way == "untold" else found


if __name__ == "__main__":
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(lambda order: FakePeer(os.environ["FAKE_PEER"], order), sys.stdin, pipe)
