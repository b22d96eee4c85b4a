"""`hpd compact`: the many files of a finished output become few large ones, its rows in the same order."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobs.console import command, output, run_alone, say, terminable
from jobs.options import AsJson, Overrides
from pipeline.compact import compact as merge
from pipeline.config import load_config
from pipeline.manifest import OutputFolder
from pipeline.storage import Storage


@command
def compact(
    folder: Annotated[str, typer.Argument(metavar="OUTPUT", help="Output folder of a job, local or a URI.")],
    target_mib: Annotated[
        int, typer.Option("--target-mib", min=1, help="Files become about so large at most, and half of it at least.")
    ] = 512,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="YAML of the job, for its storage options.", show_default=False),
    ] = None,
    set_: Overrides = None,
    json_: AsJson = False,
) -> None:
    """Merge the data files of a finished output into large ones. Rows and their order stay, and so does what is done.

    Cut off at any point, the output is whole: run it again to finish. While it runs, readers should take the files that
    the manifest lists: data/ holds rows twice for a time. Exit codes: 0 done, or nothing to do, 2 not a finished
    output, or a file is damaged (see `hpd verify`), 4 terminated, a store did not answer, or another driver writes the
    output.
    """
    settings = load_config(config, set_ or ()) if config is not None else None
    storage = Storage(settings.output.storage if settings else {})
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
