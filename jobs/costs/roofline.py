"""The roofline: least seconds that a data sheet allows, for passes that were counted and for models that never ran.

A step takes its products at the peak rate or its bytes at the full rate of memory, whichever is longer. The formulas,
with what they leave out, stand in docs/performance.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.prices import MachinePrice
from pipeline.shapes import ModelShape

#: Bytes of a number in 16 bits, and of a logit, which is taken in 32.
WIDTH, LOGIT = 2, 4
#: Share of a GPU's memory that weights, KV and activations may take: the CUDA context and the allocator want the rest.
MEMORY_SHARE = 0.9
#: Share of the roof that is expected: an assumption. HPD reached 0.51 of it on a CPU (README); no GPU was measured.
ROOF_SHARE = 0.5
#: Tokens of a value with its terminator, where no run has counted them: an assumption.
TOKENS_PER_VALUE = 4.0


def least_seconds(flops: float, read: float, machine: MachinePrice) -> tuple[float, str]:
    """(seconds, what bounds them: "products" or "memory") of so many FLOPs and bytes `read`."""
    assert machine.flops is not None and machine.bytes_per_second is not None
    products, memory = flops / machine.flops, read / machine.bytes_per_second
    return max(products, memory), "products" if products > memory else "memory"


@dataclass(frozen=True, slots=True)
class Workload:
    """One document in the mean, in tokens.

    prefix: shared, computed once. prompt: fed of the document itself: text, suffix, stubs. slots: its attributes.
    generated: of a value, its terminator counted; one less is fed. longest: K_max, for which KV is reserved, and the
    steps that a document is taken to stay, of which it can stay no more.
    """

    prefix: float
    prompt: float
    slots: float
    generated: float
    longest: int

    @classmethod
    def of_sample(cls, sample: Mapping[str, Any], generated: float, longest: int) -> Workload:
        """sample: of `hpd plan`."""
        names = ("prefix_tokens", "prompt_tokens", "attributes")
        prefix, prompt, slots = (float(sample[f"{name}_per_document"]) for name in names)
        return cls(prefix, prompt, slots, generated, longest)

    @property
    def fed(self) -> float:
        """Rows of all its values."""
        return self.slots * max(0.0, self.generated - 1)

    @property
    def rows(self) -> float:
        return self.prompt + self.fed


@dataclass(frozen=True, slots=True)
class Estimate:
    """A model on a GPU. Bytes; of a step of `rows` rows, `slots` of which are values of `documents` in flight.

    knee: rows at which a step turns from memory-bound to compute-bound, None where none does. fits: whether one
    document at a time does. gpus: the fewest that hold it. at_roof: documents per second; expected: `ROOF_SHARE` of it.
    bound: by which of "products" and "memory". All of the latter are None where it does not fit.
    """

    model: str
    machine: str
    weights: float
    capacity: float
    needed: float
    fits: bool
    gpus: int
    kv: float | None = None
    activations: float | None = None
    knee: int | None = None
    rows: int | None = None
    slots: int | None = None
    documents: int | None = None
    bound: str | None = None
    at_roof: float | None = None
    expected: float | None = None
    dollars_per_hour: float | None = None
    dollars_per_1000: float | None = None


def estimate(
    shape: ModelShape, machine: MachinePrice, work: Workload, *, each: float = WIDTH, share: float = ROOF_SHARE
) -> Estimate:
    """each: bytes of a weight of the body, 2 in 16 bits. Products are taken in 16 bits, however weights are stored."""
    assert machine.flops and machine.bytes_per_second and machine.memory_bytes
    kv = WIDTH * shape.kv_numbers
    weights, prefix = shape.weight_bytes(each, WIDTH), work.prefix * kv
    logits = work.slots * work.generated / work.rows  # rows of a row whose next token is wanted
    row_flops = 2 * shape.body + shape.attention_flops * (work.prefix + work.prompt) + 2 * shape.head * logits
    row_activations = WIDTH * shape.activation_numbers() + logits * shape.vocabulary * (WIDTH + LOGIT)
    reserved = (work.prompt + work.slots * (work.longest - 1)) * kv  # of one document
    capacity = MEMORY_SHARE * machine.memory_bytes
    needed = weights + prefix + reserved + row_activations
    facts: dict[str, Any] = {
        "model": shape.name,
        "machine": machine.name,
        "weights": weights,
        "capacity": capacity,
        "needed": needed,
    }
    gpus = math.ceil(needed / capacity)
    if gpus > 1:
        return Estimate(**facts, fits=False, gpus=gpus)
    in_flight = work.longest / work.rows  # documents per row of a step
    # Each row of a step stands for K_max / rows documents, whose `rows` tokens of KV are read once.
    gain = row_flops / machine.flops - work.longest * kv / machine.bytes_per_second
    knee = math.ceil((weights + prefix) / machine.bytes_per_second / gain) if gain > 0 else None
    fitting = int((capacity - weights - prefix) / (in_flight * reserved + row_activations))
    rows = max(1, fitting if knee is None else min(knee, fitting))
    read = weights + prefix + rows * work.longest * kv
    step, bound = least_seconds(rows * row_flops, read, machine)
    at_roof = rows / work.rows / step
    documents = max(1, math.ceil(rows * in_flight))
    return Estimate(
        **facts,
        fits=True,
        gpus=1,
        kv=prefix + documents * reserved,
        activations=rows * row_activations,
        knee=knee,
        rows=rows,
        slots=math.floor(rows * work.fed / work.rows),
        documents=documents,
        bound=bound,
        at_roof=at_roof,
        expected=share * at_roof,
        dollars_per_hour=machine.dollars_per_hour,
        dollars_per_1000=1000 * machine.dollars_per_hour / 3600 / (share * at_roof),
    )


def estimates(
    shapes: Iterable[ModelShape], machines: Iterable[MachinePrice], work: Workload, *, each: float, share: float
) -> list[dict[str, Any]]:
    """Every shape on every machine whose data sheet is known, JSON-able."""
    known = [m for m in machines if m.flops and m.bytes_per_second and m.memory_bytes]
    return [asdict(estimate(shape, m, work, each=each, share=share)) for shape in shapes for m in known]


def told(facts: Mapping[str, Any]) -> list[str]:
    """The content of `roofline` in `hpd plan --json` as lines for people."""
    work = facts["work"]
    lines = [
        "",
        f"ROOFLINE ESTIMATE, nothing was run: {100 * facts['share']:.0f} % of what data sheets allow, "
        f"{facts['weights']}. A document is {work['prompt']:,.0f} prompt tokens after {work['prefix']:,.0f} shared "
        f"ones and {work['slots']:.1f} values of {work['generated']:.1f} tokens ({facts['generated_from']}), counted "
        f"with this job's tokenizer; prices are assumptions of {facts['prices']}.",
    ]
    head = ("model", "GPU", "weights", "KV", "activ.", "rows/step", "of them slots", "docs/s", "$/1,000", "bound by")
    table: list[Sequence[str]] = [head]
    for row in facts["rows"]:
        if row["fits"]:
            sizes = [f"{row[name] / 1e9:,.1f} GB" for name in ("weights", "kv", "activations")]
            pace = [f"{row['expected']:,.1f}", f"{row['dollars_per_1000']:.4f}", row["bound"]]
            table.append((row["model"], row["machine"], *sizes, f"{row['rows']:,}", f"{row['slots']:,}", *pace))
            continue
        needed, there = row["needed"] / 1e9, row["capacity"] / 1e9
        why = f"does not fit: needs {needed:,.1f} GB, {there:,.1f} GB usable; {row['gpus']} GPUs would hold it"
        table.append((row["model"], row["machine"], why))
    widths = [max(len(row[n]) for row in table if len(row) == len(head)) for n in range(len(head))]
    for row in table:
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip())
    return lines
