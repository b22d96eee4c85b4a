"""What `gpu.py` has found, as JSON and as a page, kept after each part."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHECKS = ("oracle", "agreement")
WITH_GRAPHS = ", CUDA graphs"
#: Seconds that a part may run on when the time for all is up.
GRACE = 90.0


class Report:
    """What was found, and what was left out and why. budget: seconds after which nothing more is begun. grace: those
    that what was begun before may take beyond them. folder: where it is kept. For the main thread."""

    def __init__(self, facts: dict[str, Any], budget: float, folder: Path, grace: float = GRACE) -> None:
        self.folder = folder
        self.facts = facts | {"left_out": {}}
        self._until = time.perf_counter() + budget
        self._grace = grace

    def attempt(self, name: str, part: Callable[[], Any]) -> Any:
        """The part's result; None where it failed, there is no time left, or it was stopped."""
        left = self._until - time.perf_counter()
        if left < 0:
            self.facts["left_out"][name] = "no time left"
            return None
        late = threading.Event()
        # Libraries put handlers of their own in its place, and leave them there (Ray Train).
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        bell = threading.Timer(left + self._grace, _stop, [late])
        bell.daemon = True
        bell.start()
        try:
            return part()
        except KeyboardInterrupt:
            if not late.is_set():
                raise
            self.facts["left_out"][name] = f"stopped {self._grace:g} s after the time was up"
        except Exception as error:  # the other parts are worth having: the device is lent for minutes
            self.facts["left_out"][name] = f"{type(error).__name__}: {error}".splitlines()[0]
        finally:
            bell.cancel()
            signal.signal(signal.SIGINT, handler)
        return None

    def write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "gpu.json").write_text(json.dumps(self.facts, indent=2) + "\n", encoding="utf-8")
        (self.folder / "gpu.md").write_text(markdown(self.facts), encoding="utf-8")


def _stop(late: threading.Event) -> None:
    """Interrupts the main thread as Ctrl-C does: a compilation, or a run of thousands of steps, has no bound."""
    late.set()
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def recorded(shapes: int | None) -> str:
    """What stands beside a figure: whether CUDA graphs were replayed at all."""
    return "–" if shapes is None else f"{shapes} shapes" if shapes else "NOTHING"


def markdown(facts: dict[str, Any]) -> str:
    lines = [f"# {facts['device']}, torch {facts['torch']}{', TINY SHAPES: no measurement' * facts['tiny']}", ""]
    for name in (check + graphs for check in CHECKS for graphs in ("", WITH_GRAPHS)):
        if found := facts.get(name):
            lines.append(
                f"- {name}, {found['dtype']}, {found['model']}: {100 * found['agreement']:.2f} % of "
                f"{found['tokens']:,} tokens agree; {found['equal_slots']} of {found['slots']} values "
                f"equal; logits differ by up to {found['worst']:.1e}; recorded: {recorded(found['recorded'])}"
            )
    lines += ["", "| model | engine | recorded | docs/s | x best AR |", "|---|---|---|---:|---:|"]
    for model, engines in facts["speed"].items():
        best = max((e["docs_per_second"] for n, e in engines.items() if not n.startswith("hpd")), default=0.0)
        for name, engine in engines.items():
            rate = engine["docs_per_second"]
            times = f"{rate / best:.2f}" if best else "–"
            lines.append(f"| {model} | {name} | {recorded(engine['recorded'])} | {rate:,.2f} | {times} |")
    if facts["steps"]:
        lines += ["", "| model | rows of a step without prefill | recorded | ms, CUDA graphs | ms, none |"]
        lines += ["|---|---:|---|---:|---:|"]
    for model, steps in facts["steps"].items():
        for rows, took in steps.items():
            what = recorded(took["recorded"])
            lines.append(f"| {model} | {rows} | {what} | {took['graphs']:.2f} | {took['none']:.2f} |")
    lines += ["", *(f"Left out: {name}: {why}" for name, why in facts["left_out"].items()), ""]
    return "\n".join(lines)
