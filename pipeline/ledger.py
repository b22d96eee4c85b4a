"""An actor that remembers which units were begun and what was spent on them. Losing it loses a count, never a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Attempt:
    """One try of one unit by one actor. tokens: prompt tokens handed to the decoder so far."""

    tokens: int = 0
    finished: bool = False


@dataclass
class Ledger:
    """{unit name: {attempt id: Attempt}}; run as a Ray actor with `num_cpus=0`."""

    attempts: dict[str, dict[str, Attempt]] = field(default_factory=dict)

    def spend(self, unit: str, attempt: str, tokens: int) -> None:
        """The attempt begins (0 tokens), or hands `tokens` more to the decoder."""
        self.attempts.setdefault(unit, {}).setdefault(attempt, Attempt()).tokens += tokens

    def finish(self, unit: str, attempt: str) -> tuple[int, int]:
        """(other tries of the unit so far, prompt tokens that were spent on them)."""
        tries = self.attempts.setdefault(unit, {})
        mine = tries.setdefault(attempt, Attempt())
        mine.finished = True
        return len(tries) - 1, sum(other.tokens for other in tries.values()) - mine.tokens

    def report(self) -> dict[str, dict[str, Attempt]]:
        return self.attempts


def wasted(attempts: Mapping[str, Mapping[str, Attempt]]) -> tuple[int, int]:
    """(tries beyond the first of each unit, prompt tokens of tries that did not finish or were not the first to)."""
    retries = sum(len(tries) - 1 for tries in attempts.values())
    tokens = 0
    for tries in attempts.values():
        useful = next((a for a in tries.values() if a.finished), None)
        tokens += sum(a.tokens for a in tries.values() if a is not useful)
    return retries, tokens
