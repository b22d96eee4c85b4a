"""The prepared GPU script, on a CPU with tiny shapes: every part runs, and what cannot run is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import typer

from jobs.timing import gpu
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
    oracle = facts["oracle"]
    assert oracle["dtype"] == "float32" and oracle["equal_slots"] == oracle["slots"] == 12
    assert oracle["agreement"] == 1 and oracle["worst"] < 1e-5 and oracle["tokens"] > 12
    assert facts["agreement"]["dtype"] == "bfloat16" and 1e-5 < facts["agreement"]["worst"] < 0.2
    assert set(facts["speed"]["tiny"]) == {"hpd", "hpd, no graphs", "ar, batch 2", "ar, batch 2, static cache"}
    assert set(facts["steps"]["tiny"]) == {"3", "12"} and all(
        took["graphs"] > 0 and took["none"] > 0 for took in facts["steps"]["tiny"].values()
    )
    text = (folder / "gpu.md").read_text(encoding="utf-8")
    assert "TINY SHAPES: no measurement" in text and "| tiny | hpd |" in text and "| tiny | 12 |" in text


def test_what_fails_or_has_no_time_is_left_out_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("out of something\nmore")

    monkeypatch.setattr(gpu, "_generate", broken)
    gpu.main(tmp_path / "a", device="cpu", tiny=True, seconds=1000.0)
    facts = facts_of(tmp_path / "a")
    assert facts["left_out"]["tiny, ar, batch 2"] == "RuntimeError: out of something"
    assert list(facts["speed"]["tiny"]) == ["hpd", "hpd, no graphs"]
    gpu.main(tmp_path / "b", device="cpu", tiny=True, seconds=0.0)
    assert facts_of(tmp_path / "b")["left_out"] == dict.fromkeys(("oracle", "agreement", "tiny"), "no time left")


def test_engines_write_the_same_number_of_tokens() -> None:
    model = gpu.random_model(gpu._TINY, torch.float32, torch.device("cpu"))
    prompts = gpu.FEW.prompts(gpu._TINY.vocabulary)
    fed: list[int] = []
    handle = model.hf.register_forward_pre_hook(
        lambda _, __, kw: fed.append(kw["input_ids"].shape[1]), with_kwargs=True
    )
    gpu._generate(model, gpu.FEW, prompts, 2, "")
    steps = gpu.FEW.attributes * (gpu.FEW.value + gpu._KEY) - gpu._KEY
    assert len(fed) == 2 * steps  # of two batches, the prefill among them
    fed.clear()
    for graphs in (False, True):
        fed.clear()
        gpu.run_hpd(model, gpu.FEW, prompts, graphs=graphs)()
        assert len(fed) == 1 + gpu.FEW.value  # prefix; prefill, and a step for each further token of a value
    handle.remove()


def test_shapes_are_those_that_are_published() -> None:
    for name in gpu.SHAPES:
        shape = model_shapes()[name]
        with torch.device("meta"):
            small = gpu.random_model(shape, torch.bfloat16, torch.device("meta"))
        assert sum(p.numel() for p in small.hf.parameters()) == pytest.approx(shape.weight_bytes(1, 1), rel=1e-3)


@pytest.mark.parametrize(("device", "tiny"), [("cuda:0", True), ("cpu", False)])
def test_no_gpu_and_no_tiny_shapes_are_refused(tmp_path: Path, device: str, tiny: bool) -> None:
    if device != "cpu" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(typer.BadParameter):
        gpu.main(tmp_path, device=device, tiny=tiny, seconds=1.0)
