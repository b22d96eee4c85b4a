"""GGUF files: dequantised once to the weights that they hold, the room for it said before; broken ones named."""

from __future__ import annotations

import json
import logging
from collections import namedtuple
from dataclasses import replace

import numpy as np
import pytest
import torch
from gguf import RopeScalingType
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

from hpd_core import ModelSpec, gguf, gguf_header, gguf_rules, source
from hpd_core.checkpoint import ModelNotFoundError
from hpd_core.gguf_header import read_header
from hpd_core.model import Model
from hpd_core.settings import SettingsError
from hpd_core.supported import UnsupportedModelError
from tests.core.tiny_folder import write_tiny_model
from tests.core.tiny_gguf import write_gguf

IDS = torch.tensor([[5, 9, 200, 31, 77]])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def written(tiny, tmp_path_factory):
    return write_gguf(tiny, tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "hpd-gguf"


def logits(spec):
    model = Model.load(spec)
    with model.native_attention() as hf, torch.inference_mode():
        return hf(IDS).logits


def test_its_weights_are_those_of_the_model_and_the_room_is_told(tiny, written, cache, caplog):
    with caplog.at_level(logging.INFO, "hpd_core.gguf"):
        got = logits(ModelSpec(str(written)))
    assert torch.equal(got, logits(ModelSpec(str(tiny))))
    (told,) = [r.getMessage() for r in caplog.records if r.name == "hpd_core.gguf"]
    assert (
        "its 0 million parameters (llama) are dequantised to float32, once: 0.0 GiB in" in told and str(cache) in told
    )
    caplog.clear()
    source.locate(ModelSpec(str(written)))
    assert not caplog.records  # once


def test_the_header_counts_what_the_directory_holds(tiny, written):
    header = read_header(written)
    assert header.parameters == sum(p.numel() for p in Model.load(ModelSpec(str(tiny))).hf.parameters())
    assert header.architecture == "llama"


def test_no_token_is_decoded(tiny, written, monkeypatch):
    """150,000 of them, and as many merges: to be passed over by their lengths."""
    texts, text = [], gguf_header._Cursor.text
    monkeypatch.setattr(gguf_header._Cursor, "text", lambda self: texts.append(text(self)) or texts[-1])
    read_header(written)
    tokens = json.loads((tiny / "tokenizer.json").read_text())["model"]["vocab"]
    assert "tokenizer.ggml.tokens" in texts and len(texts) < 60 < len(tokens)


def test_too_little_memory_is_said_with_numbers_before_anything_is_unpacked(written, cache, monkeypatch):
    spec, needed = ModelSpec(str(written), name="m"), 4 * read_header(written).parameters
    source.check_loadable(spec, copies=2, free=2 * needed)
    with pytest.raises(SettingsError, match=r"'m' does not fit: its 0 million .* for each of 2 actors, .* in all"):
        source.check_loadable(spec, copies=2, free=2 * needed - 1)
    monkeypatch.setattr(gguf, "free_memory", lambda: needed - 1)
    for ask in (source.check_loadable, source.locate):
        with pytest.raises(SettingsError, match=r"tiny\.gguf cannot be unpacked: its 0 million .* of free memory"):
            ask(spec)
    monkeypatch.undo()
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(cache.parent))
    monkeypatch.setattr("shutil.disk_usage", lambda _: namedtuple("Usage", "free")(needed - 1))
    with pytest.raises(SettingsError, match=r"0\.0 GiB of free disk under .* \(HF_HOME moves it\)"):
        source.check_loadable(spec)
    assert not cache.exists() or not [p for p in cache.iterdir() if p.is_dir()]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda whole: b"", "no GGUF file: it begins with b''"),
        (lambda whole: b"no GGUF at all", "no GGUF file: it begins with b'no G'"),
        (lambda whole: b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
        (lambda whole: whole[:300], "is cut short, or no GGUF file that can be read"),
        (lambda whole: whole[:-100], "is cut short: .* bytes are there"),
        (lambda whole: whole[:4] + b"\x01" + whole[5:], "version 1, and versions 2 and 3 are read"),
    ],
)
def test_what_is_broken_is_named(written, tmp_path, spoil, words):
    file = tmp_path / "spoilt.gguf"
    file.write_bytes(spoil(written.read_bytes()))
    for ask in (source.check_loadable, source.locate):
        with pytest.raises(ModelNotFoundError, match=f"{file}.*{words}"):
            ask(ModelSpec(str(file)))


def test_a_weight_that_is_missing_is_named_and_never_made_up(tiny, tmp_path):
    file = write_gguf(tiny, tmp_path / "less.gguf", without="blk.1.ffn_up.weight")
    with pytest.raises(
        ModelNotFoundError, match=f"{file}: 1 of the weights that its configuration .* model.layers.1.mlp.up_"
    ):
        source.locate(ModelSpec(str(file)))


def test_an_architecture_that_transformers_does_not_read(written, tmp_path):
    file = tmp_path / "other.gguf"
    file.write_bytes(written.read_bytes().replace(b"llama", b"lhama"))
    for ask in (source.check_loadable, source.locate):
        with pytest.raises(
            UnsupportedModelError, match=f"^{file}: transformers reads no GGUF files of 'lhama', only of"
        ):
            ask(ModelSpec(str(file)))


