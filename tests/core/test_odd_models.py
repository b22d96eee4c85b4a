"""Model directories that are not what they say: refused by name before the first unit, never decoded as something else.

What transformers would do is told in `hpd_core.checkpoint.check_complete`: random numbers in place of missing weights.
"""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AddedToken, AutoTokenizer
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from hpd_core import DecodeSettings, ModelSpec, recipe, source, supported
from hpd_core.checkpoint import ModelNotFoundError
from hpd_core.explained import explained
from hpd_core.extractor import HyperParallelDecoder
from hpd_core.model import Model
from hpd_core.model_spec import Prompting
from hpd_core.prompt import PromptEncoder, PromptError
from hpd_core.schema import Attribute, Document, Schema
from hpd_core.settings import SettingsError
from hpd_core.supported import UnsupportedModelError
from tests.core.tiny_folder import write_tiny_model

UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def folder(tiny, tmp_path):
    return shutil.copytree(tiny, tmp_path / "model")


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def rewrite(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def spec_of(folder, prompting=Prompting.PLAIN):
    return ModelSpec(str(folder), name="m", prompting=prompting)


def encoder_of(folder, prompting=Prompting.PLAIN):
    return PromptEncoder.from_spec(recipe.decoder_spec(spec_of(folder, prompting)))


def add_token(folder, token, *, special):
    """Behind the last one: its id is the vocab_size of config.json."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(AddedToken(token, special=special, normalized=not special), special_tokens=special)
    tokenizer.save_pretrained(folder)


class TestWeights:
    def test_one_that_is_missing_is_named_and_never_made_up(self, folder):
        rewrite(folder, lambda weights: weights.pop(UP))
        with pytest.raises(ModelNotFoundError, match=f"{folder}: 1 of the weights that .* not there: {UP}"):
            Model.load(spec_of(folder))

    def test_one_that_an_index_promises_and_its_file_lacks_is_named(self, folder):
        names = dict.fromkeys(load_file(folder / "model.safetensors"), "model-1.safetensors")
        rewrite(folder, lambda weights: weights.pop(UP))
        (folder / "model.safetensors").rename(folder / "model-1.safetensors")
        index = {"metadata": {"total_size": 1}, "weight_map": names}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(ModelNotFoundError, match=f"not there: {UP}"):
            Model.load(spec_of(folder))

    def test_a_head_that_is_neither_stored_nor_tied(self, folder):
        edit(folder / "config.json", tie_word_embeddings=False)
        with pytest.raises(ModelNotFoundError, match=r"not there: lm_head\.weight"):
            Model.load(spec_of(folder))

    def test_sizes_that_the_configuration_contradicts(self, folder):
        edit(folder / "config.json", intermediate_size=64)
        with pytest.raises(ModelNotFoundError, match=r"fit its configuration: .*down_proj\.weight is \[32, 48\], its"):
            Model.load(spec_of(folder))

    def test_numbers_that_are_none(self, folder):
        rewrite(folder, lambda weights: weights[UP].fill_(float("nan")))
        with pytest.raises(UnsupportedModelError, match="logits are not finite in float32: weights that are no num"):
            Model.load(spec_of(folder))

    def test_activations_that_float16_does_not_hold(self, folder):
        def enlarge(weights):
            for name in ("up_proj", "down_proj"):
                weights[f"model.layers.0.mlp.{name}.weight"].mul_(2000)

        rewrite(folder, enlarge)
        Model.load(ModelSpec(str(folder), dtype="bfloat16"))
        with pytest.raises(UnsupportedModelError, match=r"not finite in float16: .*set model\.dtype to bfloat16"):
            Model.load(ModelSpec(str(folder), dtype="float16"))

    @pytest.mark.parametrize("mapped", [{}, ["a"], {"a": "../model.safetensors"}, None])
    def test_an_index_that_names_no_files(self, folder, mapped):
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": mapped}))
        with pytest.raises(ModelNotFoundError, match=r"index\.json: its weight_map names no files of"):
            source.check_loadable(spec_of(folder))


class TestConfigurations:
    def test_a_rope_that_nobody_knows(self, folder):
        edit(folder / "config.json", rope_parameters={"rope_type": "spiral", "rope_theta": 10000.0})
        with pytest.raises(UnsupportedModelError, match=r"'spiral' RoPE scaling, .* rope_type is one of .*yarn"):
            source.check_loadable(spec_of(folder))

    def test_the_known_ropes_are_those_of_transformers(self):
        aliases = {"su", "mrope"}  # of Phi-3's and Qwen2-VL's configurations
        assert {"default", *ROPE_INIT_FUNCTIONS} | aliases == supported.ROPES

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"hidden_size": "32"}, "its configuration cannot be used: .*'hidden_size'.* expected int"),
            ({"num_hidden_layers": None}, "its configuration cannot be used: .*'num_hidden_layers'"),
            (
                {"num_attention_heads": 5},
                "its configuration cannot be used: .*not a multiple of the number",
            ),
            ({"model_type": None}, "model type `None` but Transformers does not recognize"),
        ],
    )
    def test_facts_that_make_no_model_are_named_by_key(self, folder, change, words):
        edit(folder / "config.json", **change)
        with pytest.raises((SettingsError, UnsupportedModelError), match=f"{folder}.*{words}"):
            encoder_of(folder)

    def test_what_is_refused_in_words_of_its_own_is_told_in_no_others(self, folder):
        for error in (
            ModelNotFoundError("gone"),
            SettingsError("wrong"),
            UnsupportedModelError("another"),
            MemoryError(),
        ):
            with pytest.raises(type(error)) as caught, explained(str(folder), "weights"):
                raise error
            assert caught.value is error

    def test_a_generation_config_that_cannot_be_read_is_not_passed_over(self, folder):
        (folder / "generation_config.json").write_text("{")
        with pytest.raises(ModelNotFoundError, match=r"generation_config\.json' is not a valid JSON"):
            encoder_of(folder)
        (folder / "generation_config.json").unlink()
        assert 256 in encoder_of(folder).stop_ids


class TestTokenizers:
    @pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
    def test_a_broken_file_is_named(self, folder, name):
        (folder / name).write_text("{")
        with pytest.raises(SettingsError, match=rf"{folder}: its tokenizer cannot be used \({name} holds no JSON\)"):
            encoder_of(folder)

    def test_none_at_all(self, folder):
        for path in folder.glob("token*"):
            path.unlink()
        with pytest.raises(SettingsError, match=f"{folder}: its tokenizer cannot be used"):
            encoder_of(folder)

    def test_that_of_a_model_with_more_tokens(self, folder):
        name = "model.embed_tokens.weight"
        edit(folder / "config.json", vocab_size=200)
        rewrite(folder, lambda weights: weights.update({name: weights[name][:200].clone()}))
        Model.load(spec_of(folder))  # which has nothing to say
        with pytest.raises(
            SettingsError, match=r"56 of its tokens, up to '.' with id 255, are beyond the vocab_size 200"
        ):
            encoder_of(folder)

    def test_special_tokens_beyond_the_vocabulary_are_in_no_text(self, folder):
        """As in Gemma 3's text models, whose tokenizer has one for images."""
        add_token(folder, "<image>", special=True)
        decoder = HyperParallelDecoder.from_pretrained(spec_of(folder), DecodeSettings(max_value_tokens=4))
        rows = decoder.extract(["red <image> shoe"], Schema("s", (Attribute("Color"),)))
        assert rows[0].status.is_ok
        assert max(decoder.encoder.encode(Document("red <image> shoe", Schema("s", (Attribute("Color"),)))).ids) < 257

    @pytest.mark.parametrize("token", ["<tag>", "shoe"])
    def test_other_added_tokens_beyond_the_vocabulary_are_in_texts(self, folder, token):
        add_token(folder, token, special=False)
        with pytest.raises(SettingsError, match=f"1 of its tokens, up to '{token}' with id 257, .* vocab_size 257"):
            encoder_of(folder)

    def test_a_special_token_beyond_the_vocabulary_that_the_template_writes(self, folder):
        add_token(folder, "<turn>", special=True)
        edit(folder / "tokenizer_config.json", chat_template="{% for m in messages %}<turn>{{ m.content }}{% endfor %}")
        with pytest.raises(SettingsError, match="up to '<turn>' with id 257"):
            encoder_of(folder, Prompting.CHAT)

    @pytest.mark.parametrize("template", ["{{ broken", "{{ raise_exception('no') }}", "{{ messages[9].role }}"])
    def test_a_chat_template_that_refuses_everything_is_refused_at_once(self, folder, template):
        edit(folder / "tokenizer_config.json", chat_template=template)
        with pytest.raises(PromptError, match="chat template refused the messages"):
            encoder_of(folder, Prompting.CHAT)
        encoder_of(folder)  # plain


def test_what_is_stored_beside_the_models_own_weights_is_left_out(folder):
    """Other parts of a checkpoint, as heads for speculation are."""
    expected = load_file(folder / "model.safetensors")[UP]
    rewrite(folder, lambda weights: weights.update({"model.mtp.weight": torch.zeros(3, 3)}))
    assert torch.equal(Model.load(spec_of(folder)).hf.model.layers[1].mlp.up_proj.weight, expected)
