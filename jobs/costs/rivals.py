"""What other ways to do the same work cost: methods of a benchmark, hosted models priced per token, other machines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hpd_core.rows import Counts
from jobs.costs.roofline import ROOF_SHARE, WIDTH, Workload, estimates, least_seconds
from jobs.costs.runs import MeasuredRun
from pipeline.job import JobError
from pipeline.metrics import total
from pipeline.prices import HostedPrice, MachinePrice
from pipeline.shapes import model_shapes

#: Tokens of an attribute's key in an answer, where no plan has counted them: an assumption.
KEY_TOKENS = 3.0


def hosted_tokens(runs: Sequence[MeasuredRun], plan: Mapping[str, Any] | None) -> dict[str, Any]:
    """Tokens of one row in a request with the whole instruction and an answer of every key with its value, counted with
    this model's tokenizer. A row that is no document or repeats another one is not sent, and what HPD is fed as
    stubs, whole keys or a token of each, is none of the request: the answer writes the keys."""
    metrics = total(run.metrics for run in runs)
    decode = metrics.decode
    documents = decode.documents
    if plan is None:
        keys, prefix = KEY_TOKENS * decode.slots, float(decode.prefix_tokens + decode.cached_tokens)
        sent, fed = documents / metrics.rows_in, decode.prompt_tokens / documents
        keys, prefix = keys / documents, prefix / documents
        stubs = keys
    else:
        sample = plan["sample"]
        sent = sample["documents"] / sample["rows"] * documents / (documents + decode.duplicates)
        keys, prefix = sample["key_tokens_per_document"], sample["prefix_tokens_per_document"]
        fed, stubs = sample["prompt_tokens_per_document"], sample["stub_tokens_per_document"]
    values = decode.generated_tokens / decode.slots
    slots = decode.slots / documents if plan is None else plan["sample"]["attributes_per_document"]
    return {
        "sent_per_row": sent,
        "input_per_document": prefix + max(0.0, fed - stubs),
        "output_per_document": keys + slots * values,
        "keys_assumed": plan is None,
        "key_tokens": KEY_TOKENS,
    }


def hosted(prices: Iterable[HostedPrice], tokens: Mapping[str, Any], rows: float, ours: float) -> list[dict[str, Any]]:
    """Hosted models for so many rows at the full and at the batch price. ours: dollars of HPD for them."""
    found = []
    for price in prices:
        one = tokens["sent_per_row"] * price.dollars(tokens["input_per_document"], tokens["output_per_document"])
        found.append(
            {
                "name": price.name,
                "input": price.input,
                "output": price.output,
                "source": price.source,
                "date": price.date,
                "note": price.note,
                "dollars_per_1000": one * 1000,
                "dollars": one * rows,
                "batch_dollars": one * rows * price.batch_factor,
                "saved": one * rows - ours,
                "batch_saved": one * rows * price.batch_factor - ours,
            }
        )
    return found


def ways_to_ask(hosted: Iterable[Mapping[str, Any]], rows: float) -> list[dict[str, Any]]:
    """Each hosted model at its full price, and in batches where that is cheaper: nobody waits for a catalog."""
    found = []
    for row in hosted:
        prices = {row["name"]: row["dollars"]}
        if row["batch_dollars"] < row["dollars"]:
            prices[f"{row['name']}, in batches"] = row["batch_dollars"]
        for name, dollars in prices.items():
            found.append({"name": name, "dollars": dollars, "dollars_per_1000": dollars / rows * 1000})
    return found


def read_comparison(path: Path) -> dict[str, Any]:
    """A benchmark.json of `hpd benchmark`. Raises JobError where it is none, or one of ablations."""
    try:
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        engines = {row["engine"]: float(row["docs_per_second"]) for row in facts["engines"]}
        sizes = [float(facts["machine"][name]) for name in ("body", "head", "dollars_per_hour")]
    except OSError as error:
        raise JobError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise JobError(f"{path}: not a benchmark.json of `hpd benchmark` ({error!r})") from error
    if facts.get("kind") != "comparison" or "hpd" not in engines or not all([*engines.values(), *sizes[:2]]):
        raise JobError(f"{path}: not a comparison of HPD with other methods; run `hpd benchmark` without --ablations")
    return facts


def methods(benchmark: Mapping[str, Any], rows: float, ours: float) -> list[dict[str, Any]]:
    """Engines of a benchmark at the price of this corpus: HPD's cost times how much slower each was there."""
    fastest = {row["engine"]: row["docs_per_second"] for row in reversed(benchmark["engines"])}["hpd"]
    return [
        {
            "name": row["label"],
            "documents_per_second": row["docs_per_second"],
            "ratio": fastest / row["docs_per_second"],
            "dollars": ours * fastest / row["docs_per_second"],
            "dollars_per_1000": ours * fastest / row["docs_per_second"] / rows * 1000,
            "saved": ours * fastest / row["docs_per_second"] - ours,
        }
        for row in benchmark["engines"]
    ]


