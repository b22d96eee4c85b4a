"""What is said of a model that cannot be loaded, before any weight is read; model directories in an object store."""

from __future__ import annotations

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import aiohttp
import botocore.exceptions as boto
import fsspec
import httpx2
import pytest
import torch
from safetensors.torch import save_file

from hpd_core import DecoderSpec, DecodeSettings, ModelSpec, checkpoint, object_store, recipe, source
from hpd_core.checkpoint import ModelNotFoundError, ModelUnavailableError
from hpd_core.extractor import HyperParallelDecoder
from hpd_core.model import Model
from hpd_core.model_spec import Prompting
from hpd_core.recipe import Recipe
from hpd_core.schema import Attribute, Schema
from hpd_core.settings import SettingsError
from hpd_core.supported import UnsupportedModelError
from tests.core.tiny_folder import write_tiny_model

MIB = 2**20


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def folder(tiny, tmp_path):
    return shutil.copytree(tiny, tmp_path / "model")


def answered(code):
    """As s3fs raises what a store answered."""
    error = OSError("words of the store")
    error.__cause__ = boto.ClientError({"Error": {"Code": code}}, "ListObjects")
    return error


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refused(folder, kind, reason, **options):
    """By the command's first look and by whoever loads it, in the same words."""
    for ask in (source.check_loadable, source.locate):
        with pytest.raises(kind, match=reason):
            ask(ModelSpec(str(folder), name="m", **options))


class TestDirectories:
    def test_pickled_weights_are_refused_with_the_way_to_convert_them(self, folder):
        (folder / "model.safetensors").unlink()
        refused(folder, ModelNotFoundError, "'m': directory .* has no weights: neither model")
        (folder / "pytorch_model.bin").touch()
        refused(folder, ModelNotFoundError, r"pickled weights \(pytorch_model.bin\), .* use_safetensors=False")

    def test_the_way_to_convert_works(self, folder, tmp_path, monkeypatch):
        from safetensors.torch import load_file

        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
        code = re.search('python -c "(.*)"', checkpoint._CONVERT)[1]
        exec(code.replace("DIRECTORY", str(folder)).replace("NEW", str(tmp_path / "new")), {})
        Model.load(ModelSpec(str(tmp_path / "new")))

    def test_missing_shards_are_named(self, folder):
        files = {f"layer{n}": f"model-0000{n}-of-00005.safetensors" for n in range(1, 6)}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
        (folder / files["layer2"]).touch()
        refused(folder, ModelNotFoundError, "lacks 4 of its 5 files of weights: model-00001-of.*, model-00004-of.*, …")

    def test_a_configuration_that_is_missing_or_broken(self, folder):
        (folder / "config.json").write_text("{")
        refused(folder, ModelNotFoundError, r"config\.json: JSONDecodeError")
        (folder / "config.json").unlink()
        refused(folder, ModelNotFoundError, r"has no config\.json")

    def test_an_architecture_that_cannot_work(self, folder):
        edit(folder / "config.json", model_type="qwen3_next", layer_types=["linear_attention", "full_attention"])
        refused(folder, UnsupportedModelError, "'qwen3_next' is a hybrid model: its linear_attention layers")

    def test_an_architecture_that_transformers_does_not_know(self, folder):
        edit(folder / "config.json", model_type="llama_of_tomorrow")
        with pytest.raises(UnsupportedModelError, match=r"llama_of_tomorrow.* does not recognize this architecture"):
            source.load_config(source.locate(ModelSpec(str(folder))))

    def test_code_that_comes_with_a_model_runs_only_if_asked(self, folder):
        edit(folder / "config.json", model_type="own", auto_map={"AutoConfig": "own.OwnConfig"})
        (folder / "own.py").write_text(
            "from transformers import LlamaConfig\nclass OwnConfig(LlamaConfig):\n    model_type = 'own'\n"
        )
        with pytest.raises(SettingsError, match=r"brings code of its own, .* trust_remote_code: true"):
            source.load_config(source.locate(ModelSpec(str(folder))))
        trusted = source.load_config(source.locate(ModelSpec(str(folder), trust_remote_code=True)))
        assert trusted.model_type == "own"


