"""Whether the committed units cover what was planned: each planned row once, nothing else."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.books import Books
from pipeline.findings import Finding, FindingKind
from pipeline.globs import base
from pipeline.job import JobError
from pipeline.manifest import JOB
from pipeline.plan import Footer, PlannedFile, read_footers
from pipeline.storage import Storage, StorageError
from pipeline.units import InputFile, Unit, uncovered


@dataclass(slots=True)
class Inputs:
    """The input as it is now. now: {URI as the job knew it: file}; a file that was moved has another URI there.

    missing: inputs that cannot be listed.
    """

    now: dict[str, InputFile] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    missing: bool = False

    def is_changed(self, file: InputFile) -> bool:
        """Whether the file that the job read as `file` is another version now."""
        now = self.now.get(file.uri)
        return now is not None and (now.size, now.version) != (file.size, file.version)


def current_inputs(books: Books, given: Sequence[str], source: Storage) -> Inputs:
    """Lists the inputs that the job recorded, or those `given`, where they lie elsewhere now: as many, in order.

    Raises `JobError` where the numbers differ. An input that is gone is a finding.
    """
    files = {record.unit.file.uri for record in books.records}
    recorded = list(books.run.get("inputs", ()))
    unknown = not recorded and bool(files)
    if unknown:  # an output of before inputs were recorded: the folder that its files share
        folder = posixpath.commonprefix([posixpath.dirname(uri) + "/" for uri in files])
        recorded = [folder[: folder.rindex("/")] if "/" in folder else folder]
    if given and len(given) != len(recorded):
        raise JobError(
            f"{len(given)} --input for the job's {len(recorded)}: name where each of them lies now, in this order: "
            + ", ".join(recorded)
        )
    inputs = Inputs()
    for old, new in zip(recorded, map(source.absolute, given or recorded), strict=True):
        try:
            found = source.find(new)
        except (JobError, StorageError) as e:
            inputs.findings.append(Finding(FindingKind.INPUT, new, str(e)))
            inputs.missing = True
            continue
        for file in found:
            inputs.now.setdefault(base(old) + file.uri.removeprefix(base(new)), file)
    if unknown:  # what else lies there may never have been an input
        inputs.now = {uri: file for uri, file in inputs.now.items() if uri in files}
    return inputs


def derived_plan(books: Books, inputs: Inputs, source: Storage) -> list[PlannedFile]:
    """The plan of an output that records none, since it is not finished or older: what the input's footers say, under
    the limit of the run. Of a file that has changed since, only what is committed is known."""
    footers = read_footers(inputs.now.values(), source)
    committed = {unit.file.uri: unit for unit in sorted((r.unit for r in books.records), key=lambda u: u.stop)}
    says = bool(books.run.get("config"))  # whether the run says its limit
    left = books.limit
    plan = []
    for uri, footer in zip(inputs.now, footers, strict=True):
        last = committed.get(uri)
        file = last.file if last else InputFile(uri, footer.file.size, footer.file.version)
        rows: int | None = None
        if last is not None and (inputs.is_changed(file) or not says):
            rows = last.stop
        elif isinstance(footer, Footer) and says and left != 0:
            rows = sum(group.rows for group in footer.row_groups)
            rows = rows if left is None else min(rows, left)
        left = None if left is None else left - min(left, rows or 0)
        plan.append(PlannedFile(file, rows))
    return plan


def check_coverage(books: Books, plan: Sequence[PlannedFile]) -> list[Finding]:
    """Each planned row is in one unit, and every unit is of a planned file. In an output that is not finished, rows may
    be missing, or stand in units that a rerun will drop."""
    job = books.output.path(JOB)
    findings: list[Finding] = []
    ranges: dict[str, list[tuple[int, int]]] = {}
    planned = {file.file.uri: file for file in plan}
    for unit in sorted((record.unit for record in books.records), key=lambda u: u.key):
        before = ranges.setdefault(unit.file.uri, [])
        if not books.finished:
            before.append((unit.start, unit.stop))
            continue
        if unit.file.uri in planned and unit.file != planned[unit.file.uri].file:
            message = f"comes from another version of the file than the plan has: {unit.file.version}"
            findings.append(Finding(FindingKind.DAMAGE, job, message, str(unit)))
        if unit.file.uri not in planned and books.plan is not None:
            findings.append(Finding(FindingKind.DAMAGE, job, "comes from a file that is not in the plan", str(unit)))
        if before and (unit.start < before[-1][1] or (unit.start, unit.stop) == before[-1]):
            other = Unit(unit.file, *before[-1])
            findings.append(Finding(FindingKind.DAMAGE, job, f"overlaps the unit {other}: rows stand twice", str(unit)))
        before.append((unit.start, max(unit.stop, before[-1][1] if before else 0)))
    gaps = [
        gap
        for file in plan
        if file.rows is not None
        for gap in uncovered(
            Unit(file.file, 0, file.rows), [*ranges.get(file.file.uri, []), *file.skipped, *file.undrawn]
        )
    ]
    if not books.finished:
        rows = sum(file.rows or 0 for file in plan)
        if gaps:
            message = f"{sum(gap.rows for gap in gaps)} of {rows} planned rows are not committed"
            findings.append(Finding(FindingKind.INCOMPLETE, books.output.uri, message))
        return findings
    # Which rows an older output skipped is not recorded.
    skips = books.plan is None and books.job.get("skipped")
    for gap in gaps:
        message = f"no unit holds its {gap.rows} rows" + (", which the job may have skipped" if skips else "")
        findings.append(Finding(FindingKind.NOTE if skips else FindingKind.DAMAGE, job, message, str(gap)))
    return findings


def check_inputs(books: Books, plan: Sequence[PlannedFile], inputs: Inputs, source: Storage) -> list[Finding]:
    """What has become of the planned files, and which are new."""
    findings = []
    wanted = {file.file.uri: file.file for file in plan if file.rows is not None}
    if books.plan is None:  # the plan is what is there: what is gone shows in the units
        wanted |= {record.unit.file.uri: record.unit.file for record in books.records}
    for file in wanted.values():
        if file.uri not in inputs.now and not inputs.missing:
            findings.append(Finding(FindingKind.INPUT, file.uri, "is gone: its rows cannot be compared"))
    changed = [file.uri for file in wanted.values() if inputs.is_changed(file)]
    if changed:
        message = "has another version than the job read; its values are compared all the same"
        more = f" ({len(changed)} such files)" if len(changed) > 1 else ""
        findings.append(Finding(FindingKind.NOTE, inputs.now[changed[0]].uri, message + more))
    known = {file.file.uri for file in plan}
    # A rerun of a sample draws as many units again, of a new file only by chance.
    partial = "limit" if books.limit is not None else "sample" if books.job.get("sample") else ""
    new = [file for uri, file in inputs.now.items() if uri not in known]
    for file, footer in zip(new, read_footers(new, source), strict=True):
        if partial or not isinstance(footer, Footer):
            message = f"is not in the plan: it is new, and cannot be read or lies beyond the job's {partial or 'limit'}"
            findings.append(Finding(FindingKind.NOTE, file.uri, message))
        else:
            message = "is new: its rows are not in the output; run the job again to add them"
            findings.append(Finding(FindingKind.INCOMPLETE, file.uri, message))
    return findings
