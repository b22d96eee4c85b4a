"""Manifests of single units are folded into segments while a job runs: a rerun reads 50 objects, not 50,000.

A segment is created whole before the first of the manifests that it holds is removed, so at any moment each record is
in one of both places or in both, and `OutputFolder.read_records` takes the unit's own first. A unit that an earlier
segment holds is not folded again: no two segments of one driver disagree. Two drivers may fold the same units: equal
records, in segments that differ, for each folds them in the order in which they come to it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from pipeline.manifest import OutputFolder
from pipeline.record import SEGMENT_UNITS, Segment, UnitRecord, objects_of
from pipeline.storage import StorageError

log = logging.getLogger(__name__)


class Folding:
    """Takes in the record of each unit that is committed, and folds them a segment at a time.

    kept: what earlier runs committed, of which manifests of single units may be left.
    """

    def __init__(self, output: OutputFolder, kept: Iterable[UnitRecord] = ()) -> None:
        self._output = output
        self._waiting: dict[str, UnitRecord] = {}
        self._at = SEGMENT_UNITS  # so many waiting ones are folded
        self._covered: set[str] | None = None  # objects in segments; read when the first is to be written
        for record in kept:
            self.add(record)

    def add(self, record: UnitRecord | None) -> None:
        """One more committed unit; nothing happens for None. A store that fails costs nothing but the folding, which is
        tried again later."""
        if record is None or record.is_merged or record.object in (self._covered or ()):
            return
        self._waiting[record.object] = record
        if len(self._waiting) < self._at:
            return
        try:
            self._fold()
            self._at = SEGMENT_UNITS
        except (StorageError, ValueError, KeyError, TypeError) as e:  # the latter three: of a damaged segment
            log.warning("unit manifests stay as they are for now: %s", e)
            self._at = len(self._waiting) + SEGMENT_UNITS

    def _fold(self) -> None:
        if self._covered is None:
            self._covered = _covered(self._output)
            self._waiting = {name: r for name, r in self._waiting.items() if name not in self._covered}
        while len(self._waiting) >= SEGMENT_UNITS:
            records = list(self._waiting.values())[:SEGMENT_UNITS]
            self._output.write_segment(Segment.of(records))
            for record in records:
                del self._waiting[record.object]
                self._covered.add(record.object)
            self._output.remove(self._output.record(record.object) for record in records)


def _covered(output: OutputFolder) -> set[str]:
    """Names of the objects that are in a segment."""
    found: set[str] = set()
    for name in sorted(output.segment_names()):
        raw = output.storage.read(output.segment(name))
        found |= objects_of(raw) if raw is not None else set()
    return found
