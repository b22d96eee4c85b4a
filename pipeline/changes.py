"""Which inputs were replaced, removed or added in the life of an output, as its job.json says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.manifest import JOB
from pipeline.record import UnitRecord
from pipeline.storage import StorageError
from pipeline.units import InputFile


def changes(
    listing: Mapping[str, Any], files: Sequence[InputFile], kept: Iterable[UnitRecord], dropped: Iterable[UnitRecord]
) -> list[dict[str, list[str]]]:
    """What job.json is to say: the changes that the `listing` in place of it tells, and one more where the `files` of
    the plan are not those that it was made from.

    kept, dropped: the units that are to be listed, of which those of replaced files are `redone`, and those that go:
    where nothing was listed yet, their files are all that is known of earlier inputs. A driver that is killed before
    its listing leaves the old one to compare with, and one that is killed behind it leaves what it found.
    Raises `StorageError` where the listing is none.
    """
    try:
        known = list(listing.get("changes", ()))
        before = {facts["uri"]: (facts["size"], facts["version"]) for facts in listing.get("plan", ())}
    except (KeyError, TypeError, AttributeError) as e:
        raise StorageError(f"{JOB}: not the list of a finished job ({e!r})") from e
    now = {file.uri: (file.size, file.version) for file in files}
    added = [uri for uri in now if uri not in before] if before else []
    before = before or {r.unit.file.uri: (r.unit.file.size, r.unit.file.version) for r in dropped}
    replaced = {uri for uri in now if before.get(uri, now[uri]) != now[uri]}
    change = {
        "replaced": [uri for uri in now if uri in replaced],
        "removed": [uri for uri in before if uri not in now],
        "added": added,
        "redone": [str(record.unit) for record in kept if record.unit.file.uri in replaced],
    }
    return [*known, change] if any(change.values()) else known