def scaled(kind, factor):
    def write(writer):
        writer.add_rope_scaling_type(kind)
        writer.add_rope_scaling_factor(factor)

    return write


def tensor(name):
    return lambda writer: writer.add_tensor(name, np.ones(4, np.float32))


def refused(file, cache, monkeypatch, reason, asks=(source.check_loadable, source.locate)):
    """Before a weight is read."""
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", None)
    for ask in asks:
        with pytest.raises(UnsupportedModelError, match=f"^{file}: .*{reason}"):
            ask(ModelSpec(str(file)))
    assert not cache.exists() or not [p for p in cache.iterdir() if p.is_dir()]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (scaled(RopeScalingType.YARN, 4.0), r"\(llama\.rope\.scaling\.type yarn, factor 4\.0\)"),
        (scaled(RopeScalingType.LINEAR, 8.0), r"\(llama\.rope\.scaling\.type linear, factor 8\.0\)"),
        (lambda writer: writer.add_float32("llama.rope.scale_linear", 2.0), r"\(llama.* linear, factor 2\.0\)"),
        (tensor("rope_freqs.weight"), r"\(tensor rope_freqs\.weight\)"),
        (tensor("rope_factors_short.weight"), r"\(tensor rope_factors_short\.weight\)"),
    ],
)
def test_rope_scaling_that_transformers_would_lose_is_refused(tiny, cache, tmp_path, monkeypatch, more, reason):
    file = write_gguf(tiny, tmp_path / "scaled.gguf", more=more)
    refused(file, cache, monkeypatch, f"its RoPE scaling {reason} is not read from a GGUF file by transformers")


def test_transformers_loses_rope_scaling(tiny, tmp_path):
    """Else the refusal has no reason any more."""
    from transformers import AutoConfig

    write_gguf(tiny, tmp_path / "scaled.gguf", more=scaled(RopeScalingType.YARN, 4.0))
    config = AutoConfig.from_pretrained(tmp_path, gguf_file="scaled.gguf")
    assert config.rope_parameters["rope_type"] == "default"


@pytest.mark.parametrize("more", [scaled(RopeScalingType.NONE, 4.0), scaled(RopeScalingType.LINEAR, 1.0)])
def test_rope_that_is_not_scaled_is_plain(tiny, tmp_path, more):
    source.check_loadable(ModelSpec(str(write_gguf(tiny, tmp_path / "plain.gguf", more=more))))


def test_heads_that_are_turned_in_part(tiny, tmp_path, monkeypatch):
    """Of most architectures transformers does not read how much of a head RoPE turns; of Llama it takes the head from
    it."""
    whole = write_gguf(tiny, tmp_path / "whole.gguf", more=lambda writer: writer.add_rope_dimension_count(8))
    part = write_gguf(tiny, tmp_path / "part.gguf", more=lambda writer: writer.add_rope_dimension_count(6))
    monkeypatch.setitem(GGUF_CONFIG_MAPPING["llama"], "rope.dimension_count", None)
    source.locate(ModelSpec(str(whole)))
    with pytest.raises(UnsupportedModelError, match=f"^{part}: RoPE turns 6 dimensions of its heads, .* would turn 8:"):
        source.locate(ModelSpec(str(part)))


@pytest.mark.parametrize(
    ("architecture", "more", "reason"),
    [
        ("lfm2", lambda writer: writer.add_shortconv_l_cache(3), "'lfm2' is a hybrid model: its shortconv layers"),
        ("qwen35", lambda writer: writer.add_ssm_state_size(8), "'qwen35' is a hybrid model: its ssm layers"),
        ("t5", lambda writer: writer.add_decoder_start_token_id(0), "'t5' is an encoder-decoder model"),
        ("mpt", lambda writer: writer.add_max_alibi_bias(8.0), r"'mpt' biases attention .*\(ALiBi\)"),
        ("bloom", lambda writer: None, r"'bloom' biases attention .*\(ALiBi\)"),
    ],
)
def test_an_architecture_that_cannot_be_decoded(tiny, cache, tmp_path, monkeypatch, architecture, more, reason):
    file = write_gguf(tiny, tmp_path / "other.gguf", architecture=architecture, more=more)
    refused(file, cache, monkeypatch, reason)


@pytest.mark.parametrize("architecture", ["qwen2moe", "qwen3moe", "gpt-oss", "minimax-m2", "gemma3", "phi3", "llama"])
def test_the_names_that_llama_cpp_has_for_what_transformers_reads(written, architecture):
    gguf_rules.refuse(written, replace(read_header(written), architecture=architecture))


def test_recurrent_layers_alone(written):
    header = read_header(written)
    facts = {"mamba.ssm.state_size": 16, "mamba.attention.head_count": 0}
    with pytest.raises(UnsupportedModelError, match="'mamba' has ssm layers in place of attention"):
        gguf_rules.refuse(written, replace(header, architecture="mamba", facts=facts))


def test_one_that_only_its_class_tells_is_refused_before_a_weight_is_unpacked(tiny, cache, tmp_path, monkeypatch):
    file = write_gguf(tiny, tmp_path / "falcon.gguf", architecture="falcon")
    refused(file, cache, monkeypatch, "'falcon' cannot be decoded exactly", asks=(source.locate, Model.load))
