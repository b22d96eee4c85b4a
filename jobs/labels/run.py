"""What became of the rows that were to be labelled, and the files that say so."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpd_core.schema import Document
from jobs.labels.label import Kept, Label, benchmark_line
from jobs.scores.lines import write_lines
from pipeline.catalog import Product

_CONTRADICTED = "contradicted"


@dataclass(slots=True)
class LabelRun:
    """rows = lines + duplicates + rejected. kept: {attribute: how many of each `Kept`}, of rejected rows too.

    contradicted: labels that were taken back because a duplicate said something else.
    """

    rows: int = 0
    lines: list[dict[str, Any]] = field(default_factory=list)
    rejected: list[dict[str, Any]] = field(default_factory=list)
    duplicates: int = 0
    contradicted: int = 0
    kept: dict[str, Counter[Kept]] = field(default_factory=dict)
    _seen: dict[tuple[str, Document], dict[str, Any]] = field(default_factory=dict)

    def add(self, product: Product, document: Document, labels: Sequence[Label]) -> None:
        """The labels of a product. One whose text, schema and category came before gives no second line: it adds what
        it alone says to the first, and takes back what it contradicts."""
        line = benchmark_line(document.text, product.category, labels)
        first = self._seen.get((product.category, document))
        if first is not None:
            self.rows += 1
            self.duplicates += 1
            self._merge(first, line)
            return
        for label in labels:
            self.kept.setdefault(label.attribute, Counter())[label.kept] += 1
        if not line["target_scores"]:
            self.reject(product, "nothing_usable", f"no value can be used: {line['dropped']}")
            return
        self.rows += 1
        self._seen[product.category, document] = line
        self.lines.append(line)

    def reject(self, product: Product, kind: str, reason: str) -> None:
        """A product without labels, and why."""
        self.rows += 1
        text = product.item.text if isinstance(product.item, Document) else None
        where = {"file": product.file, "row": product.row, "category": product.category}
        self.rejected.append(where | {"kind": kind, "reason": reason, "input": text})

    def facts(self) -> dict[str, Any]:
        """What the summary says of it, JSON-able."""
        reasons = Counter(line["kind"] for line in self.rejected)
        return {
            "rows": self.rows,
            "labelled": len(self.lines),
            "duplicates": self.duplicates,
            "contradicted": self.contradicted,
            "rejected": dict(reasons),
            "attributes": {name: {k.value: found[k] for k in Kept} for name, found in self.kept.items()},
        }

    def _merge(self, first: dict[str, Any], again: Mapping[str, Any]) -> None:
        scores, dropped = first["target_scores"], first.get("dropped", {})
        for name, values in again["target_scores"].items():
            if dropped.get(name, {}).get("reason") == _CONTRADICTED:
                continue
            dropped.pop(name, None)  # what the first said of it was no label
            if scores.setdefault(name, values) != values:
                dropped[name] = {"value": [*scores.pop(name), *values], "reason": _CONTRADICTED}
                self.contradicted += 1
        if dropped:
            first["dropped"] = dropped
        else:
            first.pop("dropped", None)

    def write(self, path: Path, facts: Mapping[str, Any]) -> None:
        """`path`, and beside it .rejected.jsonl and .summary.json, which holds `facts`."""
        write_lines(path, self.lines)
        write_lines(path.with_suffix(".rejected.jsonl"), self.rejected)
        text = json.dumps(facts, indent=2, ensure_ascii=False) + "\n"
        path.with_suffix(".summary.json").write_text(text, encoding="utf-8")


def shown(facts: Mapping[str, Any]) -> list[str]:
    """`LabelRun.facts` for people."""
    rejected = ", ".join(f"{count} {kind}" for kind, count in facts["rejected"].items()) or "none"
    lines = [
        f"{facts['rows']} rows = {facts['labelled']} labelled + {facts['duplicates']} duplicates + "
        f"{sum(facts['rejected'].values())} rejected ({rejected})",
        f"{'attribute':24}{''.join(f'{kind.value:>12}' for kind in Kept)}",
    ]
    for name, found in facts["attributes"].items():
        lines.append(f"{name:24}{''.join(f'{found[kind.value]:>12}' for kind in Kept)}")
    return lines
