"""`auto` settings: what is decided from what, and that a decoder which measured for itself answers the same."""

from __future__ import annotations

import json
import logging
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hpd_core import HyperParallelDecoder, probe
from hpd_core.cache import Slab, SlabPool
from hpd_core.decode import Decoder
from hpd_core.model import Model
from hpd_core.model_spec import ModelSpec, Prompting
from hpd_core.rows import Counts
from hpd_core.schema import Attribute, Schema
from hpd_core.settings import DecodeSettings, SettingsError
from hpd_core.sizing import Measured, decided, defaults, free_memory, knee, reused, shown
from hpd_core.spec import DecoderSpec
from tests.core.families import FAMILIES, Family
from tests.core.tiny import STOP_IDS, prompts_of, tiny_model
from tests.core.tiny_folder import write_tiny_model

RATES = {32: 10.0, 64: 50.0, 128: 89.0, 256: 91.0, 512: 100.0, 1024: 97.0}
GIB = 2**30


def measured(rates: dict[int, float] = RATES, free: int = 8 * GIB) -> Measured:
    return Measured(rates, free, "cpu", "float32", 2)


def test_the_knee_is_the_fewest_rows_near_the_best_rate() -> None:
    assert knee(RATES) == 256 and knee(RATES, near=0.89) == 128 and knee(RATES, near=1.0) == 512
    assert knee({32: 5.0}) == 32
    assert knee({1024: 1.0, 32: 0.95}) == 32  # whatever their order


def test_each_auto_becomes_a_number_and_the_others_stay() -> None:
    auto = DecodeSettings(tokens_per_step="auto", max_slots="auto", kv_mib="auto")
    assert auto.is_auto
    settings = decided(auto, measured())
    assert (settings.tokens_per_step, settings.max_slots, settings.kv_mib) == (256, 512, 4096)
    assert not settings.is_auto and "256 tokens per step, 512 slots, 4,096 MiB of KV" in shown(settings)
    assert decided(DecodeSettings(max_slots="auto", tokens_per_step=96), measured()).max_slots == 192
    assert decided(DecodeSettings(kv_mib="auto"), measured()).tokens_per_step == DecodeSettings().tokens_per_step
    assert decided(DecodeSettings(), measured()) == DecodeSettings()
    assert decided(DecodeSettings(kv_mib="auto"), measured(free=-GIB)).kv_mib == 16  # weights that hardly fit


def test_what_was_decided_is_reused_and_never_what_is_set() -> None:
    auto = DecodeSettings(tokens_per_step="auto", max_slots=7, kv_mib="auto")
    before = {"tokens_per_step": 2048, "max_slots": 4096, "layout": "gaps"}
    assert reused(auto, before) == DecodeSettings(tokens_per_step=2048, max_slots=7, kv_mib=None)
    assert reused(auto, {}) == auto
    assert defaults(auto) == DecodeSettings(max_slots=7)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tokens_per_step": "many"}, "tokens_per_step is 'many': must be a whole number or auto"),
        ({"max_value_tokens": "auto"}, "max_value_tokens is 'auto': must be a whole number"),
        ({"max_slots": None}, "max_slots is None"),
        ({"kv_mib": 0}, "kv_mib is 0: must be at least 1"),
    ],
)
def test_what_is_neither_a_number_nor_auto_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        DecodeSettings(**wrong)


def test_no_decoder_runs_with_settings_that_nobody_has_decided() -> None:
    model = tiny_model("llama")
    for auto in ({"tokens_per_step": "auto"}, {"max_slots": "auto"}, {"kv_mib": "auto"}):
        with pytest.raises(SettingsError, match="is auto"):
            Decoder(model, DecodeSettings(**auto), STOP_IDS)  # type: ignore[arg-type]


