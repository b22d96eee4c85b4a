"""Command-line options that several commands share, and what their words mean."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from hpd_core import recipe
from hpd_core.settings import DecoderSpec, Grounding, Layout, Visibility
from hpd_core.source import check_present
from pipeline.job import JobError
from pipeline.models import model_spec

ConfigFile = Annotated[Path, typer.Option("--config", "-c", help="YAML of the job.", show_default=False)]
Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", "-i", help="File, folder, glob or URI; may be repeated. Wins over the configuration's."),
]
OutputFolder = Annotated[
    str | None, typer.Option("--output", "-o", help="Local folder or URI. Wins over the configuration's.")
]
Limit = Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Only the first so many rows.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY.KEY=VALUE", help="Override a key of the configuration; may be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on the last line of stdout; the rest on stderr.")]
Dataset = Annotated[Path, typer.Option("--dataset", "-d", help="Benchmark file (JSON lines).", show_default=False)]
Folder = Annotated[Path, typer.Option("--output", "-o", help="Folder for the results.", show_default=False)]
ModelName = Annotated[
    str, typer.Option("--model", "-m", help="Name of conf/models.yaml, directory, GGUF file or hub id.")
]
LayoutName = Annotated[
    str | None, typer.Option("--layout", help="gaps | branches; the model's own, or branches, where it is not given.")
]
VisibilityName = Annotated[str | None, typer.Option("--visibility", help="isolated | causal")]
GroundingName = Annotated[
    str | None, typer.Option("--grounding", help="off | mark | enforce: values must stand in the text; off by default.")
]
ValueTokens = Annotated[int | None, typer.Option("--max-value-tokens", min=1, help="Longest value in tokens (K_max).")]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="Torch threads; its own default otherwise.")]


def decoder_spec(
    model: str,
    layout: str | None,
    visibility: str | None,
    max_value_tokens: int | None,
    grounding: str | None = None,
) -> DecoderSpec:
    """The spec of command-line words; what is not given is the fine-tuned model's own, or the default.

    Raises JobError or SettingsError for what does not exist.
    """
    words = (("layout", layout, Layout), ("visibility", visibility, Visibility), ("grounding", grounding, Grounding))
    for name, given, allowed in words:
        known = [member.value for member in allowed]
        if given is not None and given not in known:
            raise JobError(f"--{name} {given}: must be one of {', '.join(known)}")
    spec = model_spec(model)
    check_present(spec)
    base = recipe.decoder_spec(spec)
    own = base.settings
    settings = replace(
        own,
        layout=Layout(layout or own.layout),
        visibility=Visibility(visibility or own.visibility),
        max_value_tokens=max_value_tokens or own.max_value_tokens,
        grounding=Grounding(grounding or own.grounding),
    )
    return replace(base, settings=settings)