class TestMemory:
    def test_parameters_are_counted_by_headers(self, tiny):
        stored = sum(p.numel() for p in Model.load(ModelSpec(str(tiny))).hf.parameters())
        assert checkpoint.parameters(tiny) == stored

    def test_shards_are_counted_by_their_index_and_never_beside_the_whole_file(self, folder):
        counted = checkpoint.parameters(folder)
        Model.load(ModelSpec(str(folder))).hf.save_pretrained(folder, max_shard_size="20KB")
        shards = sorted(folder.glob("model-*.safetensors"))
        whole = folder / "model.safetensors"
        assert len(shards) > 2 and checkpoint.parameters(folder) == counted
        whole.unlink()
        shutil.copy(shards[0], folder / "model-old.safetensors")  # which no index names
        assert checkpoint.parameters(folder) == counted
        index = (folder / "model.safetensors.index.json").read_text()
        (folder / "model.safetensors.index.json").write_text(index.replace(shards[1].name, "other.safetensors"))
        shards[1].rename(folder / "other.safetensors")
        assert checkpoint.parameters(folder) == counted
        shutil.copy(shards[0], whole)  # what transformers takes
        assert checkpoint.parameters(folder) < counted

    def test_weights_that_are_not_whole_are_named(self, folder):
        file, spec = folder / "model.safetensors", ModelSpec(str(folder))
        content = file.read_bytes()
        for wrong, reason in [
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "is a Git LFS pointer"),
            (b"", "no safetensors file, or cut short"),
            (content[:5], "no safetensors file, or cut short"),
            (content[:100], "no safetensors file, or cut short"),
            (bytes([3]) + bytes(7) + b"[1]" + content, "no safetensors file, or cut short"),
            (bytes([8]) + bytes(7) + b'{"a": 1}' + content, "no safetensors file, or cut short"),
            (content[:-1], "is cut short: .* bytes are there"),
        ]:
            file.write_bytes(wrong)
            for ask in (Model.load, lambda spec: source.check_loadable(spec, free=2**40)):
                with pytest.raises(ModelNotFoundError, match=f"{file}.*{reason}"):
                    ask(spec)

    def test_too_little_is_said_with_numbers(self, tiny):
        spec, needed = ModelSpec(str(tiny), name="m"), checkpoint.parameters(tiny) * 4
        source.check_loadable(spec, copies=2, free=2 * needed)
        with pytest.raises(SettingsError, match=r"'m' does not fit: its 0 million .* for each of 2 actors, .* in all"):
            source.check_loadable(spec, copies=2, free=2 * needed - 1)
        source.check_loadable(ModelSpec(str(tiny), dtype="bfloat16"), free=needed // 2)

    def test_seen_before_the_weights_are_read(self, tiny, monkeypatch):
        monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 10_000})())
        monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", None)
        with pytest.raises(SettingsError, match=r"take 0.0 GiB in float32 and cpu has 0.0 GiB free; .* half"):
            Model.load(ModelSpec(str(tiny)))

    def test_weights_that_come_through_to_a_gpu_take_what_is_converted_or_changed(self, tiny, tmp_path):
        spec, needed = ModelSpec(str(tiny), name="m"), checkpoint.parameters(tiny) * 2
        source.check_loadable(spec, copies=2, free=2 * needed, to_gpu=True)
        lack = (
            r"million parameters take .* in bfloat16 for each of 2 actors, .* this machine, through whose memory they"
        )
        with pytest.raises(SettingsError, match=lack):
            source.check_loadable(spec, copies=2, free=2 * needed - 1, to_gpu=True)
        stored = replace(spec, dtype="float32")
        source.check_loadable(stored, free=0, to_gpu=True)  # stays in its file
        (tmp_path / checkpoint.ADAPTER_CONFIG).write_text('{"peft_type": "LORA"}')
        save_file({"a.lora_A.weight": torch.zeros(1)}, tmp_path / checkpoint.ADAPTER)
        with pytest.raises(
            SettingsError, match=r"in float32 and this machine, through whose memory they come to the GPU,"
        ):
            source.check_loadable(replace(stored, adapter=str(tmp_path)), free=0, to_gpu=True)

    def test_seen_by_whoever_loads_onto_a_gpu_before_the_weights_are_read(self, tiny, monkeypatch):
        monkeypatch.setattr("torch.cuda.mem_get_info", lambda _: (2**40, 2**40))
        monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 10_000})())
        monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", None)
        with pytest.raises(SettingsError, match=r"in bfloat16 and this machine, through whose memory .* 0\.0 GiB free"):
            Model.load(ModelSpec(str(tiny)), device="cuda:0")
        with pytest.raises(SettingsError, match="weights cannot be used: TypeError"):
            Model.load(ModelSpec(str(tiny), dtype="float32"), device="cuda:0")


