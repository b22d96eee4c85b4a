"""`hpd publish`: a finished output becomes part of an Iceberg table, in one commit."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from jobs.console import command, output, run_alone, say, terminable
from jobs.options import AsJson, OutputUri, Overrides, StorageConfig, storages
from pipeline.job import JobError
from pipeline.manifest import OutputFolder
from pipeline.publish import publish as append
from pipeline.publish import withdraw as take_back


@command
def publish(
    folder: OutputUri,
    catalog: Annotated[str, typer.Option("--catalog", help="Name of a catalog in pyiceberg's configuration.")],
    table: Annotated[str, typer.Option("--table", help="namespace.table")],
    create: Annotated[bool, typer.Option("--create", help="Make the table where it is not there.")] = False,
    withdraw: Annotated[
        bool,
        typer.Option(
            "--withdraw",
            help="Let the output's files go, once no snapshot of the table points to them; appends nothing.",
        ),
    ] = False,
    property_: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="KEY=VALUE", help="Of the catalog; may be repeated. No place for secrets."),
    ] = None,
    config: StorageConfig = None,
    set_: Overrides = None,
    json_: AsJson = False,
) -> None:
    """Append the files that a finished output lists to an Iceberg table, in one commit. A second run appends nothing.

    Needs `pip install 'hpd-catalog[publish]'`. The files stay where they are and must not be removed: `hpd compact` and
    `hpd extract` leave them alone until --withdraw. Catalogs and
    their credentials stand in ~/.pyiceberg.yaml or PYICEBERG_CATALOG__NAME__… Exit codes: 0 the table has the files,
    2 it cannot, 4 terminated, catalog or store did not answer, another driver writes the output, or somebody else wrote
    to the table at once.
    """
    if withdraw and create:
        raise JobError("--withdraw and --create contradict each other")
    properties: dict[str, str] = {}
    for word in property_ or ():
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise JobError(f"--property {word}: must be written KEY=VALUE")
        properties[key] = value
    _, storage = storages(config, set_)
    with output(json_) as out, terminable():
        place = OutputFolder(storage.absolute(folder), storage)
        if withdraw:
            gone = take_back(place, catalog, table, properties=properties, tell=say)
            out.finish({"output": place.uri, "table": table, "withdrawn": gone})
            out.console.print(f"{table}: {gone:,} files let go", highlight=False)
            return
        done = append(place, catalog, table, properties=properties, create=create, tell=say)
        out.finish({"output": place.uri} | asdict(done))
        made = "created, " if done.created else ""
        line = f"{done.files:,} files, {done.rows:,} rows appended" if done.files else "nothing to append: it has them"
        out.console.print(f"{table}: {made}{line}", highlight=False)


if __name__ == "__main__":
    run_alone(publish)
