"""An actor's stages without Ray over made-up rows, and the memory of their process. Imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from hpd_core import source
from hpd_core.spec import DecoderSpec
from jobs.timing.fake import SCHEMA, TextReader
from pipeline.actor import load
from pipeline.output import OutputColumns, OutputOptions
from pipeline.pack import decode_items
from pipeline.peak import resident_bytes
from pipeline.tokenize import documents


def write_tiny(name: str, folder: Path) -> Path:
    """A random Llama of two layers, 32 wide, with the tokenizer of the model `name`, as a Hugging Face folder."""
    tokenizer = source.load_tokenizer(source.locate(source.model_spec(name), weights=False))
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return folder


def samples(spec: DecoderSpec, rows: int, unit: int, threads: int) -> Iterator[tuple[int, int]]:
    """(rows done, bytes resident) after each unit of the loop that an actor and its tasks run."""
    decoder = load(spec, "cpu", threads)
    encode = decoder.encoder.encode  # type: ignore[attr-defined]
    reader = TextReader()
    columns = OutputColumns({a.column: a for a in SCHEMA}, {SCHEMA.name: SCHEMA}, OutputOptions())
    for start in range(0, rows, unit):
        numbers = range(start, min(rows, start + unit))
        table = pa.table(
            {"title": [f"product {n}" for n in numbers], "description": [f"of kind {n % 97}, no {n}" for n in numbers]}
        )
        items = [encode(document) for document in documents(reader, table)]
        found, _ = decode_items(decoder.extract_encoded, items, unit)
        columns.build(found)
        del found, items
        yield numbers.stop, resident_bytes("VmRSS")
