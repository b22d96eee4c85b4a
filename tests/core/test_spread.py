"""A model over several GPUs: how layers are laid, what does not fit, and that a step follows from device to device.

There is no second device here. `Places` tells tensors of the CPU apart as if they lay on several, and refuses whatever
joins two of them, as CUDA would.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from accelerate.utils import send_to_device
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten
from torch.utils.weak import WeakIdKeyDictionary

from hpd_core import ModelSpec, model, probe, spread
from hpd_core.decode import Decoder
from hpd_core.model import Model
from hpd_core.rows import Counts
from hpd_core.settings import DecodeSettings, SettingsError
from hpd_core.spec import DecoderSpec
from tests.core.test_exactness import WAYS, settings_of
from tests.core.tiny import STOP_IDS, prompts_of, tiny_model
from tests.core.tiny_folder import write_tiny_model

FIRST, SECOND = torch.device("cuda:0"), torch.device("cuda:1")
_CPU = torch.device("cpu")


class Places(TorchFunctionMode):
    """Where each tensor is said to be. Tensors of no dimension, and indices on the CPU, may meet any other."""

    def __init__(self) -> None:
        super().__init__()
        self.of: Any = WeakIdKeyDictionary()

    def put(self, tensor: torch.Tensor, place: torch.device) -> None:
        self.of[tensor] = place

    def at(self, tensor: torch.Tensor) -> torch.device:
        return self.of.get(tensor, _CPU)

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        keywords = dict(keywords or {})
        if function == torch.Tensor.device.__get__:  # a new object each time
            return self.at(arguments[0])
        if function in (torch.Tensor.to, torch.Tensor.cpu):
            named = (a for a in (keywords.get("device"), *arguments[1:]) if isinstance(a, torch.device | str))
            target = _CPU if function is torch.Tensor.cpu else next(named, None)
            if target is not None:
                dtypes = (a for a in (keywords.get("dtype"), *arguments[1:]) if isinstance(a, torch.dtype))
                moved = arguments[0].clone().to(dtype=next(dtypes, None) or arguments[0].dtype)
                self.put(moved, torch.device(target))
                return moved
        made = keywords.get("device")
        if made is not None:
            keywords["device"] = "cpu"
        tensors = [t for t in tree_flatten((arguments, keywords))[0] if isinstance(t, torch.Tensor)]
        places = {self.at(t) for t in tensors if t.dim()}
        if function in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
            places -= {_CPU}
        if len(places) > 1:
            raise RuntimeError(f"{function.__name__}: tensors on {sorted(map(str, places))}")
        result = function(*arguments, **keywords)
        place = torch.device(made) if made is not None else next(iter(places), None)
        if place is not None:
            for t in tree_flatten(result)[0]:
                if isinstance(t, torch.Tensor):
                    self.put(t, place)
        return result


def laid_out(kind: str, places: Places) -> Model:
    """A tiny model whose layers from the second on are on the second device, moved to as accelerate's hooks do."""
    hf = tiny_model(kind).hf
    for tensor in [*hf.parameters(), *hf.buffers()]:
        places.put(tensor, FIRST)

    def follow(place):
        def hook(module, arguments, keywords):
            return send_to_device(arguments, place), send_to_device(keywords, place)

        return hook

    for module in [*hf.model.layers[1:], hf.model.norm]:
        for tensor in [*module.parameters(), *module.buffers()]:
            places.put(tensor, SECOND)
        module.register_forward_pre_hook(follow(SECOND), with_kwargs=True)
    for module in (*hf.model.layers[:1], hf.lm_head):
        module.register_forward_pre_hook(follow(FIRST), with_kwargs=True)
    hf.hf_device_map = {"model.embed_tokens": 0, "model.layers.1": 1}
    found = Model(hf)
    found.device = FIRST
    return found


@pytest.mark.parametrize(("kind", "way"), [("llama", 0), ("qwen3", 1), ("gemma3", 0), ("gemma3", 2)])
def test_a_step_follows_its_layers_from_device_to_device(monkeypatch, kind, way):
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    settings = settings_of(*WAYS[way], tokens_per_step=31)
    prompts = prompts_of(0, [1, 17, 9], schemas=2)
    expected = Decoder(tiny_model(kind), settings, STOP_IDS).decode(prompts, Counts())
    with Places() as places:
        got = Decoder(laid_out(kind, places), settings, STOP_IDS).decode(prompts, Counts())
    assert [[slot.ids for slot in slots] for slots in got] == [[slot.ids for slot in slots] for slots in expected]


def test_the_check_of_a_loaded_model_follows_as_well():
    with Places() as places:
        found = laid_out("llama", places)
        one = found.tensor([0])
        found.step(one, one, model.DensePlan(torch.ones(1, 1, dtype=torch.bool, device=FIRST)), one)


def test_tensors_of_two_devices_do_not_meet():
    with Places() as places:
        a, b = torch.ones(3, device="cuda:0"), torch.ones(3, device="cuda:1")
        assert (a.device, b.device) == (FIRST, SECOND)
        with pytest.raises(RuntimeError, match=r"add: tensors on \['cuda:0', 'cuda:1'\]"):
            torch.add(a, b)
        assert torch.add(a.to(SECOND), b).device == SECOND
        assert places.at(torch.zeros(2)) == _CPU


class TestLayers:
    def test_are_laid_whole_and_about_evenly(self):
        hf = tiny_model("llama").hf
        placed = spread.device_map(hf, {0: 10**9, 1: 10**9})
        assert set(placed.values()) == {0, 1}
        assert all(name.count(".") <= 2 for name in placed), "a layer was cut in two"
        last = [place for name, place in placed.items() if "layers" in name]
        assert last == sorted(last)

    def test_that_do_not_fit_are_refused_with_numbers(self):
        hf = tiny_model("llama").hf
        with pytest.raises(SettingsError, match=r"does not fit: 0\.0 GiB of weights .*, and the GPUs have 0\.0, 0\.0"):
            spread.device_map(hf, {0: 50_000, 1: 50_000})

    def test_one_gpu_is_not_several(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        with pytest.raises(SettingsError, match="spread over several GPUs, and this process sees 1"):
            spread.free_by_gpu()


class TestMemory:
    @pytest.fixture
    def folder(self, tmp_path, monkeypatch):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        return write_tiny_model(tmp_path)

    def test_of_all_gpus_together_is_seen_before_a_weight_is_read(self, folder, monkeypatch):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (10_000, 0))
        monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", None)
        with pytest.raises(SettingsError, match=r"does not fit: .* and 2 GPUs together has 0\.0 GiB"):
            Model.load(ModelSpec(str(folder)), device="spread")

    def test_of_the_fullest_gpu_decides_what_kv_may_take(self, folder, monkeypatch):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number: ((5 - number) * 10**9, 0))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
        free = probe.measure(DecoderSpec(ModelSpec(str(folder)), DecodeSettings(kv_mib="auto")), device="spread")
        assert 7.9e9 < free.free_bytes < 8e9

    def test_quantised_weights_are_for_one(self, folder):
        with pytest.raises(SettingsError, match=r"int8-weight-only is for a model on one GPU, .*: pool\.gpus 1"):
            Model.load(ModelSpec(str(folder), quantization="int8-weight-only"), device="spread")