def test_the_fingerprint_of_settings_without_a_bound_is_that_of_before_there_was_one(tmp_path: Path) -> None:
    spec = DecoderSpec(ModelSpec(str(write_tiny_model(tmp_path)), prompting=Prompting.PLAIN))
    assert "kv_mib" not in spec.as_dict()["settings"]
    bounded = replace(spec, settings=DecodeSettings(kv_mib=64))
    assert bounded.as_dict()["settings"]["kv_mib"] == 64


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_bytes_of_a_token_are_those_that_a_slab_takes(family: Family) -> None:
    model = family.model()
    decoder = Decoder(model, DecodeSettings(max_value_tokens=6), STOP_IDS)
    decoder.decode(prompts_of(1, [9]), Counts())
    [prefix] = decoder._prefixes._prefixes.values()
    assert prefix.bytes == prefix.columns * model.kv_bytes_per_token > 0


class Peak(Decoder):
    """Notes the most bytes that slabs took, and how many documents were in flight at most."""

    bytes = documents = 0

    def _run(self, feeds: Any, owners: Any, counts: Counts) -> None:
        super()._run(feeds, owners, counts)
        self.bytes = max(self.bytes, sum(slab.bytes for slab in self._pool.slabs))
        self.documents = max(self.documents, len({id(o) for o in owners}))


def test_documents_in_flight_stay_within_the_bound_and_answer_the_same() -> None:
    model = tiny_model("llama")
    prompts = prompts_of(5, [random.Random(n).randrange(5, 90) for n in range(30)])
    free = Peak(model, DecodeSettings(max_value_tokens=6), STOP_IDS)
    wanted = free.decode(prompts, Counts())
    bound = Peak(model, DecodeSettings(max_value_tokens=6, kv_mib=1), STOP_IDS)
    found = bound.decode(prompts, Counts())
    assert [[slot.ids for slot in slots] for slots in found] == [[slot.ids for slot in slots] for slots in wanted]
    assert 2**19 < bound.bytes <= 2**20 < free.bytes
    assert 1 < bound.documents < free.documents


def test_a_bound_is_one_of_whole_slabs_whatever_widths_come_and_go() -> None:
    rng, pool, taken = random.Random(3), SlabPool(torch.device("cpu"), 4096), list[tuple[Slab, int]]()
    most = 0
    for _ in range(3000):
        columns = rng.choice([10, 64, 65, 300, 900])
        if pool.fits(columns) and rng.random() < 0.6:
            taken.append(pool.take(columns))
            assert taken[-1][0].columns >= columns
        elif taken:
            slab, block = taken.pop(rng.randrange(len(taken)))
            slab.release(block)
        held = sum(slab.documents * slab.columns for slab in pool.slabs)
        assert held <= 4096
        most = max(most, sum(slab.columns for slab, _ in taken))
    assert most > 3000  # and it is made use of
    assert SlabPool(torch.device("cpu")).take(64)[0].documents == 32


def test_a_document_of_another_width_does_not_wait_for_all_that_came_before() -> None:
    pool = SlabPool(torch.device("cpu"), 4096)
    taken = [pool.take(128) for _ in range(32)]
    assert not pool.fits(128) and not pool.fits(10) and len(pool.slabs) == 4
    for slab, block in taken:
        if slab is taken[0][0]:
            slab.release(block)
    assert pool.fits(10) and pool.fits(1000) and not pool.fits(1025)


def test_a_document_larger_than_the_bound_is_decoded_alone() -> None:
    decoder = Peak(tiny_model("llama"), DecodeSettings(max_value_tokens=6, kv_mib=1), STOP_IDS)
    decoder._pool = SlabPool(decoder.model.device, 10)
    decoder.decode(prompts_of(5, [40, 50, 60]), Counts())
    assert decoder.documents == 1


def test_rates_are_measured_for_all_rows_and_threads_stay() -> None:
    found = probe.rates(32, 48, torch.float32, torch.device("cpu"), rows=(1, 64), seconds=0.05)
    assert set(found) == {1, 64} and all(0 < rate < 1e15 for rate in found.values())
    assert found[64] > found[1]
    assert 2**20 < free_memory() < 2**50


