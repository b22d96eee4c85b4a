"""Command-line options that several commands share, and what their words mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from hpd_core import recipe
from hpd_core.confidence import AUTO, ConfidenceSettings
from hpd_core.model_spec import Quantization
from hpd_core.settings import DecodeSettings, Grounding, Layout, SettingsError, Visibility, did_you_mean
from hpd_core.source import check_present
from hpd_core.spec import DecoderSpec
from pipeline.config import load_config, override_name
from pipeline.job import JobError
from pipeline.models import model_spec
from pipeline.shipped import YamlError, parse_yaml
from pipeline.storage import Storage

ConfigFile = Annotated[Path, typer.Option("--config", "-c", help="YAML of the job.", show_default=False)]
Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", "-i", help="File, folder, glob or URI; may be repeated. Wins over the configuration's."),
]
OutputFolder = Annotated[
    str | None, typer.Option("--output", "-o", help="Local folder or URI. Wins over the configuration's.")
]
Limit = Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Only the first so many rows.")]
OutputUri = Annotated[str, typer.Argument(metavar="OUTPUT", help="Output folder of a job, local or a URI.")]
StorageConfig = Annotated[
    Path | None, typer.Option("--config", "-c", help="YAML of the job, for its storage options.", show_default=False)
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY.KEY=VALUE", help="Override a key of the configuration; may be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on the last line of stdout; the rest on stderr.")]
LogFile = Annotated[
    Path | None, typer.Option("--log-file", help="Append every event of the run to this file, a JSON object a line.")
]
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
Calibrated = Annotated[
    bool, typer.Option("--calibrated", help="Confidence is the probability of being right, by the model's calibration.")
]
CalibrationFile = Annotated[
    Path | None, typer.Option("--calibration", help="A calibration.json in place of the one beside the adapter.")
]
Thresholds = Annotated[
    list[str] | None,
    typer.Option(
        "--threshold",
        metavar="auto | NUMBER | ATTRIBUTE=NUMBER",
        help="Least confidence of a value; others become absent. The last form may be repeated.",
    ),
]
ValueTokens = Annotated[int | None, typer.Option("--max-value-tokens", min=1, help="Longest value in tokens (K_max).")]
Decoding = Annotated[
    list[str] | None,
    typer.Option("--decode", metavar="KEY=VALUE", help="Any other key of `decode` in a job; may be repeated."),
]
QuantizationName = Annotated[
    str | None,
    typer.Option("--quantization", help="none | int8-weight-only | int8-dynamic | int4-weight-only | …: of weights."),
]
ModelDtype = Annotated[str | None, typer.Option("--dtype", help="auto | float32 | bfloat16 | float16.")]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="Torch threads; its own default otherwise.")]


def confidence_settings(calibrated: bool, file: Path | None, thresholds: Sequence[str] | None) -> ConfidenceSettings:
    """Of command-line words; `auto` and a file mean calibrated. Raises JobError or SettingsError for what is no
    threshold."""
    threshold: object = None
    words = list(thresholds or ())
    if words == [AUTO]:
        threshold = AUTO
    elif words and all("=" in word for word in words):
        pairs = [word.rpartition("=") for word in words]
        threshold = {name: _number(least, word) for (name, _, least), word in zip(pairs, words, strict=True)}
        if len(threshold) < len(words):
            raise JobError(f"--threshold: one attribute is given twice: {', '.join(words)}")
    elif len(words) == 1:
        threshold = _number(words[0], words[0])
    elif words:
        raise JobError(f"--threshold {', '.join(words)}: give {AUTO}, one number, or ATTRIBUTE=NUMBER, repeated")
    asked = calibrated or file is not None or threshold == AUTO
    return ConfidenceSettings(asked, threshold, str(file) if file else "")


def storages(config: Path | None, overrides: Sequence[str] | None) -> tuple[Storage, Storage]:
    """Of input and output, as a job's configuration sets them up; without one, with no options. Raises ConfigError, and
    JobError for overrides of a configuration that is not there."""
    if config is None:
        if overrides:
            name = override_name(overrides[0])
            raise JobError(f"{name}: there is no configuration that it could be laid over: give --config")
        return Storage(), Storage()
    settings = load_config(config, overrides or ())
    return Storage(settings.input.storage), Storage(settings.output.storage)


def short_name(data: Path | str) -> str:
    """Name of a file or URI with its folder's (most are called train.jsonl), but never a whole path of a machine."""
    whole = str(data) if "://" in str(data) else Path(data).resolve().as_posix()
    return "/".join(whole.rstrip("/").split("/")[-2:])


def decoder_spec(
    model: str,
    layout: str | None,
    visibility: str | None,
    max_value_tokens: int | None,
    grounding: str | None = None,
    others: Sequence[str] | None = None,
    *,
    quantization: str | None = None,
    dtype: str | None = None,
) -> DecoderSpec:
    """The spec of command-line words; what is not given is the fine-tuned model's own, or the default.

    others: `KEY=VALUE` of further decode settings; values are YAML. quantization, dtype: of the model, in place of its
    entry's.

    Raises JobError or SettingsError for what does not exist.
    """
    words = (
        ("layout", layout, Layout),
        ("visibility", visibility, Visibility),
        ("grounding", grounding, Grounding),
        ("quantization", quantization, Quantization),
    )
    for name, given, allowed in words:
        known = [member.value for member in allowed]
        if given is not None and given not in known:
            raise JobError(f"--{name} {given}: must be one of {', '.join(known)}")
    spec = model_spec(model)
    if quantization is not None:
        spec = replace(spec, quantization=Quantization(quantization))
    spec = replace(spec, dtype=dtype or spec.dtype)
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
    try:
        return replace(base, settings=replace(settings, **_decode_settings(others or ())))
    except (TypeError, ValueError) as error:  # a word that an enumeration does not know, say
        raise error if isinstance(error, JobError | SettingsError) else JobError(f"--decode: {error}") from error


def _decode_settings(words: Sequence[str]) -> dict[str, Any]:
    known, found = [field.name for field in fields(DecodeSettings)], {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise JobError(f"--decode {word}: must be written KEY=VALUE")
        if key not in known:
            raise JobError(f"--decode {word}: {did_you_mean(key, known, 'keys')}")
        try:
            found[key] = parse_yaml(value, f"--decode {word}")
        except YamlError as error:
            raise JobError(str(error)) from error
    return found


def _number(text: str, word: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise JobError(f"--threshold {word}: {text!r} is no number") from None
