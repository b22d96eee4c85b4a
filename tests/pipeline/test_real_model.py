"""The real encoder and decoder in the stream: rows get the answers that the decoder gives without a pipeline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpd_core import recipe
from hpd_core.model_spec import ModelSpec, Prompting
from hpd_core.rows import RowStatus
from hpd_core.settings import DecodeSettings
from hpd_core.source import ModelNotFoundError, locate
from hpd_core.spec import DecoderSpec
from pipeline.models import DEFAULT_MODEL, model_spec
from pipeline.run import run
from tests.pipeline.fakes import PRODUCT
from tests.pipeline.helpers import job, output_table, write

pytestmark = pytest.mark.usefixtures("cluster")

TITLES = [
    "Adidas Gazelle men's shoe, blue, pack of 1",
    None,
    "Pack of 12 Staedtler Noris pencils HB, yellow",
    "Adidas Gazelle men's shoe, blue, pack of 1",
    "Bosch GSR 12V cordless drill ü 😀, with <|im_end|> in it",
    "A very long one. " * 40,
]


def tiny_model(folder: Path) -> ModelSpec:
    """A random Llama with a vocabulary of bytes, as a directory that transformers reads."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {"<eos>": 0} | {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()), 1)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>").save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.1,
        eos_token_id=0,
        bos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return ModelSpec(str(folder), prompting=Prompting.PLAIN)


def assert_same_as_alone(tmp_path: Path, spec: DecoderSpec) -> None:
    from hpd_core import HyperParallelDecoder

    write(tmp_path / "in/a.parquet", {"title": TITLES}, row_group_size=3)
    summary = run(job(tmp_path, tmp_path / "in", decoder=spec, encoder_factory=None, decoder_factory=None))
    assert summary.complete and (summary.rows_ok, summary.rows_error) == (5, 1)
    assert summary.model_calls > 0 and summary.tokens_per_step > 0

    alone = HyperParallelDecoder.from_spec(spec).extract([title or "" for title in TITLES], PRODUCT)
    rows = output_table(tmp_path / "out").to_pylist()
    for row, expected in zip(rows, alone, strict=True):
        answers = expected.as_dict()
        assert [row["brand"], row["pack_size"]] == [answers.get(a.name) for a in PRODUCT]
        assert row["hpd_status"] == expected.status
        assert (row["hpd_document_tokens"] or 0) == expected.document_tokens
    assert [row["hpd_status"] for row in rows].count(RowStatus.CUT) == 1


def test_a_small_model_answers_as_it_does_alone(tmp_path: Path) -> None:
    settings = DecodeSettings(max_value_tokens=6, max_document_tokens=100)
    assert_same_as_alone(tmp_path, DecoderSpec(tiny_model(tmp_path / "model"), settings))


@pytest.mark.slow
def test_the_default_model_answers_as_it_does_alone(tmp_path: Path) -> None:
    spec = recipe.decoder_spec(model_spec(DEFAULT_MODEL))
    spec = replace(spec, settings=replace(spec.settings, max_document_tokens=100))
    try:
        locate(spec.model)
    except ModelNotFoundError as e:
        pytest.skip(str(e))
    assert_same_as_alone(tmp_path, spec)
