"""`hpd extract` over files of which some cannot be read: exit codes by `run.on_bad_file`, and what is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import jobs.extract
from jobs.cli import app
from pipeline.job import UnitCaps
from tests.pipeline.fakes import PRODUCT, SPEC, ByteEncoder, HashDecoders, TitleReader
from tests.pipeline.helpers import assert_exact, inline, input_table, shards

BAD = ("text", "empty", "truncated")


@pytest.fixture
def extract(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """extract(*words): the command with those words, its decoder and reader replaced."""
    composed = jobs.extract.compose

    def faked(*given: object, **options: object) -> object:
        return replace(
            composed(*given, **options),  # type: ignore[arg-type]
            decoder=SPEC,
            reader=TitleReader(),
            schemas=(PRODUCT,),
            encoder_factory=ByteEncoder,
            decoder_factory=HashDecoders(tmp_path / "calls.log"),
            units=UnitCaps(rows=20),
        )

    monkeypatch.setattr(jobs.extract, "compose", faked)
    monkeypatch.setattr(jobs.extract, "say_notice", lambda _: None)
    monkeypatch.setattr("pipeline.drive.drive", inline)
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    words = ["extract", "--config", str(repository / "conf/quickstart.yaml"), "--input", str(tmp_path / "in")]
    return lambda *more: CliRunner().invoke(app, [*words, "--output", str(tmp_path / "out"), *more])


def test_bad_files_end_the_command_with_4_and_with_0_where_they_may_be_skipped(
    tmp_path: Path, extract: Callable[..., Result]
) -> None:
    source = shards(tmp_path / "in", 2)
    good = input_table(source)
    (source / "text.parquet").write_bytes(b"this is no Parquet file")
    (source / "empty.parquet").write_bytes(b"")
    whole = (source / "part-0000.parquet").read_bytes()
    (source / "truncated.parquet").write_bytes(whole[: len(whole) // 2])

    def failed(ended: Result) -> list[str]:
        return sorted(line for line in ended.stderr.splitlines() if line.startswith("failed: "))

    for words in ((), ("--set", "run.on_bad_file=fail")):
        ended = extract(*words)
        assert ended.exit_code == 4 and "incomplete: run the same command again" in ended.stderr, ended.output
        assert [line.partition(".parquet: ")[0] for line in failed(ended)] == sorted(
            f"failed: {source}/{name}" for name in BAD
        )
        assert "the file has 0 bytes" in ended.stderr and not (tmp_path / "out/_SUCCESS").exists()
        assert_exact(tmp_path / "out", good)

    ended = extract("--set", "run.on_bad_file=skip")
    assert ended.exit_code == 0 and len(failed(ended)) == 3, ended.output
    assert (tmp_path / "out/_SUCCESS").exists()
    listing = json.loads((tmp_path / "out/_manifest/job.json").read_text())
    assert sorted(f"failed: {line}" for line in listing["skipped"]) == failed(ended)
    assert_exact(tmp_path / "out", good)
    assert sum(HashDecoders(tmp_path / "calls.log").calls()) == 80
    assert extract("--set", "run.on_bad_file=skip").exit_code == 0
    assert extract().exit_code == 4  # whoever minds is told again, also of a finished output
