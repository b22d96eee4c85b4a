"""`hpd extract` itself, with another decoder and reader and without Ray."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import jobs.extract
from jobs.cli import app
from pipeline.job import UnitCaps
from tests.pipeline.fakes import PRODUCT, SPEC, ByteEncoder, HashDecoders, TitleReader
from tests.pipeline.helpers import inline

Extract = Callable[..., Result]


def faked_extract(calls: Path, config: Path, monkeypatch: pytest.MonkeyPatch) -> Extract:
    """extract(*words): the command with those words over the job of `config`, in units of 20 rows. Its decoder hashes
    texts, and logs what it is asked for in `calls`."""
    composed = jobs.extract.compose

    def faked(*given: object, **options: object) -> object:
        return replace(
            composed(*given, **options),  # type: ignore[arg-type]
            decoder=SPEC,
            decoder_name="hpd",
            reader=TitleReader(),
            schemas=(PRODUCT,),
            encoder_factory=ByteEncoder,
            decoder_factory=HashDecoders(calls),
            units=UnitCaps(rows=20),
        )

    monkeypatch.setattr(jobs.extract, "compose", faked)
    monkeypatch.setattr(jobs.extract, "say_notice", lambda _: None)
    monkeypatch.setattr("pipeline.drive.drive", inline)
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    return lambda *words: CliRunner().invoke(app, ["extract", "--config", str(config), *words])
