"""GGUF files: dequantised once to the weights that they hold, the room for it said before; broken ones named."""

from __future__ import annotations

import json
import logging
from collections import namedtuple

import pytest
import torch

from hpd_core import ModelSpec, gguf, gguf_header, source
from hpd_core.checkpoint import ModelNotFoundError
from hpd_core.gguf_header import read_header
from hpd_core.model import Model
from hpd_core.settings import SettingsError
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
    with pytest.raises(SettingsError, match=f"transformers cannot read {file}: .*lhama"):
        source.locate(ModelSpec(str(file)))
