"""The table of quantised weights, over a tiny model and in one process."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from hpd_core.model_spec import ModelSpec
from hpd_core.settings import SettingsError
from hpd_core.spec import DecoderSpec
from jobs.scores.dataset import BenchmarkRow
from jobs.timing import quantised
from jobs.timing.process import EngineFailed, TryWeights, Worker
from pipeline.job import JobError
from pipeline.models import DEFAULT_MODEL
from tests.core.tiny_folder import write_tiny_model
from tests.jobs.test_dataset import row, write

KINDS = ("none/float32", "int8-weight-only/float32", "nf4-weight-only/float32")


class Here:
    """In place of a process, each of which would import torch for seconds."""

    def __init__(self, order: Any) -> None:
        self.order = order

    def ask(self, what: str, seconds: float | None = None) -> quantised.Trial:
        assert what == "trial" and seconds == self.order.seconds + quantised.START_SECONDS
        try:
            return quantised.tried(self.order)
        except SettingsError as error:
            raise JobError(str(error)) from error

    def stop(self) -> None: ...


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
    monkeypatch.setattr(quantised, "Worker", Here)
    return quantised.run(model, KINDS, dataset, 12, 1, 100.0)


def test_each_kind_decodes_the_same_rows_and_is_held_against_the_first(facts: dict[str, Any]) -> None:
    plain, eight = facts["kinds"]
    assert plain["rows"] == eight["rows"] == facts["rows"] == 12
    assert plain["values_as_first"] == plain["times_first"] == 1
    assert 0 <= eight["values_as_first"] <= 1 and eight["times_first"] > 0
    assert eight["weights_mib"] < 0.8 * plain["weights_mib"] and plain["resident_mib"] > 50
    assert list(facts["left_out"]) == ["nf4-weight-only/float32"]
    text = quantised.table(facts)
    assert "| int8-weight-only/float32 | 12 |" in text and "Left out: nf4-weight-only/float32: model " in text
    assert "as none/float32 wrote them" in text and "in its 100 s" in text


class Clock:
    """A kind that takes `each` seconds for a document, and so many more for its first."""

    def __init__(self, each: float, first: float = 0.0) -> None:
        self.now, self.each, self.first = 0.0, each, first
        self.sizes: list[int] = []

    def decode(self, documents: Sequence[Any]) -> list[dict[str, str | None]]:
        self.now += len(documents) * self.each + (0 if self.sizes else self.first)
        self.sizes.append(len(documents))
        return [{"Flavor": "mint"} for _ in documents]

    def within(self, seconds: float, count: int) -> list[quantised.Chunk]:
        found, chunks = quantised.within(seconds, [None] * count, self.decode, lambda: self.now)  # type: ignore[list-item]
        assert len(found) == sum(self.sizes) and [chunk.rows for chunk in chunks] == self.sizes
        return chunks


@pytest.mark.parametrize(
    ("each", "first", "sizes"),
    [
        (0.1, 0.0, [1, 1, 2, 4, 8, 8, 6]),
        (1.0, 0.0, [1, 1, 2, 4, 8, 8]),  # 6 more would take it to 30
        (0.1, 9.0, [1, 1, 2, 4, 8, 8, 6]),
        (8.0, 0.0, [1, 1]),
        (25.0, 0.0, [1]),
        (300.0, 0.0, [1]),  # and no second one, untimed or not
    ],
)
def test_a_kind_stops_where_its_seconds_would_not_do(each: float, first: float, sizes: list[int]) -> None:
    clock = Clock(each, first)
    clock.within(29.0, 30)
    assert clock.sizes == sizes and clock.now <= max(29.0, each)


@pytest.mark.parametrize(("slow", "fast", "x"), [(4.0, 1.0, 4.0), (1.0, 4.0, 0.25)])
def test_kinds_are_compared_over_the_rows_that_both_came_to(slow: float, fast: float, x: float) -> None:
    """Whichever came to more."""

    def trial(each: float, wrong_from: int) -> quantised.Trial:
        chunks = Clock(each, first=7.0).within(40.0, 30)
        written = [{"Flavor": "mint" if n < wrong_from else "tea"} for n in range(sum(c.rows for c in chunks))]
        return quantised.Trial(written, chunks, 0, 0, "")

    first, found = trial(slow, 99), trial(fast, 4)
    both = min(len(first.predictions), len(found.predictions))
    gold = [BenchmarkRow("x", "Tea", {"Flavor": ("mint",)})] * 30
    facts = quantised.row_of("kind", found, first, gold)
    assert facts["rows"] == len(found.predictions) and facts["rows_in_common"] == both == 8
    assert facts["times_first"] == pytest.approx(x) and facts["docs_per_second"] == pytest.approx(1 / fast)
    assert facts["values_as_first"] == 4 / 8


def test_a_process_that_does_not_answer_is_stopped() -> None:
    # It has to import torch before it can say anything.
    worker = Worker(TryWeights(DecoderSpec(ModelSpec("x")), 1, (), 9.0))
    with pytest.raises(EngineFailed, match=r"stopped after 0\.05 s without an answer"):
        worker.ask("trial", 0.05)
    assert not worker._process.is_alive()
    worker.stop()


def test_a_kind_that_does_not_answer_is_left_out(model: str, dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Here):
        def ask(self, what: str, seconds: float | None = None) -> quantised.Trial:
            if self.order.spec.model.quantization != "none":
                raise EngineFailed(f"stopped after {seconds:g} s without an answer")
            return super().ask(what, seconds)

    monkeypatch.setattr(quantised, "Worker", Slow)
    found = quantised.run(model, KINDS[:2], dataset, 2, 1, 5.0)
    assert [kind["kind"] for kind in found["kinds"]] == ["none/float32"]
    assert found["left_out"] == {"int8-weight-only/float32": "stopped after 185 s without an answer"}


def test_rows_are_drawn_evenly_and_the_file_is_read_once(
    model: str, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert quantised.spread_over(20, 5) == [0, 4, 8, 12, 16] and quantised.spread_over(3, 5) == [0, 1, 2]
    orders, reads = list[Any](), list[Any]()
    read = quantised.read_benchmark
    monkeypatch.setattr(quantised, "read_benchmark", lambda path: reads.append(path) or read(path))
    monkeypatch.setattr(
        quantised, "trial", lambda order, seconds: orders.append(order) or quantised.Trial((), (), 0, 0, "")
    )
    monkeypatch.setattr(quantised, "row_of", lambda *_: {"rows": 0, "docs_per_second": 0})
    quantised.run(model, KINDS[:2], dataset, 5, 1, 9.0)
    assert [order.seconds for order in orders] == [18.0, 9.0] and len(reads) == 1
    assert [d.text for d in orders[1].documents] == [f"tea number {n}" for n in (0, 4, 8, 12, 16)]


def test_the_first_kind_must_run(model: str, dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantised, "Worker", Here)
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


def test_the_table_of_the_page_is_that_of_the_command(repository: Path) -> None:
    """Whole and nothing else: a command makes it anew."""
    text = (repository / "docs" / "models.md").read_text(encoding="utf-8")
    block = text.partition("<!-- quantised: ")[2].partition("-->\n")[2].partition("<!-- end -->")[0]
    if block == "not measured yet\n":
        return
    kinds = re.findall(r"^(?:\| |Left out: )(\S+/\S+?)(?: \||:)", block, re.MULTILINE)
    assert sorted(kinds) == sorted(quantised.KINDS) and block.startswith(DEFAULT_MODEL)
    mine = [line for line in block.splitlines() if not line.startswith(("| ", "Left out: ", DEFAULT_MODEL))]
    blank = dict.fromkeys(("dataset", "machine", "date"), "") | {"model": "", "rows": 0, "seconds": 0, "left_out": {}}
    found = quantised.Trial([{"Flavor": None}], [quantised.Chunk(1, 1.0)], 0, 0, "")
    row = quantised.row_of(quantised.KINDS[0], found, found, [BenchmarkRow("x", "Tea", {"Flavor": ("mint",)})])
    assert {*mine} <= {*quantised.table(blank | {"kinds": [row], "seconds_per_kind": 60.0}).splitlines()}


def test_stored_bytes_are_those_of_the_parameters(model: str) -> None:
    layer = torch.nn.Linear(4, 3)
    assert quantised.stored_bytes(layer) == 4 * (12 + 3)
