"""A judge's verdict on each predicted value, and how far it agrees with the gold."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from jobs.remote.asking import AnswerError, Question, check_keys, json_object
from jobs.remote.prompts import rendered
from jobs.scores.agreement import cohen_kappa
from jobs.scores.dataset import BenchmarkRow
from jobs.scores.scoring import Outcome, is_value, outcomes


class Verdict(StrEnum):
    CORRECT = "correct"
    WRONG = "wrong"
    #: No value was predicted, and the text has one.
    MISSING = "missing"
    #: No value was predicted, and the text has none.
    ABSENT = "absent"


#: Verdicts that a slot can get: one with a value, and one without. How often a judge agrees is told for each kind by
#: itself, since which kind a slot is of is no judgement.
OF_VALUE = (Verdict.CORRECT, Verdict.WRONG)
OF_NONE = (Verdict.MISSING, Verdict.ABSENT)
_BY_GOLD = {
    Outcome.VC: Verdict.CORRECT,
    Outcome.VW: Verdict.WRONG,
    Outcome.NV: Verdict.WRONG,
    Outcome.VN: Verdict.MISSING,
    Outcome.NN: Verdict.ABSENT,
}


@dataclass(slots=True)
class Agreement:
    """Verdicts of gold and judge on the same slots. pairs: {(by the gold, by the judge): slots}."""

    pairs: Counter[tuple[Verdict, Verdict]] = field(default_factory=Counter)

    def as_dict(self, kinds: tuple[Verdict, ...]) -> dict[str, Any]:
        """Of slots whose verdict is one of `kinds`. agreement: share in percent. kappa: see `cohen_kappa`."""
        pairs = {(gold, judge): self.pairs[gold, judge] for gold in kinds for judge in kinds}
        slots = sum(pairs.values())
        same = sum(self.pairs[kind, kind] for kind in kinds)
        return {
            "slots": slots,
            "agreement": round(100 * same / slots, 2) if slots else None,
            "kappa": cohen_kappa(pairs),
            "table": [
                {"gold": gold.value, "judge": judge.value, "slots": count} for (gold, judge), count in pairs.items()
            ],
        }


def judge_question(row: BenchmarkRow, said: Mapping[str, str | None], seed: str) -> Question:
    """What a judge is asked about a row. seed: decides the order of the attributes, so that none is always last."""
    values = {name: value if is_value(value) else None for name, value in said.items()}
    names = sorted(values)
    random.Random(seed).shuffle(names)
    shown = json.dumps({name: values[name] for name in names}, ensure_ascii=False, indent=1)
    user = rendered("judge-question.txt.j2", category=row.category, text=row.text, values=shown)
    shape = {
        "type": "object",
        "properties": {name: {"type": "string", "enum": [v.value for v in _possible(values[name])]} for name in names},
        "required": names,
        "additionalProperties": False,
    }
    return Question(rendered("judge.txt.j2"), user, shape, lambda text: verdicts_of(values, text))


def verdicts_of(said: Mapping[str, str | None], text: str) -> dict[str, Verdict]:
    """{attribute: verdict} of a judge's answer about `said`. Raises AnswerError."""
    found = json_object(text)
    check_keys(found, said)
    verdicts = {}
    for name, value in said.items():
        possible = {verdict.value: verdict for verdict in _possible(value)}
        if found[name] not in list(possible):
            raise AnswerError(f"{name!r} is {found[name]!r}, which must be one of {', '.join(possible)}")
        verdicts[name] = possible[found[name]]
    return verdicts


def gold_verdicts(row: BenchmarkRow, said: Mapping[str, str | None]) -> dict[str, Verdict]:
    """{attribute: what the gold says of it}, of attributes that the row's gold names."""
    return {name: _BY_GOLD[outcome] for name, outcome in outcomes(row.gold, said) if outcome in _BY_GOLD}


def judged_facts(verdicts: Iterable[Mapping[str, Verdict]], gold: Iterable[Mapping[str, Verdict]]) -> dict[str, Any]:
    """Counts, the precision that the judge sees in percent, and the agreement with the gold. Both are per row."""
    counts: Counter[Verdict] = Counter()
    by_attribute: dict[str, Counter[Verdict]] = {}
    agreement = Agreement()
    for judged, known in zip(verdicts, gold, strict=True):
        counts.update(judged.values())
        for name, verdict in judged.items():
            by_attribute.setdefault(name, Counter())[verdict] += 1
            if name in known:
                agreement.pairs[known[name], verdict] += 1
    values = counts[Verdict.CORRECT] + counts[Verdict.WRONG]
    return {
        "verdicts": _in_order(counts),
        "precision": round(100 * counts[Verdict.CORRECT] / values, 2) if values else None,
        "agreement_with_gold": {"of_values": agreement.as_dict(OF_VALUE), "of_none": agreement.as_dict(OF_NONE)},
        "by_attribute": {name: _in_order(found) for name, found in by_attribute.items()},
    }


def _possible(value: str | None) -> tuple[Verdict, ...]:
    return OF_VALUE if is_value(value) else OF_NONE


def _in_order(counts: Mapping[Verdict, int]) -> dict[str, int]:
    return {verdict.value: counts.get(verdict, 0) for verdict in Verdict}
