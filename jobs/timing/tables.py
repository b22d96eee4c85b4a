"""The report of a benchmark as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobs.scores.markdown import cell, table_head, table_row


def markdown(facts: Mapping[str, Any]) -> str:
    """facts: the content of benchmark.json, of a comparison or of ablations."""
    lines = [f"# {facts['heading']}", ""]
    lines += _ablations(facts) if facts["kind"] == "ablations" else _comparison(facts)
    machine = facts["machine"]
    rates = [rate / 1e9 for rate in machine["rates"]]
    lines += [
        "",
        f"Roof: {machine['roof'] / 1e9:.1f} GFLOP/s, the best of F.linear at {machine['hidden']} x "
        f"{machine['intermediate']}, {machine['dtype']}, {machine['threads']} threads, measured once per round "
        f"({min(rates):.1f} to {max(rates):.1f}). Model: {machine['body'] / 1e6:.1f} million parameters in its body, "
        f"{machine['head'] / 1e6:.1f} in its head.",
        f"Dollars: {machine['dollars_per_hour']:g} an hour, an assumption. Definitions: docs/benchmark.md.",
    ]
    for name, about in facts.get("peers", {}).items():
        settings = ", ".join(f"{key} {value}" for key, value in about["settings"].items())
        lines.append(f"{cell(name)}: {cell(about['version'])}; {cell(settings)}.")
    if any(row.get("needed_flops_is_bound") for row in facts["engines"]):
        lines.append("<=: the engine does not tell what its prefix cache saved; counted as if it had saved nothing.")
    return "\n".join([*lines, ""])


def _comparison(facts: Mapping[str, Any]) -> list[str]:
    names = [*_NAMES, "x AR batch 1", "x AR best"]
    lines = table_head(names)
    for row in facts["engines"]:
        ratios = [_number(row[f"ratio_to_{of}"], ".2f") for of in ("ar_batch_1", "ar_best")]
        lines.append(table_row([*_figures(row), *ratios]))
    lines += _left_out(facts, len(names))
    against, steps = facts["hpd_against"], facts["steps"]
    lines.append("")
    for key, name in (
        ("ar_batch_1", "AR, every key, batch 1"),
        ("ar_best", f"AR, every key, at its best ({facts['ar_best']})"),
        ("ar_present_best", f"AR, present keys only, at its best ({facts['ar_present_best']})"),
        ("other_best", f"the best of the others ({facts['other_best']})"),
        ("peer_best", f"the best peer ({facts.get('peer_best')})"),
    ):
        if key in against:
            lines.append(f"- HPD / {name}: {_ratio(against[key])}")
    if steps is not None:
        lines += [
            f"- Steps of AR / steps of HPD, one document at a time: predicted {steps['predicted']:.2f}, counted "
            f"{steps['counted']:.2f}. Sum of value lengths / longest value: {steps['values_only']:.2f}.",
        ]
    return lines


def _ablations(facts: Mapping[str, Any]) -> list[str]:
    lines = table_head([*_NAMES, "brings"])
    for row in facts["engines"]:
        brings = _ratio(row["brings"]) if row["without"] else "–"
        lines.append(table_row([*_figures(row), brings]))
    lines += _left_out(facts, len(_NAMES) + 1)
    return [*lines, "", "Brings: documents per second with the optimisation / without it, all others on."]


def _left_out(facts: Mapping[str, Any], width: int) -> list[str]:
    """A row for each engine that has no figures, with the reason."""
    return [
        table_row([cell(label), f"left out: {cell(reason)}", *["–"] * (width - 2)])
        for label, reason in facts["left_out"].items()
    ]


_NAMES = (
    "engine",
    "docs/s (slowest-fastest)",
    "$ per 1,000",
    "GFLOP per document",
    "share of roofline",
    "computed, not needed",
    "tokens/s",
    "steps",
    "tokens/step",
    "rows/pass",
    "slot-steps with work",
    "steps filled",
    "peak GiB",
)


def _figures(row: Mapping[str, Any]) -> list[str]:
    low, high = row["docs_per_second_spread"]
    bound = "<= " if row.get("needed_flops_is_bound") else ""
    return [
        cell(row["label"]),
        f"{row['docs_per_second']:.2f} ({low:.2f}-{high:.2f})",
        f"{row['dollars_per_1000']:.4f}",
        f"{bound}{row['needed_flops_per_document'] / 1e9:.2f}",
        f"{bound}{_percent(row['roofline_share'])}",
        _percent(row["waste"]),
        f"{row['tokens_per_second']:.0f}",
        _number(row["steps"], ","),
        _number(row["tokens_per_step"], ".1f"),
        _number(row["rows_per_pass"], ".0f"),
        _percent(row["slot_share"]),
        _percent(row["step_fill"]),
        f"{row['peak_bytes'] / 2**30:.2f}",
    ]


def _number(value: float | None, form: str) -> str:
    """A dash where it is not known."""
    return "–" if value is None else format(value, form)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def _ratio(ratio: Mapping[str, float]) -> str:
    return f"{ratio['median']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"
