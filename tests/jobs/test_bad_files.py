"""`hpd extract` over files of which some cannot be read: exit codes by `run.on_bad_file`, and what is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import Result

from tests.jobs.faked_extract import Extract, faked_extract
from tests.pipeline.fakes import HashDecoders
from tests.pipeline.helpers import assert_exact, input_table, shards

BAD = ("text", "empty", "truncated")


@pytest.fixture
def extract(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Extract:
    made = faked_extract(tmp_path / "calls.log", repository / "conf/quickstart.yaml", monkeypatch)
    return lambda *more: made("--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), *more)


def test_bad_files_end_the_command_with_4_and_with_0_where_they_may_be_skipped(
    tmp_path: Path, extract: Extract
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
