"""The numbers of metrics.json for whoever watches the cluster: the same counts, through Ray's Prometheus endpoint."""

from __future__ import annotations

from ray.util.metrics import Counter

from pipeline.metrics import Metrics

_DECODE = ("documents", "model_calls", "steps", "prompt_tokens", "generated_tokens", "truncated")


class Exports:
    """Counters that live in the driver and grow with each committed unit."""

    def __init__(self) -> None:
        self._rows = Counter("hpd_rows", "committed rows", tag_keys=("status",))
        self._seconds = Counter("hpd_stage_seconds", "wall time summed over workers", tag_keys=("stage",))
        self._decode = {name: Counter(f"hpd_{name}", f"{name} of committed units") for name in _DECODE}

    def add(self, metrics: Metrics) -> None:
        for status, rows in metrics.rows.items():
            self._grow(self._rows, rows, {"status": status})
        for stage, seconds in metrics.seconds.items():
            self._grow(self._seconds, seconds, {"stage": stage})
        counts = metrics.decode.as_dict()
        for name, counter in self._decode.items():
            self._grow(counter, counts[name], {})

    @staticmethod
    def _grow(counter: Counter, by: float, tags: dict[str, str]) -> None:
        if by > 0:  # Ray refuses to add nothing
            counter.inc(by, tags=tags)
