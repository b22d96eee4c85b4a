"""What a verification found, and the verdict that follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class FindingKind(StrEnum):
    """What a finding means, the worst first."""

    #: The output is not what its job committed: no rerun of the job mends it.
    DAMAGE = "damage"
    #: Rows are missing, or the input has changed since: running the job again completes it.
    INCOMPLETE = "incomplete"
    #: An input file that the output comes from is gone or cannot be read: nothing to compare with.
    INPUT = "input"
    #: Worth knowing; decides nothing.
    NOTE = "note"


class OutputVerdict(StrEnum):
    VERIFIED = "verified"
    DAMAGED = "damaged"
    INCOMPLETE = "incomplete"
    NO_INPUT = "no_input"


_VERDICTS = {
    FindingKind.DAMAGE: OutputVerdict.DAMAGED,
    FindingKind.INCOMPLETE: OutputVerdict.INCOMPLETE,
    FindingKind.INPUT: OutputVerdict.NO_INPUT,
}


@dataclass(frozen=True, slots=True)
class Finding:
    """file: URI of what is at fault, in the output or in the input. unit: rows and input file of the unit, where it is
    one's. row: number in the input file, from 0. column: of the output."""

    kind: FindingKind
    file: str
    message: str
    unit: str = ""
    row: int | None = None
    column: str | None = None

    def __str__(self) -> str:
        places = [self.file, self.unit, f"row {self.row}" if self.row is not None else ""]
        places.append(f"column {self.column!r}" if self.column is not None else "")
        return ": ".join([*filter(None, places), self.message])


@dataclass(slots=True)
class Extent:
    """What was looked at. rows_compared: with the input, value by value."""

    units_read: int = 0
    units_compared: int = 0
    rows_compared: int = 0
    bytes_read: int = 0

    def __iadd__(self, other: Extent) -> Extent:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of `pipeline.verify.verify`. units and rows: as the manifest counts them."""

    output: str
    findings: tuple[Finding, ...]
    units: int
    rows_in: int
    rows_ok: int
    rows_error: int
    extent: Extent = field(default_factory=Extent)
    seconds: float = 0.0

    @property
    def verdict(self) -> OutputVerdict:
        kinds = {finding.kind for finding in self.findings}
        return next((verdict for kind, verdict in _VERDICTS.items() if kind in kinds), OutputVerdict.VERIFIED)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        facts: Mapping[str, Any] = {
            name: getattr(self, name) for name in ("output", "units", "rows_in", "rows_ok", "rows_error")
        }
        findings = [asdict(finding) for finding in self.findings]
        return {"verdict": self.verdict.value, **facts, **asdict(self.extent), "seconds": round(self.seconds, 3)} | {
            "findings": findings
        }
