"""Adapters: saved and merged weights are the trained ones; decoding otherwise than trained is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import fsspec
import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

from hpd_core import adapter, object_store, recipe, source
from hpd_core.checkpoint import ADAPTER as WEIGHTS
from hpd_core.checkpoint import ADAPTER_CONFIG as CONFIG
from hpd_core.checkpoint import ModelNotFoundError
from hpd_core.extractor import HyperParallelDecoder, ModelNotice
from hpd_core.model import Model
from hpd_core.model_spec import ModelSpec, Prompting
from hpd_core.prompt import PromptEncoder
from hpd_core.recipe import COMPACT, Recipe
from hpd_core.schema import Attribute, Document, Schema
from hpd_core.settings import DecodeSettings, SettingsError
from hpd_core.spec import DecoderSpec
from hpd_core.supported import UnsupportedModelError
from hpd_core.template import PromptTemplate
from tests.core.tiny_folder import write_tiny_model

SETTINGS = DecodeSettings(max_value_tokens=9)
IDS = torch.tensor([[5, 9, 200, 31, 77]])
SCHEMA = Schema("s", (Attribute("Brand"), Attribute("Color")))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("base"))


def logits(hf):
    model = Model(hf)
    with model.native_attention("sdpa") as native, torch.inference_mode():
        return native(IDS).logits


@pytest.fixture(scope="module")
def tuned(base, tmp_path_factory):
    """An adapter with random weights and its recipe; the logits of the model that it was saved from."""
    folder = tmp_path_factory.mktemp("adapter")
    hf = Model.load(ModelSpec(str(base))).hf
    wrapped = adapter.add_lora(hf, 4)
    with torch.no_grad():
        for name, weight in hf.named_parameters():
            if "lora_" in name:
                weight.copy_((torch.randn_like(weight) * 0.1).half())
    size = adapter.save_lora(wrapped, folder, str(base))
    Recipe(str(base), SETTINGS, COMPACT, Prompting.PLAIN, rank=4).write(folder)
    return folder, logits(hf), size


def spec_of(base, folder):
    return ModelSpec(str(base), adapter=str(folder))


def test_a_merged_adapter_computes_what_was_trained(base, tuned):
    folder, expected, _ = tuned
    got = logits(Model.load(spec_of(base, folder)).hf)
    assert torch.allclose(got, expected, atol=1e-4)
    assert not torch.allclose(got, logits(Model.load(ModelSpec(str(base))).hf), atol=1e-2)


def test_only_the_adapter_is_trained_and_saved(base, tuned):
    hf = Model.load(ModelSpec(str(base))).hf
    adapter.add_lora(hf, 4)
    trained = [p for p in hf.parameters() if p.requires_grad]
    assert all("lora_" in n for n, p in hf.named_parameters() if p.requires_grad)
    count = sum(p.numel() for p in trained)
    assert 2 * count < tuned[2] < 2 * count + 8000  # half precision and a header


def test_no_path_of_this_machine_travels_with_it(base, tuned):
    text = (tuned[0] / "adapter_config.json").read_text()
    assert json.loads(text)["base_model_name_or_path"] == str(base)  # the source as it was named, nothing else
    folder = tuned[0] / "named"
    wrapped = adapter.add_lora(Model.load(ModelSpec(str(base))).hf, 2)
    adapter.save_lora(wrapped, folder, "package:x/y.gguf")
    assert str(base) not in (folder / "adapter_config.json").read_text()


def test_an_adapter_of_another_model_is_refused(base, tuned, tmp_path):
    hf = Model.load(ModelSpec(str(base))).hf
    hf.model.layers = hf.model.layers[:1]
    with pytest.raises(ValueError, match="for other layers"):
        adapter.merged(hf, tuned[0])


def test_decoding_takes_settings_and_template_from_the_recipe(base, tuned):
    decoder = HyperParallelDecoder.from_pretrained(spec_of(base, tuned[0]))
    encoder = decoder.encoder
    assert encoder.template == COMPACT and encoder.prompting is Prompting.PLAIN
    assert encoder.settings.max_value_tokens == 9
    rows = decoder.extract(["Acme shoe, red"], SCHEMA)
    assert rows[0].status.is_ok and len(rows[0].values) == 2


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"settings": DecodeSettings("gaps", max_value_tokens=9)}, "layout is gaps, trained with branches"),
        ({"settings": DecodeSettings("gaps", "causal", max_value_tokens=9)}, "visibility is causal"),
        ({"settings": DecodeSettings(max_value_tokens=8)}, "max_value_tokens is 8, trained with 9"),
        ({"settings": DecodeSettings(max_value_tokens=9, document_block=2)}, "document_block is 2, trained with 1"),
        ({"template": PromptTemplate()}, "prompt template"),
        ({"template": replace(COMPACT, absent="n/a")}, "prompt template"),
    ],
)
def test_decoding_otherwise_than_trained_is_refused(base, tuned, wrong, message):
    good = recipe.decoder_spec(spec_of(base, tuned[0]))
    PromptEncoder.from_spec(good)
    with pytest.raises(SettingsError, match=message):
        PromptEncoder.from_spec(replace(good, **wrong))
    with pytest.raises(SettingsError, match="prompt template"):
        PromptEncoder.from_spec(replace(good, model=replace(good.model, prompting="chat")))


def test_settings_that_change_no_answer_are_free(base, tuned):
    good = recipe.decoder_spec(spec_of(base, tuned[0]))
    recipe.check(replace(good, settings=replace(good.settings, tokens_per_step=8, max_document_tokens=64)))


def test_the_control_may_be_decoded_in_any_layout(base, tuned, tmp_path):
    Recipe(str(base), SETTINGS, COMPACT, Prompting.PLAIN, decoder="ar", rank=4).write(tmp_path)
    spec = recipe.decoder_spec(spec_of(base, tmp_path))
    recipe.check(replace(spec, settings=DecodeSettings("gaps", "causal")))
    with pytest.raises(SettingsError, match="prompt template"):
        recipe.check(replace(spec, template=PromptTemplate()))


def test_another_base_is_refused(base, tuned, tmp_path):
    other = write_tiny_model(tmp_path)
    with pytest.raises(SettingsError, match="base model"):
        PromptEncoder.from_spec(recipe.decoder_spec(spec_of(other, tuned[0])))


def test_the_fingerprint_follows_the_content_and_not_the_place(base, tuned, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors", "hpd.json"):
        (copy / name).write_bytes((tuned[0] / name).read_bytes())
    facts, moved = (DecoderSpec(spec_of(base, f)).as_dict() for f in (tuned[0], copy))
    assert facts == moved and str(tuned[0]) not in json.dumps(facts)
    weights = copy / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    assert DecoderSpec(spec_of(base, copy)).as_dict() != facts


@pytest.mark.parametrize(
    "edit, message",
    [
        (None, "no hpd.json"),
        ("{", "JSONDecodeError"),
        ({"layout": "rings"}, "'rings' is not a valid Layout"),
        ({"format": 2}, "format 2"),
        ({"template": {"absent": "none"}}, "its template was edited"),
    ],
)
def test_a_recipe_that_cannot_be_trusted(base, tuned, tmp_path, edit, message):
    if edit is not None:
        facts = json.loads((tuned[0] / "hpd.json").read_text())
        text = edit if isinstance(edit, str) else json.dumps(facts | edit)
        (tmp_path / "hpd.json").write_text(text)
    with pytest.raises(SettingsError, match=message):
        recipe.recipe_of(spec_of(base, tmp_path))


def test_where_adapters_are_looked_for():
    assert recipe.folder_of("resource:tests/core").name == "core"
    with pytest.raises(SettingsError, match="no Python package 'nowhere'"):
        recipe.folder_of("resource:nowhere/x")
    with pytest.raises(SettingsError, match="no folder"):
        recipe.folder_of("nowhere/at/all")


def test_all_weights_are_saved_as_a_model_with_its_recipe(base, tmp_path):
    hf = Model.load(ModelSpec(str(base))).hf
    hf.config.quantization_config = {"quant_method": "gguf"}  # as a model that came out of a GGUF file has it
    with torch.no_grad():
        hf.model.norm.weight.mul_(1.5)
    expected = logits(hf)
    tokenizer = PromptEncoder.from_spec(DecoderSpec(ModelSpec(str(base), prompting=Prompting.PLAIN))).tokenizer
    adapter.save_whole(hf, tokenizer, tmp_path)
    Recipe(str(base), SETTINGS, COMPACT, Prompting.PLAIN).write(tmp_path)
    assert torch.equal(logits(Model.load(ModelSpec(str(tmp_path))).hf), expected)
    with pytest.raises(SettingsError, match="trained with"):
        PromptEncoder.from_spec(DecoderSpec(ModelSpec(str(tmp_path), prompting=Prompting.PLAIN)))
    encoder = PromptEncoder.from_spec(recipe.decoder_spec(ModelSpec(str(tmp_path))))
    assert encoder.encode(Document("abc", SCHEMA)).ids


@pytest.fixture
def copied(tuned, tmp_path):
    return shutil.copytree(tuned[0], tmp_path / "copied")


class TestOddAdapters:
    @pytest.fixture(params=["directory", "store"])
    def anywhere(self, request, base, tmp_path, monkeypatch):
        """The base model's source: what is wrong with an adapter does not depend on where its base lies."""
        if request.param == "directory":
            yield base
            return
        monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "cache"))
        object_store._listing.cache_clear()
        store = fsspec.filesystem("memory")
        store.put(f"{base}/", "/adapters/base/", recursive=True)
        yield "memory://adapters/base"
        store.rm("/adapters", recursive=True)

    @pytest.mark.parametrize(
        ("spoil", "kind", "words"),
        [
            (
                lambda f: (f / WEIGHTS).unlink(),
                ModelNotFoundError,
                "adapter .*copied has no adapter_model.safe.*s$",
            ),
            (
                lambda f: (f / WEIGHTS).rename(f / "adapter_model.bin"),
                ModelNotFoundError,
                r"only pickled ones \(adap",
            ),
            (lambda f: (f / WEIGHTS).write_bytes(b"1" * 90), ModelNotFoundError, "copied/adapter_model.* cut short"),
            (lambda f: (f / WEIGHTS).write_bytes((f / WEIGHTS).read_bytes()[:-9]), ModelNotFoundError, "is cut short"),
            (lambda f: (f / CONFIG).write_text("{"), ModelNotFoundError, r"copied/adapter_config\.json: JSONDecodeErr"),
            (lambda f: (f / CONFIG).unlink(), ModelNotFoundError, r"copied/adapter_config\.json: FileNotFoundError"),
            (lambda f: (f / CONFIG).write_text('{"peft_type": "IA3"}'), UnsupportedModelError, "of peft's type 'IA3'"),
        ],
    )
    def test_what_is_wrong_is_named_before_any_weight_is_read(self, anywhere, copied, monkeypatch, spoil, kind, words):
        spoil(copied)
        monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", None)
        for ask in (source.check_loadable, source.locate, Model.load):
            with pytest.raises(kind, match=words):
                ask(spec_of(anywhere, copied))

    def test_a_whole_one_is_merged_wherever_its_base_lies(self, anywhere, tuned):
        source.check_loadable(spec_of(anywhere, tuned[0]))
        torch.testing.assert_close(logits(Model.load(spec_of(anywhere, tuned[0])).hf), tuned[1], rtol=1e-5, atol=1e-5)

    def test_one_for_layers_of_another_size(self, tuned, tmp_path):
        wide = write_tiny_model(tmp_path, hidden_size=64)
        with pytest.raises(SettingsError, match=r"adapter .* does not fit this 'llama' model: .*size mismatch"):
            Model.load(spec_of(wide, tuned[0]))

    def test_one_for_a_model_with_more_layers(self, tuned, tmp_path):
        flat = write_tiny_model(tmp_path, layers=1)
        with pytest.raises(SettingsError, match="weights are for other layers than those of 'llama'"):
            Model.load(spec_of(flat, tuned[0]))

    @pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.embed_tokens.base_layer.weight"])
    def test_one_with_whole_weights_beside_its_own(self, base, copied, monkeypatch, name):
        """As peft stores them where a vocabulary was enlarged, or embeddings are a target."""
        whole = f"base_model.model.{name}"
        save_file(load_file(copied / WEIGHTS) | {whole: torch.zeros(260, 32)}, copied / WEIGHTS)
        monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", None)
        for ask in (source.check_loadable, source.locate, Model.load):
            with pytest.raises(
                UnsupportedModelError, match=rf"holds whole weights beside LoRA's \({whole}\), .* Merge it"
            ):
                ask(spec_of(base, copied))

    def test_one_with_a_module_that_it_says_it_brings(self, base, tmp_path):
        hf = Model.load(ModelSpec(str(base))).hf
        config = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["norm"], task_type="CAUSAL_LM")
        wrapped = peft.get_peft_model(hf, config)
        with torch.no_grad():
            wrapped.base_model.model.model.norm.modules_to_save["default"].weight.mul_(1.5)
        wrapped.save_pretrained(tmp_path)
        got = Model.load(replace(spec_of(base, tmp_path), prompting=Prompting.PLAIN)).hf.model.norm.weight
        assert torch.equal(got, 1.5 * Model.load(ModelSpec(str(base))).hf.model.norm.weight)

    @pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
    @pytest.mark.parametrize("target", ["embed_tokens", "lm_head"])
    def test_one_for_one_of_two_layers_that_share_a_weight(self, base, tmp_path, target):
        hf = Model.load(ModelSpec(str(base))).hf
        assert hf.lm_head.weight is hf.model.embed_tokens.weight
        config = peft.LoraConfig(r=2, target_modules=["q_proj", target], task_type="CAUSAL_LM")
        peft.get_peft_model(hf, config).save_pretrained(tmp_path, save_embedding_layers=False)
        with pytest.raises(SettingsError, match="the embeddings or the head of 'llama', which share one weight"):
            Model.load(spec_of(base, tmp_path))


