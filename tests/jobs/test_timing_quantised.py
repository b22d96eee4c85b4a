"""The table of quantised weights, over a tiny model and in one process."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

from jobs.timing import quantised
from pipeline.job import JobError
from tests.core.tiny_folder import write_tiny_model
from tests.jobs.test_dataset import row, write

KINDS = ("none/float32", "int8-weight-only/float32", "nf4-weight-only/float32")


class Here:
    """In place of a pool of processes, each of which would import torch for seconds."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: Any) -> None: ...

    def submit(self, work: Any, *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments))
        except Exception as error:
            done.set_exception(error)
        return done


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"), hidden_size=64)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
    return str(folder)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write(tmp_path / "x.jsonl", *(row(f"tea number {n}", "Tea", Flavor="mint", Size="n/a") for n in range(20)))


@pytest.fixture
def facts(model: str, dataset: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(quantised, "ProcessPoolExecutor", Here)
    return quantised.run(model, KINDS, dataset, 12, 1, 100.0)


def test_each_kind_decodes_the_same_rows_and_is_held_against_the_first(facts: dict[str, Any]) -> None:
    plain, eight = facts["kinds"]
    assert plain["rows"] == eight["rows"] == facts["rows"] == 12
    assert plain["values_as_first"] == plain["times_first"] == 1
    assert 0 <= eight["values_as_first"] <= 1 and eight["times_first"] > 0
    assert eight["weights_mib"] < 0.8 * plain["weights_mib"] and plain["resident_mib"] > 50
    assert list(facts["left_out"]) == ["nf4-weight-only/float32"]
    text = quantised.table(facts)
    assert "| int8-weight-only/float32 | 12 |" in text and "Left out: nf4-weight-only/float32: SettingsError" in text


def test_a_slow_kind_stops_after_a_chunk_and_is_compared_on_its_own_rows(
    model: str, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantised, "ProcessPoolExecutor", Here)
    measure = quantised.measure

    def slow(spec: Any, dataset: Path, rows: Any, threads: int | None, seconds: float) -> quantised.Trial:
        return measure(spec, dataset, rows, threads, 0.0 if spec.model.quantization != "none" else seconds)

    monkeypatch.setattr(quantised, "measure", slow)
    found = quantised.run(model, KINDS[:2], dataset, 12, 1, 100.0)
    assert [kind["rows"] for kind in found["kinds"]] == [12, quantised.CHUNK]
    assert quantised.spread_over(20, 5) == [0, 4, 8, 12, 16] and quantised.spread_over(3, 5) == [0, 1, 2]


def test_the_first_kind_must_run(model: str, dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantised, "ProcessPoolExecutor", Here)
    with pytest.raises(JobError, match=r"nf4-weight-only/float32: .* needs a CUDA device"):
        quantised.run(model, KINDS[2:], dataset, 4, 1, 1.0)


def test_the_table_goes_between_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- other: x -->\nkept\n<!-- end -->\n<!-- quantised: by -->\nold\n<!-- end -->\nb\n")
    quantised.into_page(page, "new")
    assert (
        page.read_text() == "a\n<!-- other: x -->\nkept\n<!-- end -->\n<!-- quantised: by -->\nnew\n<!-- end -->\nb\n"
    )
    page.write_text("none")
    with pytest.raises(JobError, match=r"page\.md: no marker"):
        quantised.into_page(page, "new")
    docs = Path(__file__).resolve().parents[2] / "docs" / "models.md"
    assert "<!-- quantised: " in docs.read_text(encoding="utf-8")


def test_stored_bytes_are_those_of_the_parameters(model: str) -> None:
    layer = torch.nn.Linear(4, 3)
    assert quantised.stored_bytes(layer) == 4 * (12 + 3)
