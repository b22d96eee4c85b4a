"""Tasks that are no products: the shipped job over event announcements, and the questions of docs/other-tasks.md."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import pipeline.drive
from hpd_core.extractor import HyperParallelDecoder
from hpd_core.model_spec import ModelSpec
from hpd_core.prompt import PromptEncoder
from hpd_core.schema import Document
from pipeline.compose import compose
from pipeline.config import load_config
from pipeline.run import run
from tests.core.tiny_folder import write_tiny_model
from tests.pipeline.helpers import inline


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("base"))


def test_the_announcements_are_what_their_script_writes(repository: Path, tmp_path: Path) -> None:
    written = runpy.run_path(str(repository / "samples" / "build.py"))["build_events"](tmp_path)
    table = pq.read_table(repository / "samples" / "events" / "announcements.parquet")
    assert pq.read_table(written).equals(table) and 12 <= table.num_rows <= 24


def test_every_field_of_an_announcement_stands_in_it(repository: Path) -> None:
    fields = {a.name for a in job_of(repository).schemas[0]}
    for row in pq.read_table(repository / "samples" / "events" / "announcements.parquet").to_pylist():
        assert row["gold"] and all(name in fields and text in row["text"] for name, text in row["gold"])


def job_of(repository: Path, *overrides: str, output: str = "out") -> Any:
    path = repository / "conf" / "events.yaml"
    inputs = [str(repository / "samples" / "events")]
    return compose(load_config(path, overrides), path, inputs=inputs, output=output)


def test_the_job_fills_in_the_fields_of_every_announcement(
    repository: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipeline's own stages, without Ray, over a tiny random model: its answers mean nothing, their places do."""
    monkeypatch.setattr(pipeline.drive, "drive", inline)
    tiny = (f"model={{source: {base}, prompting: plain}}", "pool.threads=1", "decode.max_value_tokens=4")
    summary = run(job_of(repository, *tiny, output=str(tmp_path / "out")))
    assert summary.complete and (summary.rows_ok, summary.rows_error) == (16, 0)
    (path,) = (tmp_path / "out" / "data").glob("*.parquet")
    table = pq.read_table(path)
    assert {"text", "gold", "start_time", "start_time__status", "organizer__raw"} <= set(table.column_names)


def test_the_prompt_speaks_of_events_alone(repository: Path, base: Path) -> None:
    decoder = job_of(repository, f"model={{source: {base}, prompting: plain}}").decoder
    encoder = PromptEncoder.from_spec(decoder)
    (schema,) = job_of(repository).schemas
    prompt = encoder.prompt(encoder.encode(Document("Chess night", schema)))
    text = encoder.decode([*prompt.shared.prefix, *prompt.document])
    assert "product" not in text.lower() and text.rstrip().endswith("Announcement:\nChess night")
    assert "Fields:\n- Event\n- Venue\n" in text and "Contact\n\nAnnouncement:" in text


def test_the_questions_of_the_docs_run_as_they_stand(
    repository: Path, base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (repository / "docs" / "other-tasks.md").read_text(), re.DOTALL)
    real = HyperParallelDecoder.from_pretrained

    def tiny(model: str, **others: Any) -> HyperParallelDecoder:
        assert model == "smollm2-135m"
        return real(ModelSpec(str(base), prompting="plain"), threads=1, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(HyperParallelDecoder, "from_pretrained", tiny)
    exec(compile(code, "other-tasks.md", "exec"), {})
    assert "'Who built the mill': " in capsys.readouterr().out