def roofline(
    machines: Iterable[MachinePrice], counts: Counts, rows: int, size: tuple[float, float], measured_on: str | None
) -> list[dict[str, Any]]:
    """Least seconds per row that the data sheets of other machines allow, with the passes that were counted here.

    size: parameters of the model's body and head, of which each pass reads all. A pass takes its products at the peak
    rate or its weights at the full rate of memory, whichever is longer; nothing else takes any time.
    """
    body, head = size
    fed = counts.prompt_tokens + counts.prefix_tokens + counts.decode_rows
    flops = 2 * (body * fed + head * counts.generated_tokens)
    found = []
    for machine in machines:
        if machine.flops is None or machine.bytes_per_second is None or machine.name == measured_on:
            continue
        read = counts.model_calls * WIDTH * (body + head)
        seconds, bound = least_seconds(flops, read, machine)
        seconds /= rows
        found.append(
            {
                "name": machine.name,
                "rows_per_second": 1 / seconds,
                "bound": bound,
                "dollars_per_hour": machine.dollars_per_hour,
                "dollars_per_1000": seconds * 1000 * machine.dollars_per_hour / 3600,
                "source": machine.source,
            }
        )
    return found


def on_paper(
    runs: Sequence[MeasuredRun], plan: Mapping[str, Any] | None, machines: Iterable[MachinePrice]
) -> dict[str, Any]:
    """Published models, those of conf/shapes.yaml, on machines whose data sheet is known: what `hpd plan --roofline`
    tells, for the documents of the plan or those that were measured. Weights and products in 16 bits."""
    decode = total(run.metrics for run in runs).decode
    longest = int(runs[0].run["facts"]["decoder"]["settings"]["max_value_tokens"])
    generated = max(1.0, decode.generated_tokens / decode.slots)
    if plan is None:
        each = (decode.prefix_tokens + decode.cached_tokens, decode.prompt_tokens, decode.slots)
        prefix, prompt, slots = (count / decode.documents for count in each)
        work = Workload(prefix, prompt, slots, generated, longest)
    else:
        work = Workload.of_sample(plan["sample"], generated, longest)
    rows = estimates(model_shapes().values(), machines, work, each=WIDTH, share=ROOF_SHARE)
    return {"work": asdict(work), "share": ROOF_SHARE, "rows": rows}


def break_even(spent: float, others: Iterable[tuple[str, float]], ours_per_1000: float) -> list[dict[str, Any]]:
    """Rows after which so many dollars of training have come back, against each (name, dollars per 1,000); None where
    they never do."""
    return [
        {
            "name": name,
            "dollars_per_1000": dollars,
            "documents": 1000 * spent / (dollars - ours_per_1000) if dollars > ours_per_1000 else None,
        }
        for name, dollars in others
    ]
