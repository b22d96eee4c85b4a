"""Runs of `hpd extract` against the bare decoder loop: seconds, ratios, Markdown. See `jobs.benchmark_pipeline`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from jobs.console import Exit
from jobs.scores.markdown import table_head, table_row
from pipeline.job import JobError


@dataclass(frozen=True, slots=True)
class Extracted:
    """One run of `hpd extract`, in seconds: see above."""

    whole: float
    decode: float
    waiting: float

    @property
    def stream(self) -> float:
        return self.decode + self.waiting

    @property
    def start_up(self) -> float:
        return self.whole - self.stream


def extracted(words: Sequence[str], output: Path) -> Extracted:
    """Runs `hpd extract` with these words. Raises JobError where it does not end complete. How many rows may be in
    error is no matter of speed."""
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "jobs.extract", *words, "--output", str(output), "--json"],
                          stdout=subprocess.PIPE, text=True)  # fmt: skip
    whole = time.perf_counter() - started
    if done.returncode not in (Exit.COMPLETE, Exit.TOO_MANY_ERRORS):
        raise JobError(f"hpd extract ended with code {done.returncode}; it says why above")
    return parts(whole, json.loads((output / "metrics.json").read_text())["seconds"])


def parts(whole: float, seconds: Mapping[str, float]) -> Extracted:
    """seconds: those of metrics.json, by stage."""
    return Extracted(whole, seconds.get("decode", 0.0), seconds.get("idle", 0.0))


def figures(bare: Sequence[float], runs: Sequence[Extracted], documents: int) -> dict[str, Any]:
    """Medians, and ratios of the pipeline to the bare loop (1: as fast): of medians, least and most of any round."""
    parts = {
        "decode": [run.decode for run in runs],
        "stream": [run.stream for run in runs],
        "whole": [run.whole for run in runs],
    }
    ratios = {}
    for name, seconds in parts.items():
        rounds = [own / theirs for own, theirs in zip(bare, seconds, strict=True)]
        ratios[name] = {"median": median(bare) / median(seconds), "low": min(rounds), "high": max(rounds)}
    return {
        "documents": documents,
        "bare_seconds": list(bare),
        "runs": [asdict(run) | {"stream": run.stream, "start_up": run.start_up} for run in runs],
        "start_up_seconds": median(run.start_up for run in runs),
        "ratios": ratios,
    }


def markdown(facts: Mapping[str, Any]) -> str:
    names = {
        "decode": "decode phase of the actor",
        "stream": "the actor's stream, waiting between units included",
        "whole": "the whole command, start-up included",
    }
    bare, documents = median(facts["bare_seconds"]), facts["documents"]
    lines = [
        f"# Pipeline against bare decoder: {facts['heading']}",
        "",
        *table_head(["what", "seconds", "docs/s", "of the bare loop's speed"]),
        table_row(["bare decoder loop", f"{bare:.2f}", f"{documents / bare:.2f}", "1"]),
    ]
    for key, name in names.items():
        seconds, ratio = median(run[key] for run in facts["runs"]), facts["ratios"][key]
        speed = f"{ratio['median']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"
        lines.append(table_row([name, f"{seconds:.2f}", f"{documents / seconds:.2f}", speed]))
    lines += [
        "",
        f"Start-up: {facts['start_up_seconds']:.1f} s, once. Medians of {len(facts['runs'])} rounds, in turns.",
    ]
    return "\n".join([*lines, ""])
