"""`auto` settings: what is decided from what, and that a decoder which measured for itself answers the same."""

from __future__ import annotations

import logging
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hpd_core import HyperParallelDecoder, probe
from hpd_core.cache import Slab
from hpd_core.decode import Decoder
from hpd_core.model import Model
from hpd_core.rows import Counts
from hpd_core.schema import Attribute, Schema
from hpd_core.settings import DecoderSpec, DecodeSettings, ModelSpec, Prompting, SettingsError
from hpd_core.sizing import Measured, decided, defaults, free_memory, knee, kv_bytes_per_token, reused, shown
from tests.core.tiny import CONFIGS, STOP_IDS, prompts_of, tiny_model
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
    assert decided(DecodeSettings(kv_mib="auto"), measured()).tokens_per_step == 512
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


@pytest.mark.parametrize("kind", CONFIGS)
def test_bytes_of_a_token_are_those_that_a_slab_takes(kind: str) -> None:
    model = tiny_model(kind)
    slab = Slab(1, 10, model.device)
    decoder = Decoder(model, DecodeSettings(max_value_tokens=6), STOP_IDS)
    decoder.decode(prompts_of(1, [9]), Counts())
    [prefix] = decoder._prefixes._prefixes.values()
    assert prefix.bytes == prefix.columns * model.kv_bytes_per_token and slab.bytes == 0
    assert kv_bytes_per_token(model.hf.config, 8) == model.kv_bytes_per_token


class Peak(Decoder):
    """Notes the most cells that documents in flight had reserved, and how many documents they were."""

    cells = documents = 0

    def _run(self, feeds: Any, owners: Any, counts: Counts) -> None:
        flight = {id(o): o for o in owners}.values()
        self.cells = max(self.cells, sum(o.slab.columns for o in flight))
        self.documents = max(self.documents, len(flight))
        super()._run(feeds, owners, counts)


def test_documents_in_flight_stay_within_the_bound_and_answer_the_same() -> None:
    model = tiny_model("llama")
    prompts = prompts_of(5, [random.Random(n).randrange(5, 90) for n in range(30)])
    free = Peak(model, DecodeSettings(max_value_tokens=6), STOP_IDS)
    wanted = free.decode(prompts, Counts())
    bound = Peak(model, DecodeSettings(max_value_tokens=6, kv_mib=1), STOP_IDS)
    found = bound.decode(prompts, Counts())
    assert [[slot.ids for slot in slots] for slots in found] == [[slot.ids for slot in slots] for slots in wanted]
    assert bound.cells * model.kv_bytes_per_token <= 2**20 < free.cells * model.kv_bytes_per_token
    assert 1 < bound.documents < free.documents


def test_a_document_larger_than_the_bound_is_decoded_alone() -> None:
    decoder = Peak(tiny_model("llama"), DecodeSettings(max_value_tokens=6, kv_mib=1), STOP_IDS)
    decoder._kv_cells = 10
    decoder.decode(prompts_of(5, [40, 50, 60]), Counts())
    assert decoder.documents == 1


def test_rates_are_measured_for_all_rows_and_threads_stay() -> None:
    found = probe.rates(32, 48, torch.float32, torch.device("cpu"), rows=(1, 64), seconds=0.05)
    assert set(found) == {1, 64} and all(0 < rate < 1e15 for rate in found.values())
    assert found[64] > found[1]
    assert 2**20 < free_memory() < 2**50


def test_a_machine_is_measured_without_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_SECONDS", 0.05)
    monkeypatch.setattr(probe, "free_memory", lambda: 8 * GIB)
    spec = DecoderSpec(ModelSpec(str(write_tiny_model(tmp_path)), prompting=Prompting.PLAIN, dtype="bfloat16"))
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
