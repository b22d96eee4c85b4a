"""Quantised weights: decoded as the oracle decodes the same weights, and refused where they would not be."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MixtralConfig

from hpd_core import ModelSpec, probe, quantization, quantize
from hpd_core.decode import Decoder
from hpd_core.extractor import HyperParallelDecoder
from hpd_core.model import Model
from hpd_core.model_spec import Prompting, Quantization
from hpd_core.quantization import check
from hpd_core.rows import Counts
from hpd_core.schema import Attribute, Schema
from hpd_core.serial import decode_serial
from hpd_core.settings import DecodeSettings, SettingsError
from hpd_core.spec import DecoderSpec
from hpd_core.supported import UnsupportedModelError
from tests.core.test_exactness import WAYS, settings_of, worst
from tests.core.tiny import STOP_IDS, VOCABULARY, prompts_of
from tests.core.tiny_folder import write_tiny_model

CPU = torch.device("cpu")
ON_CPU = [Quantization.INT8_WEIGHT_ONLY, Quantization.INT8_DYNAMIC, Quantization.INT4_WEIGHT_ONLY]
#: Largest difference of logits, relative. Weights alone: rounding of float32. Activations too: one that lies on the
#: edge between two of its 255 values falls to either side of it.
CLOSE = {kind: 5e-2 if kind is Quantization.INT8_DYNAMIC else 1e-4 for kind in ON_CPU}


def tiny(tied: bool = True, **others):
    torch.manual_seed(7)
    shape = dict(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.1, tie_word_embeddings=tied,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(LlamaConfig(**shape | others), dtype=torch.float32)


def spec_of(kind):
    return ModelSpec("x", name="m", quantization=kind)


def quantized(kind, hf=None):
    hf = tiny() if hf is None else hf
    quantize.quantize(hf, spec_of(kind), CPU)
    return Model(hf, rounds_activations=quantization.rounds_activations(kind))


@pytest.fixture(scope="module", params=ON_CPU, ids=str)
def pair(request):
    return request.param, quantized(request.param)


@pytest.mark.parametrize("layout, visibility", WAYS)
def test_decodes_as_the_oracle_decodes_the_same_weights(pair, layout, visibility):
    """Teacher-forced, so that one near-tie does not cascade; a first id that differs must be one."""
    kind, model = pair
    settings = settings_of(layout, visibility)
    prompts = prompts_of(0, [1, 17, 9, 33, 5], schemas=2)
    expected = [decode_serial(model, prompt, settings, STOP_IDS) for prompt in prompts]
    taught = [[slot.ids for slot in slots] for slots in expected]
    decoder = Decoder(model, settings, STOP_IDS, keep_logits=True)
    got = decoder.decode(prompts, Counts(), taught)
    assert max(worst(a, b) for a, b in zip(got, expected, strict=True)) < CLOSE[kind]
    free = decoder.decode(prompts, Counts())
    for slots, oracle in zip(free, expected, strict=True):
        for slot, other in zip(slots, oracle, strict=True):
            if slot.ids != other.ids:
                at = next(n for n, (a, b) in enumerate(zip(slot.ids, other.ids, strict=False)) if a != b)
                first, second = other.logits[at].topk(2).values.tolist()
                assert first - second < 2 * CLOSE[kind] * float(other.logits.abs().max())


def test_a_token_is_the_same_whatever_it_is_packed_with(pair):
    """Bit for bit where activations are rounded, and nearly where only weights are: a product of other rows may be
    added up in another order."""
    kind, model = pair
    layer = model.hf.model.layers[0].mlp.down_proj
    x = torch.randn(40, layer.in_features, generator=torch.Generator().manual_seed(1))
    x[7] *= 1000  # a scale that tokens share would round all others to nothing
    with torch.inference_mode():
        whole, alone = layer(x), torch.cat([layer(row[None]) for row in x])
    assert torch.equal(whole, alone) or (
        not quantization.rounds_activations(kind) and torch.allclose(whole, alone, rtol=1e-4, atol=1e-5)
    )


def test_the_weights_differ_from_the_models_own_and_not_much(pair):
    kind, model = pair
    prompts = prompts_of(0, [17, 9])
    before = Decoder(Model(tiny()), settings_of(*WAYS[2]), STOP_IDS, keep_logits=True).decode(prompts, Counts())
    taught = [[slot.ids for slot in slots] for slots in before]
    decoder = Decoder(model, settings_of(*WAYS[2]), STOP_IDS, keep_logits=True)
    apart = max(worst(a, b) for a, b in zip(decoder.decode(prompts, Counts(), taught), before, strict=True))
    assert 1e-3 < apart < (0.6 if kind is Quantization.INT4_WEIGHT_ONLY else 0.2)


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_and_head_stay_as_they_are(tied):
    model = quantized(Quantization.INT8_WEIGHT_ONLY, tiny(tied))
    head, embeddings = model.hf.lm_head.weight, model.hf.model.embed_tokens.weight
    assert type(head) is nn.Parameter and (head is embeddings) == tied
    assert torch.equal(embeddings, tiny(tied).model.embed_tokens.weight)
    linear = [m for m in model.hf.modules() if isinstance(m, nn.Linear) and m is not model.hf.lm_head]
    assert len(linear) == 14 and all("Int8" in type(m.weight).__name__ for m in linear)


def test_a_scale_that_tokens_share_is_found(monkeypatch):
    ao = pytest.importorskip("torchao.quantization")
    shared = ao.Int8DynamicActivationInt8WeightConfig(
        granularity=[ao.PerTensor(), ao.PerRow()], set_inductor_config=False
    )
    monkeypatch.setattr(quantize, "_config", lambda *_: shared)
    with pytest.raises(UnsupportedModelError, match=r"in model\.layers\..* tokens share a scale"):
        quantized(Quantization.INT8_DYNAMIC)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), hidden_size=64)


@pytest.mark.parametrize("kind", ON_CPU, ids=str)
def test_a_spec_is_loaded_quantised_and_extracts(folder, kind):
    dtype = "bfloat16" if kind is Quantization.INT4_WEIGHT_ONLY else "auto"
    spec = ModelSpec(str(folder), quantization=kind, dtype=dtype, prompting=Prompting.PLAIN)
    decoder = HyperParallelDecoder.from_pretrained(spec, DecodeSettings(max_value_tokens=5), device="cpu")
    assert type(decoder.model.hf.model.layers[0].self_attn.q_proj.weight) is not nn.Parameter
    assert decoder.model.dtype == (torch.bfloat16 if dtype == "bfloat16" else torch.float32)
    rows = decoder.extract(["Acme shoe, red"], Schema("s", (Attribute("Brand"),)))
    assert rows[0].status.is_ok


def test_memory_is_that_of_what_is_stored():
    hf = tiny()
    whole = sum(p.numel() for p in hf.parameters())
    linear = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96)
    assert quantize.weight_bytes(hf, Quantization.NONE, torch.float32) == 4 * whole
    assert quantize.weight_bytes(hf, Quantization.INT8_DYNAMIC, torch.float32) == linear + 4 * (whole - linear)
    assert quantize.weight_bytes(hf, Quantization.INT4_WEIGHT_ONLY, torch.bfloat16) == (
        linear * 5 // 8 + 2 * (whole - linear)
    )
    held = quantized(Quantization.INT8_WEIGHT_ONLY, hf).hf
    scales = sum(m.weight.scale.nbytes for m in held.modules() if hasattr(getattr(m, "weight", None), "qdata"))
    stored = sum(p.qdata.nbytes + p.scale.nbytes if hasattr(p, "qdata") else p.nbytes for p in held.parameters())
    assert stored - scales == quantize.weight_bytes(tiny(), Quantization.INT8_WEIGHT_ONLY, torch.float32)


def test_what_is_free_beside_quantised_weights(folder, monkeypatch):
    monkeypatch.setattr(probe, "_free", lambda _: 10**9)
    spec = DecoderSpec(ModelSpec(str(folder)), DecodeSettings(kv_mib="auto"))
    plain = probe.measure(spec, device="cpu").free_bytes
    less = replace(spec, model=replace(spec.model, quantization=Quantization.INT8_WEIGHT_ONLY))
    assert plain < probe.measure(less, device="cpu").free_bytes < 10**9


def test_the_kind_belongs_to_what_decides_answers(folder):
    spec = DecoderSpec(ModelSpec(str(folder)))
    assert "quantization" not in spec.as_dict()["model"]  # as before there was any: old outputs can be resumed
    marked = replace(spec, model=replace(spec.model, quantization="int8-dynamic"))
    assert marked.as_dict()["model"]["quantization"] == "int8-dynamic"


class TestRefusals:
    def test_a_kind_that_does_not_exist(self):
        with pytest.raises(SettingsError, match="quantization 'int3': must be one of none, int8-weight-only"):
            ModelSpec("x", quantization="int3")

    @pytest.mark.parametrize("kind", ["float8-dynamic", "nf4-weight-only"])
    def test_kinds_of_a_gpu_on_a_cpu(self, folder, kind):
        with pytest.raises(SettingsError, match=rf"{kind} needs a CUDA device: .* On a CPU take int8-weight-only"):
            Model.load(ModelSpec(str(folder), quantization=kind, dtype="bfloat16"), device="cpu")

    @pytest.mark.parametrize(
        "kind, dtype, wanted",
        [("int4-weight-only", "float32", "bfloat16"), ("int8-dynamic", "float64", "float32 or bfloat16 or float16")],
    )
    def test_precisions_that_have_no_kernel(self, folder, kind, dtype, wanted):
        with pytest.raises(SettingsError, match=f"{kind} works with dtype {wanted}, not with {dtype}: set model.dtype"):
            Model.load(ModelSpec(str(folder), quantization=kind, dtype=dtype), device="cpu")

    @pytest.mark.parametrize(
        "kind, package, how",
        [("int8-weight-only", "torchao", r"hpd-catalog\[quantization\]"), ("nf4-weight-only", "bitsandbytes", "bits")],
    )
    def test_a_library_that_is_missing(self, monkeypatch, kind, package, how):
        monkeypatch.setattr(quantization, "find_spec", lambda _: None)
        with pytest.raises(SettingsError, match=f"{kind} needs {package}, which is not installed: pip install .*{how}"):
            quantization.check_installed(spec_of(kind))
        quantization.check_installed(spec_of("none"))

    def test_a_gpu_that_is_too_old(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Older GPU")
        with pytest.raises(SettingsError, match=r"needs compute capability 8\.9, and Older GPU has 8\.0"):
            quantize.quantize(tiny(), spec_of("float8-dynamic"), torch.device("cuda"))

    def test_experts_and_layers_of_another_kind(self):
        shape = dict(vocab_size=64, hidden_size=64, num_hidden_layers=1, num_attention_heads=4)
        mixtral = MixtralConfig(**shape, intermediate_size=96, num_key_value_heads=2, num_local_experts=4)
        for config in (mixtral, GPT2Config(vocab_size=64, n_embd=64, n_layer=1, n_head=4)):
            hf = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            with pytest.raises(UnsupportedModelError, match=r"cannot be quantised .* linear layers hold \d+ % of its"):
                quantize.quantize(hf, spec_of("int8-weight-only"), CPU)

    def test_rows_that_do_not_divide_into_groups(self):
        with pytest.raises(UnsupportedModelError, match=r"mlp\.down_proj have 80 weights, .* groups of 32"):
            quantize.quantize(tiny(intermediate_size=80), spec_of("int4-weight-only"), CPU)


def test_what_a_gpu_may_take_is_not_refused():
    for kind in Quantization:
        check(ModelSpec("x", quantization=kind), dtype="bfloat16", on_gpu=True)


def test_nf4_replaces_each_layer_and_keeps_its_bias(monkeypatch):
    """With a stand-in for the library, which needs a GPU."""

    class Linear4bit(nn.Linear):
        def __init__(self, n_in, n_out, bias, compute_dtype, quant_type):
            super().__init__(n_in, n_out, bias=bias, dtype=compute_dtype)
            self.quant_type = quant_type

    class Params4bit(nn.Parameter):
        def __new__(cls, data, requires_grad, quant_type):
            return torch.Tensor._make_subclass(cls, data, requires_grad)

    library = ModuleType("bitsandbytes")
    library.nn = SimpleNamespace(Linear4bit=Linear4bit, Params4bit=Params4bit)
    monkeypatch.setitem(sys.modules, "bitsandbytes", library)
    monkeypatch.setattr(quantization, "find_spec", lambda _: True)
    hf, ids = tiny(attention_bias=True), torch.tensor([[5, 9, 3]])
    with torch.inference_mode():
        before = hf(ids).logits
        quantize.quantize(hf, spec_of("nf4-weight-only"), CPU)
        assert torch.equal(hf(ids).logits, before)  # the stand-in rounds nothing
    assert sum(isinstance(m, Linear4bit) and m.quant_type == "nf4" for m in hf.modules()) == 14
