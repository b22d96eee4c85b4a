"""Times several decoders on the same documents in one process, and sums up what they did."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from hpd_core.rows import Counts

#: Name of the contender that ratios are taken against, and that it must be present at batch 1.
REFERENCE = "ar"


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to decode all documents. batch: documents decoded together, 0 where the decoder chooses by itself."""

    name: str
    batch: int
    run: Callable[[], Counts]

    @property
    def label(self) -> str:
        return f"{self.name}, batch {self.batch}" if self.batch else self.name


@dataclass(frozen=True, slots=True)
class Measurement:
    """Wall seconds of each repeat, and the counts of one (they are the same in all)."""

    name: str
    batch: int
    label: str
    documents: int
    seconds: tuple[float, ...]
    counts: Counts

    @property
    def docs_per_second(self) -> float:
        return self.documents / median(self.seconds)

    @property
    def spread(self) -> tuple[float, float]:
        """Slowest and fastest repeat, documents per second."""
        return self.documents / max(self.seconds), self.documents / min(self.seconds)

    @property
    def tokens_per_second(self) -> float:
        return self.counts.generated_tokens / median(self.seconds)

    @property
    def tokens_per_step(self) -> float:
        """Generated tokens per decoding step; a prefill emits tokens as well, so 0 steps are counted as one."""
        return self.counts.generated_tokens / max(1, self.counts.steps)

    def as_dict(self) -> dict[str, Any]:
        return {
            "decoder": self.name,
            "batch": self.batch,
            "documents": self.documents,
            "seconds": [round(s, 4) for s in self.seconds],
            "docs_per_second": self.docs_per_second,
            "docs_per_second_spread": list(self.spread),
            "tokens_per_second": self.tokens_per_second,
            "steps": self.counts.steps,
            "tokens_per_step": self.tokens_per_step,
            "counts": self.counts.as_dict(),
        }


def measure(
    contenders: Sequence[Contender],
    documents: int,
    repeat: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
    say: Callable[[str], None] = lambda _: None,
) -> list[Measurement]:
    """Runs every contender `repeat` times, interleaved, each round starting with another one.

    What slows the machine down for a while then falls on all of them, and none is always first after another.
    """
    seconds: list[list[float]] = [[] for _ in contenders]
    counts: list[Counts] = [Counts() for _ in contenders]
    for turn in range(repeat):
        for place in range(len(contenders)):
            index = (place + turn) % len(contenders)
            start = clock()
            counts[index] = contenders[index].run()
            seconds[index].append(clock() - start)
            say(f"round {turn + 1}/{repeat}: {contenders[index].label}: {seconds[index][-1]:.1f} s")
    return [
        Measurement(c.name, c.batch, c.label, documents, tuple(s), n)
        for c, s, n in zip(contenders, seconds, counts, strict=True)
    ]


def report(measurements: Sequence[Measurement]) -> dict[str, Any]:
    """All figures, the ratios of documents per second to AR at batch 1 and at its best batch, the step factors."""
    references = [m for m in measurements if m.name == REFERENCE]
    single = next(m for m in references if m.batch == 1)
    best = max(references, key=lambda m: m.docs_per_second)
    rows = [
        m.as_dict()
        | {
            "label": m.label,
            "ratio_to_ar_batch_1": m.docs_per_second / single.docs_per_second,
            "ratio_to_ar_best": m.docs_per_second / best.docs_per_second,
        }
        for m in measurements
    ]
    return {"decoders": rows, "ar_best_batch": best.batch, "steps": step_factors(measurements, single)}


def step_factors(measurements: Sequence[Measurement], single: Measurement) -> dict[str, float]:
    """How many times fewer steps HPD takes than AR at batch 1, document by document: predicted and counted.

    Predicted is (sum over documents of what AR writes - 1) / (sum of the longest value - 1): the first token of each
    comes out of the prefill and takes no step. `values_only` is the paper's factor, sum of value lengths / longest
    value, which leaves out the keys that AR writes as well.
    """
    hpd = next(m for m in measurements if m.name == "hpd" and m.batch == 1)
    longest = hpd.counts.longest_value_tokens
    return {
        "predicted": (single.counts.generated_tokens - single.documents) / max(1, longest - hpd.documents),
        "counted": single.counts.steps / max(1, hpd.counts.steps),
        "values_only": hpd.counts.generated_tokens / max(1, longest),
    }


def markdown(facts: dict[str, Any], heading: str) -> str:
    """The report as a Markdown table with one line per decoder."""
    lines = [
        f"# {heading}",
        "",
        "| decoder | docs/s (slowest-fastest) | tokens/s | steps | tokens/step | x AR batch 1 | x AR best "
        f"(batch {facts['ar_best_batch']}) |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in facts["decoders"]:
        low, high = row["docs_per_second_spread"]
        lines.append(
            f"| {row['label']} | {row['docs_per_second']:.2f} ({low:.2f}-{high:.2f}) | {row['tokens_per_second']:.0f} "
            f"| {row['steps']} | {row['tokens_per_step']:.1f} | {row['ratio_to_ar_batch_1']:.2f} "
            f"| {row['ratio_to_ar_best']:.2f} |"
        )
    steps = facts["steps"]
    lines += [
        "",
        f"Steps of AR / steps of HPD, one document at a time: predicted {steps['predicted']:.2f}, counted "
        f"{steps['counted']:.2f}. Sum of value lengths / longest value: {steps['values_only']:.2f}.",
        "Tokens are those a decoder writes: autoregressive decoding writes the keys as well as the values.",
        "",
    ]
    return "\n".join(lines)
