"""The prepared GPU script, on a CPU with tiny shapes: every part runs, and what cannot run is said."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typer

from hpd_core import decode
from hpd_core.batch import Feed
from hpd_core.buffers import Buffers
from hpd_core.decode import Decoder
from hpd_core.graphs import GraphRunner
from hpd_core.rows import Counts
from jobs.timing import gpu, gpu_work
from jobs.timing.gpu_report import Report, markdown
from pipeline.shapes import model_shapes

torch.set_num_threads(1)


def facts_of(folder: Path) -> dict:
    return dict(json.loads((folder / "gpu.json").read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpu")
    gpu.main(folder, device="cpu", tiny=True, seconds=1000.0)
    return folder


def test_every_part_runs(folder: Path) -> None:
    facts = facts_of(folder)
    assert facts["left_out"] == {} and facts["tiny"] and facts["device"] == "CPU"
    for graphs in ("", ", CUDA graphs"):
        oracle, agreement = facts["oracle" + graphs], facts["agreement" + graphs]
        assert oracle["dtype"] == "float32" and oracle["equal_slots"] == oracle["slots"] == 12
        assert oracle["agreement"] == 1 and oracle["worst"] < 1e-5 and oracle["tokens"] > 12
        assert agreement["dtype"] == "bfloat16" and 1e-5 < agreement["worst"] < 0.2
        assert oracle["recorded"] == agreement["recorded"] == (0 if graphs else None)  # a CPU records nothing
    assert set(facts["speed"]["tiny"]) == {"hpd", "hpd, no graphs", "ar, batch 2", "ar, batch 2, static cache"}
    shapes = {name: rate["recorded"] for name, rate in facts["speed"]["tiny"].items()}
    assert {name: n for name, n in shapes.items() if n is not None} == {"hpd": 0}
    assert set(facts["steps"]["tiny"]) == {"3", "12"} and all(
        took["graphs"] > 0 and took["none"] > 0 and took["recorded"] == 0 for took in facts["steps"]["tiny"].values()
    )
    text = (folder / "gpu.md").read_text(encoding="utf-8")
    assert "TINY SHAPES: no measurement" in text and "| tiny | hpd | NOTHING |" in text
    assert "| tiny | 12 | NOTHING |" in text and "| tiny | hpd, no graphs | – |" in text
    assert text.count("recorded: NOTHING") == text.count("recorded: –") == 2


def test_a_part_without_an_end_is_stopped_and_what_is_known_stays(tmp_path: Path) -> None:
    report = Report({"known": 1}, 0.05, tmp_path, grace=0.05)
    started = time.perf_counter()
    assert report.attempt("endless", partial(time.sleep, 60)) is None and time.perf_counter() - started < 30
    assert report.attempt("next", int) is None
    why = {"endless": "stopped 0.05 s after the time was up", "next": "no time left"}
    assert report.facts == {"known": 1, "left_out": why}


def test_whoever_interrupts_is_not_held_up(tmp_path: Path) -> None:
    """Whatever handler a library has left: it is back behind the part."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt):
            Report({}, 60, tmp_path).attempt("long", partial(signal.raise_signal, signal.SIGINT))
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_fails_or_has_no_time_is_left_out_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("out of something\nmore")

    monkeypatch.setattr(gpu_work, "generate", broken)
    gpu.main(tmp_path / "a", device="cpu", tiny=True, seconds=1000.0)
    facts = facts_of(tmp_path / "a")
    assert facts["left_out"]["tiny, ar, batch 2"] == "RuntimeError: out of something"
    assert list(facts["speed"]["tiny"]) == ["hpd", "hpd, no graphs"]
    gpu.main(tmp_path / "b", device="cpu", tiny=True, seconds=0.0)
    assert facts_of(tmp_path / "b")["left_out"] == dict.fromkeys(("oracle", "agreement", "tiny"), "no time left")