def test_pages_of_files_count_as_free_under_the_limit_of_a_control_group(tmp_path: Path) -> None:
    def group(limit: str, used: int, **stat: int) -> int:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text(f"{used}\n")
        (tmp_path / "memory.stat").write_text("".join(f"{name} {value}\n" for name, value in stat.items()))
        return free_memory(tmp_path)

    files = {"anon": 5000, "inactive_file": 300, "active_file": 20, "slab_reclaimable": 1, "slab_unreclaimable": 7000}
    assert group("9000", 8500, anon=8500) == 500
    assert group("9000", 8500, **files) == 821
    assert group("9000", 9500, **files) == 0
    assert group("max", 8500, **files) > 2**20
    assert group("9000", 8500) == 500  # nothing is said
    assert free_memory(tmp_path / "none") > 2**20


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_family_has_a_shape_to_measure_by(family: Family) -> None:
    hidden, intermediate = probe.mlp_shape(family.configuration())
    assert hidden == 32 and intermediate == {"GPT-2": 128}.get(family.name, 48)


def test_rates_are_measured_where_something_is_decided_by_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "rates", lambda *_: dict(RATES))
    model = tiny_model("llama")
    memory_alone = probe.measure_loaded(model, DecodeSettings(kv_mib="auto"))
    assert not memory_alone.rates and str(memory_alone).count("GFLOP/s") == 0
    assert decided(DecodeSettings(kv_mib="auto"), memory_alone).kv_mib == memory_alone.free_bytes // 2 >> 20
    for auto in ({"tokens_per_step": "auto"}, {"max_slots": "auto"}):
        assert probe.measure_loaded(model, DecodeSettings(**auto)).rates == RATES  # type: ignore[arg-type]


def test_a_model_with_code_of_its_own_is_measured_where_it_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_model(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own'\n"
        "class OwnModel(LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    monkeypatch.setattr(probe, "rates", lambda *_: dict(RATES))
    auto = DecodeSettings(tokens_per_step="auto")
    model = ModelSpec(str(folder), prompting=Prompting.PLAIN, trust_remote_code=True)
    assert probe.measure(DecoderSpec(model, auto), device="cpu").rates == RATES


def test_a_machine_is_measured_without_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_SECONDS", 0.05)
    monkeypatch.setattr(probe, "free_memory", lambda: 8 * GIB)
    spec = DecoderSpec(
        ModelSpec(str(write_tiny_model(tmp_path)), prompting=Prompting.PLAIN, dtype="bfloat16"),
        DecodeSettings(tokens_per_step="auto"),
    )
    monkeypatch.setattr(Model, "load", None)
    found = probe.measure(spec, device="cpu", threads=1, sharing=2)
    assert (found.device, found.dtype, found.threads) == ("cpu", "bfloat16", 1)
    assert 4 * GIB - 2**20 < found.free_bytes < 4 * GIB  # half of it, weights of some KiB taken off
    assert "thread(s): " in str(found) and found.as_dict()["free_mib"] == 4095


def test_a_decoder_that_measures_for_itself_answers_as_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    base = str(write_tiny_model(tmp_path))
    schema = Schema("s", (Attribute("Brand"), Attribute("Color")))
    texts = [f"Shoe number {n} of brand {'x' * n}" for n in range(8)]

    def answers(**sizes: Any) -> tuple[HyperParallelDecoder, list[Any]]:
        settings = DecodeSettings(max_value_tokens=5, **sizes)
        decoder = HyperParallelDecoder.from_pretrained(
            ModelSpec(base, prompting=Prompting.PLAIN), settings, device="cpu"
        )
        return decoder, [[v.raw for v in row.values] for row in decoder.extract(texts, schema)]

    monkeypatch.setattr(probe, "rates", lambda *_: dict(RATES))
    with caplog.at_level(logging.INFO, "hpd_core"):
        decoder, said = answers(tokens_per_step="auto", max_slots="auto", kv_mib="auto")
    assert decoder.encoder.settings.tokens_per_step == decoder.decoder.settings.tokens_per_step == 256
    assert "decided: 256 tokens per step, 512 slots" in caplog.text
    assert said == answers(tokens_per_step=31)[1]