class TestAdaptersOfOthers:
    """peft's own: without hpd.json nothing says how they want to be asked."""

    @pytest.fixture
    def foreign(self, copied):
        (copied / "hpd.json").unlink()
        return copied

    def test_is_merged_asked_as_the_job_says_and_whoever_loads_it_is_told(self, base, tuned, foreign):
        spec = replace(spec_of(base, foreign), prompting=Prompting.PLAIN)
        assert recipe.recipe_of(spec) is None
        assert f"adapter {foreign} has no hpd.json" in recipe.notice_of(spec)
        assert f"trained on {base}" in recipe.notice_of(spec)
        with pytest.warns(ModelNotice, match=r"has no hpd\.json"):
            decoder = HyperParallelDecoder.from_pretrained(spec, replace(SETTINGS, max_value_tokens=5))
        assert torch.equal(logits(decoder.model.hf), logits(Model.load(spec_of(base, tuned[0])).hf))
        assert decoder.encoder.template == PromptTemplate() and decoder.encoder.settings.max_value_tokens == 5

    def test_its_content_belongs_to_what_decides_answers(self, base, foreign):
        facts = DecoderSpec(spec_of(base, foreign)).as_dict()
        assert facts != DecoderSpec(ModelSpec(str(base))).as_dict()
        (foreign / "adapter_model.safetensors").write_bytes(b"other")
        assert DecoderSpec(spec_of(base, foreign)).as_dict() != facts

    def test_its_folder_alone_stands_for_its_base(self, base, foreign):
        assert source.model_spec(str(foreign)) == ModelSpec(str(base), name=str(foreign), adapter=str(foreign))
        facts = json.loads((foreign / CONFIG).read_text())
        (foreign / CONFIG).write_text(json.dumps(facts | {"base_model_name_or_path": None}))
        with pytest.raises(SettingsError, match=r"adapter_config\.json names no base_model_name_or_path"):
            source.model_spec(str(foreign))