class TestHub:
    """Without a network: what is handed to transformers, and what is said when it fails."""

    def test_revision_and_trust_are_handed_on(self):
        files = source.locate(ModelSpec("org/name", revision="abc"))
        assert (files.path, dict(files.arguments)) == ("org/name", {"revision": "abc", "trust_remote_code": False})

    @pytest.mark.parametrize("load", [source.load_config, source.load_tokenizer])
    def test_a_repository_that_cannot_be_reached_is_named(self, monkeypatch, tmp_path, load):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        monkeypatch.setattr("transformers.utils.hub.is_offline_mode", lambda: True)
        with pytest.raises(ModelNotFoundError, match=r"model no-such-org/no-such-model: .* token in HF_TOKEN"):
            load(source.locate(ModelSpec("no-such-org/no-such-model")))

    @pytest.mark.parametrize("load", [source.load_config, source.load_tokenizer, None])
    @pytest.mark.parametrize(("status", "kind"), [(503, ModelUnavailableError), (403, ModelNotFoundError)])
    def test_a_hub_that_does_not_answer_is_told_from_one_that_refuses(self, monkeypatch, tmp_path, load, status, kind):
        def refuse(*_, **__):  # as transformers does, see its cached_files
            answer = type("Answer", (), {"status_code": status})()
            cause = OSError("no answer")
            cause.response = answer
            raise OSError("We couldn't connect to 'https://huggingface.co'\nCheck your connection") from cause

        for name in ("AutoConfig", "AutoTokenizer", "AutoModelForCausalLM"):
            monkeypatch.setattr(f"transformers.{name}.from_pretrained", refuse)
        if load is None:  # the weights, when the configuration is there already
            config = type("Config", (), {"to_dict": lambda self: {}})()
            monkeypatch.setattr(source, "load_config", lambda files: config)
            monkeypatch.setattr("hpd_core.model.refuse", lambda config: None)
            monkeypatch.setattr("huggingface_hub.list_repo_files", lambda *_, **__: ["config.json", checkpoint.WEIGHTS])
        with pytest.raises(kind, match=r"^model org/name: We couldn't connect to 'https://huggingface.co'(;|$)"):
            load(source.locate(ModelSpec("org/name"))) if load else Model.load(ModelSpec("org/name"))

    @pytest.fixture
    def config(self, tiny, monkeypatch):
        """The hub answers with a configuration; weights are not to be asked for."""
        found = source.load_config(source.locate(ModelSpec(str(tiny))))
        monkeypatch.setattr(source, "load_config", lambda files: found)
        monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", None)

    @pytest.mark.parametrize("revision", [None, "abc"])
    def test_a_repository_of_pickles_is_refused_before_transformers_has_it_converted(
        self, config, monkeypatch, revision
    ):
        asked = []

        def files(repository, revision):
            asked.append((repository, revision))
            return ["config.json", "pytorch_model.bin", "onnx/model.safetensors"]

        monkeypatch.setattr("huggingface_hub.list_repo_files", files)
        found = r"org/name@\w+ of the hub holds pickled weights \(pytorch_model\.bin\), .* use_safetensors=False"
        with pytest.raises(ModelNotFoundError, match=found):
            Model.load(ModelSpec("org/name", revision=revision))
        assert asked == [("org/name", revision or "main")]

    def test_weights_that_the_cache_has_are_not_asked_for(self, monkeypatch, tmp_path):
        monkeypatch.setattr("huggingface_hub.list_repo_files", None)
        monkeypatch.setattr(
            "huggingface_hub.try_to_load_from_cache",
            lambda repository, name, revision: f"{tmp_path}/{name}" if name == checkpoint.INDEX else None,
        )
        source.check_hub_weights("m", source.locate(ModelSpec("org/name")))

    def test_a_hub_that_does_not_tell_its_files_may_later(self, config, monkeypatch):
        def silent(*_, **__):
            raise httpx2.ConnectError("no route")

        monkeypatch.setattr("huggingface_hub.list_repo_files", silent)
        with pytest.raises(ModelUnavailableError, match="model org/name: ConnectError: no route"):
            Model.load(ModelSpec("org/name"))


