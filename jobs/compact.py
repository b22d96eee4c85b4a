"""`hpd compact`: the many files of a finished output become few large ones, its rows in the same order."""

from __future__ import annotations

from typing import Annotated

import typer

from jobs.console import command, output, run_alone, say, terminable
from jobs.options import AsJson, OutputUri, Overrides, StorageConfig, storages
from pipeline.compact import compact as merge
from pipeline.manifest import OutputFolder


@command
def compact(
    folder: OutputUri,
    target_mib: Annotated[
        int, typer.Option("--target-mib", min=1, help="Files become about so large at most, and half of it at least.")
    ] = 512,
    config: StorageConfig = None,
    set_: Overrides = None,
    json_: AsJson = False,
) -> None:
    """Merge the data files of a finished output into large ones. Rows and their order stay, and so does what is done.

    Cut off at any point, the output is whole: run it again to finish. While it runs, readers should take the files that
    the manifest lists: data/ holds rows twice for a time. Exit codes: 0 done, or nothing to do, 2 not a finished
    output, or a file is damaged (see `hpd verify`), 4 terminated, a store did not answer, or another driver writes the
    output.
    """
    _, storage = storages(config, set_)
    with output(json_) as out, terminable():
        place = OutputFolder(storage.absolute(folder), storage)
        done = merge(place, most=target_mib * 2**20, progress=lambda n, of: say(f"{n}/{of} files merged"), tell=say)
        facts = {name: getattr(done, name) for name in done.__slots__}
        out.finish({"output": place.uri} | facts)
        before, after = (f"{size / 2**20:,.1f} MiB" for size in (done.bytes_before, done.bytes_after))
        line = f"{done.files_before:,} files, {before} -> {done.files_after:,} files, {after}"
        out.console.print(line, highlight=False)


if __name__ == "__main__":
    run_alone(compact)