def test_what_counts_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes are seen in a first run, recorded in a second, and replayed in those that count."""
    calls: list[list[bool]] = []  # of each decoding, which of its steps over buffers were replayed
    begin, step, decode_all = GraphRunner.__init__, GraphRunner.step, Decoder.decode

    def captured(self: GraphRunner, buffers: Buffers) -> Callable[[], None]:
        def replay() -> None:
            calls[-1][-1] = True
            self._run(buffers)

        return replay

    monkeypatch.setattr(GraphRunner, "__init__", lambda s, *a: (begin(s, *a), setattr(s, "records", None))[0])
    monkeypatch.setattr(GraphRunner, "_captured", captured)
    monkeypatch.setattr(GraphRunner, "step", lambda *a, **k: (calls[-1].append(False), step(*a, **k))[1])
    monkeypatch.setattr(Decoder, "decode", lambda *a: (calls.append([]), decode_all(*a))[1])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    plan, cpu = gpu_work.FEW, torch.device("cpu")
    model = gpu_work.random_model(gpu_work.TINY, torch.float32, cpu)
    check = gpu_work.Check.of(model, plan)
    found = check.facts(graphs=True)
    assert found["recorded"] > 0 and found["equal_slots"] == found["slots"]
    assert len(calls) == 6 and calls[2] and calls[5] and all(calls[2] + calls[5]) and not all(calls[0])
    calls.clear()
    assert check.facts(graphs=False)["recorded"] is None and calls == [[], []]
    calls.clear()
    took = gpu_work.steps(model, plan, 2)
    assert took["recorded"] > 0 and len(calls[2]) == plan.step_value - 1 and all(calls[2]) and calls[3:] == [[]] * 3
    calls.clear()
    engine = gpu_work.hpd(model, plan, plan.prompts(64), graphs=True)
    gpu_work.timed(engine, 2, cpu)
    assert engine.recorded is not None and engine.recorded() > 0
    assert len(calls) == 4 and len(calls[2]) == plan.value - 1 and all(calls[2] + calls[3])
    facts = {"device": "d", "torch": "t", "tiny": False, "speed": {}, "left_out": {}, "steps": {"m": {"6": took}}}
    assert f"| m | 6 | {took['recorded']} shapes |" in markdown(facts)


def test_steps_are_timed_with_their_planning_and_without_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which planning takes 1 second, a forward pass 10, one over a prefix 100."""
    now = [0]
    next_feeds, forward = Decoder._next_feeds, Decoder._forward

    def takes(self: Decoder, feeds: Sequence[Feed], counts: Counts) -> torch.Tensor:
        now[0] += 100 if feeds[0].prefix is None else 10
        return forward(self, feeds, counts)

    def plans(*arguments: Any) -> Any:
        now[0] += 1
        return next_feeds(*arguments)

    monkeypatch.setattr(Decoder, "_forward", takes)
    monkeypatch.setattr(Decoder, "_next_feeds", plans)
    monkeypatch.setattr(decode, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    model, plan = gpu_work.random_model(gpu_work.TINY, torch.float32, torch.device("cpu")), gpu_work.FEW
    counts = Counts()
    decoder = Decoder(model, plan.settings, frozenset({0}), graphs=False, copies=0)
    decoder.decode(plan.prompts(64)[:1], counts, [[[1, 2, 3]] * plan.attributes])
    assert (counts.steps, counts.decode_seconds, counts.prefill_seconds) == (2, 22, 111)


def test_engines_write_the_same_number_of_tokens() -> None:
    model = gpu_work.random_model(gpu_work.TINY, torch.float32, torch.device("cpu"))
    prompts = gpu_work.FEW.prompts(gpu_work.TINY.vocabulary)
    fed: list[int] = []
    handle = model.hf.register_forward_pre_hook(
        lambda _, __, kw: fed.append(kw["input_ids"].shape[1]), with_kwargs=True
    )
    gpu_work.generate(model, gpu_work.FEW, prompts, 2, "")
    steps = gpu_work.FEW.attributes * (gpu_work.FEW.value + gpu_work.KEY) - gpu_work.KEY
    assert len(fed) == 2 * steps  # of two batches, the prefill among them
    fed.clear()
    for graphs in (False, True):
        fed.clear()
        gpu_work.hpd(model, gpu_work.FEW, prompts, graphs=graphs).run()
        assert len(fed) == 1 + gpu_work.FEW.value  # prefix; prefill, and a step for each further token of a value
    handle.remove()


def test_shapes_are_those_that_are_published() -> None:
    for name in gpu.SHAPES:
        shape = model_shapes()[name]
        with torch.device("meta"):
            small = gpu_work.random_model(shape, torch.bfloat16, torch.device("meta"))
        assert sum(p.numel() for p in small.hf.parameters()) == pytest.approx(shape.weight_bytes(1, 1), rel=1e-3)


@pytest.mark.parametrize(("device", "tiny"), [("cuda:0", True), ("cpu", False)])
def test_no_gpu_and_no_tiny_shapes_are_refused(tmp_path: Path, device: str, tiny: bool) -> None:
    if device != "cpu" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(typer.BadParameter):
        gpu.main(tmp_path, device=device, tiny=tiny, seconds=1.0)
