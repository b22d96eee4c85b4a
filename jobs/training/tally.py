"""What of one data set is taught and what is left out, counted by reason, to be said out loud."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hpd_core.examples import Labelled
from hpd_core.schema import Document

#: Texts that may be written, none where the attribute is known to be absent, None where nothing may be taught.
Known = tuple[str, ...] | None


@dataclass(slots=True)
class Tally:
    """Counts of one data set. excluded: texts that may not be taught, as `one_line` gives them. rows_out, values_out:
    {reason: how many}; first: where each reason came up first."""

    excluded: frozenset[str] = frozenset()
    rows: int = 0
    values: int = 0
    absent: int = 0
    rows_out: Counter[str] = field(default_factory=Counter)
    values_out: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)

    def leave_row(self, reason: str, where: str, rows: int = 1) -> None:
        self.rows_out[reason] += rows
        self.first.setdefault(reason, where)

    def leave_value(self, reason: str, where: str) -> None:
        self.values_out[reason] += 1
        self.first.setdefault(reason, where)

    def teach(self, document: Document, values: dict[str, Known], where: str) -> Labelled | None:
        """The labelled row, counted; None where nothing of it may be taught."""
        if one_line(document.text) in self.excluded:
            self.leave_row("the text stands in an excluded file", where)
            return None
        if all(known is None for known in values.values()):
            self.leave_row("nothing of it may be taught", where)
            return None
        self.rows += 1
        self.values += sum(bool(known) for known in values.values())
        self.absent += sum(known == () for known in values.values())
        return Labelled(document, values)

    def lines(self) -> list[str]:
        """For people: what is taught, and one line per reason for what is not."""
        said = [f"{self.rows} rows with {self.values} values and {self.absent} known absences"]
        for what, counts in (("rows left out", self.rows_out), ("values not taught", self.values_out)):
            said += [f"{number} {what}: {reason} (first: {self.first[reason]})" for reason, number in counts.items()]
        return said


def one_line(text: str) -> str:
    """`text` as it is compared with excluded ones: every run of blanks is one."""
    return " ".join(text.split())
