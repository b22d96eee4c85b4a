"""Kinds of models, weights and numbers on CUDA devices: families, half precision, quantised weights, several GPUs.
`pytest tests/gpu`; skipped without one.

Not seen to pass on a device yet.
"""

from __future__ import annotations

import pytest
import torch

from hpd_core import DecodeSettings, ModelSpec, quantization, quantize
from hpd_core.decode import Decoder
from hpd_core.extractor import HyperParallelDecoder
from hpd_core.model import Model
from hpd_core.model_spec import Prompting, Quantization
from hpd_core.products import Scoring, attend_blocks, masked_attention
from hpd_core.rows import Counts
from hpd_core.schema import Attribute, Schema
from hpd_core.serial import decode_serial
from tests.core.families import FAMILIES
from tests.core.test_exactness import WAYS, decode, settings_of, worst
from tests.core.test_families import IN_FLOAT32, _ids
from tests.core.test_quantization import tiny
from tests.core.tiny import CONFIGS, STOP_IDS, prompts_of, tiny_model
from tests.core.tiny_folder import write_tiny_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICE = "cuda"
_NEVER_STOP: frozenset[int] = frozenset()
#: Largest difference of logits against the oracle, relative to the largest one.
HALF = {torch.bfloat16: 0.1, torch.float16: 0.02}
KINDS = {
    Quantization.INT8_WEIGHT_ONLY: torch.float32,
    Quantization.INT8_DYNAMIC: torch.float32,
    Quantization.INT4_WEIGHT_ONLY: torch.bfloat16,
    Quantization.FLOAT8_DYNAMIC: torch.bfloat16,
    Quantization.NF4_WEIGHT_ONLY: torch.float32,
}
CLOSE = {Quantization.INT8_WEIGHT_ONLY: 1e-4, Quantization.INT8_DYNAMIC: 5e-2, Quantization.NF4_WEIGHT_ONLY: 1e-3}


def furthest(model: Model, way: int, **path: bool) -> float:
    """Worst difference of teacher-forced logits against the oracle's."""
    settings = settings_of(*WAYS[way])
    prompts = prompts_of(0, [1, 17, 9, 33, 5], schemas=2)
    oracle = [decode_serial(model, prompt, settings, _NEVER_STOP) for prompt in prompts]
    forced = [[slot.ids for slot in slots] for slots in oracle]
    got = decode(model, prompts, settings, forced=forced, stop_ids=_NEVER_STOP, **path)
    return max(worst(slots, truth) for slots, truth in zip(got, oracle, strict=True))


@pytest.mark.parametrize(("way", "graphs"), [(0, False), (1, False), (2, False), (2, True)])
@pytest.mark.parametrize("family", FAMILIES, ids=_ids)
def test_a_family_equals_the_oracle_in_float64(family, way, graphs):
    model = Model(family.model().hf.to(DEVICE), long_context=family.long_context)
    assert furthest(model, way, graphs=graphs) < family.tolerance


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.name in IN_FLOAT32], ids=_ids)
def test_a_family_equals_the_oracle_in_float32(family, monkeypatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    model = Model(family.model(torch.float32).hf.to(DEVICE), long_context=family.long_context)
    assert furthest(model, 2) <= 1e-5


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("graphs", [False, True])
def test_half_precision_is_near_the_oracle(kind, dtype, graphs):
    assert furthest(Model(tiny_model(kind, dtype).hf.to(DEVICE)), 2, graphs=graphs) < HALF[dtype]


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_scores_are_kept_in_float32(dtype):
    """As tests/core/test_products.py, by the product that only a GPU has. In float16 unscaled ones exceed 65,504."""
    torch.manual_seed(0)
    size = 60.0 if dtype == torch.float16 else 2.0
    query, key = size * torch.randn(5, 4, 64, device=DEVICE), size * torch.randn(2, 40, 64, device=DEVICE)
    query, key, value = query.to(dtype), key.to(dtype), torch.randn(2, 40, 64, device=DEVICE).to(dtype)
    scoring, sees = Scoring(1 / (8 * size)), torch.ones(5, 40, dtype=torch.bool, device=DEVICE)
    right = masked_attention(query.double(), key.double(), value.double(), sees, scoring)
    blocks, _ = attend_blocks(query[None], key[None], value[None], None, scoring)
    for got in (masked_attention(query, key, value, sees, scoring), blocks[0]):
        assert float((got.double() - right).abs().max()) < 0.012


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("graphs", [False, True])
def test_quantised_weights_are_decoded_as_the_oracle_decodes_them(kind, graphs):
    pytest.importorskip(quantization.KINDS[kind].package)
    if kind is Quantization.FLOAT8_DYNAMIC and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("8-bit floats need compute capability 8.9")
    hf, where = tiny(hidden_size=128, intermediate_size=256).to(KINDS[kind]), torch.device(DEVICE)
    quantize.quantize(hf, ModelSpec("x", name="m", quantization=kind), where)
    model = Model(hf.to(where), rounds_activations=quantization.rounds_activations(kind))
    model.check()
    assert furthest(model, 2, graphs=graphs) < CLOSE.get(kind, 0.2)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_quantised_weights_are_loaded_and_extract(kind, tmp_path):
    pytest.importorskip(quantization.KINDS[kind].package)
    if kind is Quantization.FLOAT8_DYNAMIC and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("8-bit floats need compute capability 8.9")
    folder = write_tiny_model(tmp_path, hidden_size=128)
    dtype = str(KINDS[kind]).removeprefix("torch.")
    spec = ModelSpec(str(folder), dtype=dtype, quantization=kind, prompting=Prompting.PLAIN)
    decoder = HyperParallelDecoder.from_pretrained(spec, DecodeSettings(max_value_tokens=4), device=DEVICE)
    (row,) = decoder.extract(["red shoe"], Schema("s", (Attribute("Color"),)))
    assert row.status.is_ok


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="no second CUDA device")
@pytest.mark.parametrize("way", range(len(WAYS)))
def test_a_model_spread_over_gpus_equals_itself_on_one(tmp_path, way):
    """accelerate's own hooks, which a CPU cannot try."""
    folder = write_tiny_model(tmp_path, layers=4)
    settings, prompts = settings_of(*WAYS[way]), prompts_of(0, [1, 17, 9], schemas=2)
    answers = []
    for device in ("cuda:0", "spread"):
        model = Model.load(ModelSpec(str(folder), dtype="float64"), device=device)
        assert model.is_spread == (device == "spread")
        got = Decoder(model, settings, STOP_IDS, keep_logits=True).decode(prompts, Counts())
        answers.append([[slot.ids for slot in slots] for slots in got])
        if model.is_spread:
            assert furthest(model, way) < 1e-10
    assert answers[0] == answers[1]