class TestObjectStores:
    @pytest.fixture
    def cache(self, tmp_path, monkeypatch):
        monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "cache"))
        object_store._listing.cache_clear()
        return tmp_path / "cache" / "hpd-models"

    @pytest.fixture
    def uri(self, tiny):
        store = fsspec.filesystem("memory")
        store.put(f"{tiny}/", "/bucket/model/", recursive=True)
        store.pipe("/bucket/model/pytorch_model.bin", b"a pickle beside the safetensors")
        yield "memory://bucket/model"
        store.rm("/bucket", recursive=True)

    def test_the_whole_chain_is_that_of_a_local_directory(self, tiny, uri, cache):
        schema, text = Schema("s", (Attribute("Brand"), Attribute("Color"))), ["red shoe", "blue hat by Acme"]
        specs = [ModelSpec(where, prompting=Prompting.PLAIN) for where in (str(tiny), uri)]
        there, fetched = (HyperParallelDecoder.from_pretrained(s, DecodeSettings(max_value_tokens=6)) for s in specs)
        assert [r.as_dict() for r in fetched.extract(text, schema)] == [
            r.as_dict() for r in there.extract(text, schema)
        ]

    def test_fetched_once_whole_and_without_pickles(self, uri, cache, monkeypatch):
        calls = []
        fetch = object_store._fetch
        monkeypatch.setattr(object_store, "_fetch", lambda *rest: (calls.append(rest), fetch(*rest)))
        with ThreadPoolExecutor(4) as pool:
            folders = set(pool.map(lambda _: object_store.as_directory(uri), range(4)))
        assert len(calls) == len(folders) == 1
        (whole,) = folders
        assert not (whole / "pytorch_model.bin").exists() and (whole / "model.safetensors").is_file()
        assert object_store.as_directory(uri, weights=False) == whole  # what is there already is enough

    def test_tokenizer_and_configuration_need_no_weights(self, uri, cache):
        files = source.locate(ModelSpec(uri), weights=False)
        source.load_tokenizer(files)
        assert source.load_config(files).model_type == "llama"
        assert not list(cache.rglob("*.safetensors"))

    def test_a_fetch_that_breaks_leaves_nothing(self, uri, cache, monkeypatch):
        store = type(fsspec.filesystem("memory"))
        get = store.get_file

        def broken(self, path, target, **options):
            if path.endswith("safetensors"):
                raise ConnectionResetError("reset")
            return get(self, path, target, **options)

        monkeypatch.setattr(store, "get_file", broken)
        with pytest.raises(ModelUnavailableError, match=f"model {uri}: ConnectionResetError: reset"):
            object_store.as_directory(uri)
        assert not [p for p in cache.iterdir() if p.is_dir()]
        monkeypatch.setattr(store, "get_file", lambda self, path, target, **options: open(target, "wb").close())
        with pytest.raises(ModelUnavailableError, match=r"0 of .* bytes came"):
            object_store.as_directory(uri)

    @pytest.mark.parametrize(
        ("error", "passes"),
        [
            (boto.EndpointConnectionError(endpoint_url="http://x"), True),
            (aiohttp.ClientConnectionError("gone"), True),
            (TimeoutError("slow"), True),
            (answered("SlowDown"), True),
            (answered("AccessDenied"), False),
            (boto.NoCredentialsError(), False),
            (boto.SSLError(endpoint_url="http://x", error="certificate"), False),
        ],
        ids=lambda x: type(x).__name__,
    )
    def test_a_store_that_does_not_answer_is_told_from_one_that_refuses(self, uri, cache, monkeypatch, error, passes):
        def fail(*_, **__):
            raise error

        monkeypatch.setattr(type(fsspec.filesystem("memory")), "ls", fail)
        for ask in (source.check_loadable, source.locate, source.identity, recipe.notice_of):
            with pytest.raises(SettingsError, match=f"model {uri}: {type(error).__name__}: ") as caught:
                ask(ModelSpec(uri))
            assert (type(caught.value) is ModelUnavailableError) == passes
        monkeypatch.undo()

    def test_a_store_is_asked_once_and_a_recipe_read_alone(self, uri, cache, monkeypatch):
        asked, store = [], type(fsspec.filesystem("memory"))

        def noted(own):
            return lambda self, path, *rest, **options: asked.append(path) or own(self, path, *rest, **options)

        for name in ("ls", "get_file"):
            monkeypatch.setattr(store, name, noted(getattr(store, name)))
        assert recipe.recipe_of(ModelSpec(uri)) is None and not list(cache.glob("*-beside"))
        assert asked == ["/bucket/model"]
        object_store._listing.cache_clear()
        fsspec.filesystem("memory").pipe("/bucket/model/" + recipe.FILE, b"{}")
        asked.clear()
        for _ in range(3):
            with pytest.raises(SettingsError, match=recipe.FILE):
                recipe.recipe_of(ModelSpec(uri))
            source.check_loadable(ModelSpec(uri))
        assert asked == ["/bucket/model", "/bucket/model/" + recipe.FILE]

    def test_shards_that_are_missing_in_the_store_are_named(self, uri, cache):
        index = json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors"}})
        fsspec.filesystem("memory").pipe("/bucket/model/model.safetensors.index.json", index.encode())
        source.locate(ModelSpec(uri), weights=False)
        with pytest.raises(ModelNotFoundError, match="lacks 1 of its 1 files of weights: model-00001-of-00002"):
            source.locate(ModelSpec(uri))

    def test_what_changed_in_the_store_is_fetched_anew(self, uri, cache):
        first, identity = object_store.as_directory(uri), source.identity(ModelSpec(uri))
        store = fsspec.filesystem("memory")
        store.pipe("/bucket/model/config.json", store.cat("/bucket/model/config.json") + b"\n")
        object_store._listing.cache_clear()  # another process
        assert object_store.as_directory(uri) != first
        assert source.identity(ModelSpec(uri)) != identity

    def test_what_is_missing_is_said_in_the_words_of_a_directory(self, uri, cache):
        with pytest.raises(ModelNotFoundError, match="model memory://bucket/other: there is no such directory"):
            source.check_loadable(ModelSpec("memory://bucket/other"))
        source.check_loadable(ModelSpec(uri))
        object_store._listing.cache_clear()
        fsspec.filesystem("memory").rm("/bucket/model/model.safetensors")
        with pytest.raises(ModelNotFoundError, match="memory://bucket/model holds pickled weights"):
            source.check_loadable(ModelSpec(uri))
        with pytest.raises(SettingsError, match="model nosuch://bucket/model: ValueError: Protocol not known: nosuch"):
            source.check_loadable(ModelSpec("nosuch://bucket/model"))

    def test_a_fine_tuned_model_brings_its_recipe(self, uri, cache, tmp_path):
        (tmp_path / "r").mkdir()
        Recipe("base", DecodeSettings(max_value_tokens=7), prompting=Prompting.PLAIN).write(tmp_path / "r")
        fsspec.filesystem("memory").put(str(tmp_path / "r" / recipe.FILE), "/bucket/model/" + recipe.FILE)
        spec = recipe.decoder_spec(ModelSpec(uri))
        assert (spec.settings.max_value_tokens, spec.model.prompting) == (7, Prompting.PLAIN)
        with pytest.raises(SettingsError, match="max_value_tokens is 24, trained with 7"):
            recipe.check(DecoderSpec(spec.model, DecodeSettings(), spec.template))
