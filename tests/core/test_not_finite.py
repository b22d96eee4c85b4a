"""NaN in a document's logits: that row is in error, never garbage text, and the rows beside it are what they were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel

from hpd_core.extractor import HyperParallelDecoder
from hpd_core.model_spec import ModelSpec
from hpd_core.rows import RowStatus
from hpd_core.schema import Attribute, Schema
from hpd_core.settings import DecodeSettings, Grounding
from tests.core.tiny_folder import write_tiny_model

SCHEMA = Schema("shoes", (Attribute("Brand"), Attribute("Color", values=("red", "blue"))))
TEXTS = ["Fila red", "Puma ~ blue", "Adidas"]


@pytest.mark.parametrize("grounding", [Grounding.OFF, Grounding.ENFORCE])
def test_the_row_of_a_document_with_nan_is_in_error_and_no_other(tmp_path: Path, grounding: Grounding) -> None:
    settings = replace(DecodeSettings(), max_value_tokens=6, grounding=grounding)
    spec = ModelSpec(str(write_tiny_model(tmp_path)), dtype="float32", prompting="plain")
    decoder = HyperParallelDecoder.from_pretrained(spec, settings)
    clean = decoder.extract(TEXTS, SCHEMA)
    assert all(row.status is RowStatus.OK for row in clean)
    model = decoder.model.hf
    with torch.no_grad():  # in what "~" is read as, and not in what is written: these weights are tied
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
        model.get_input_embeddings().weight[sorted(ByteLevel.alphabet()).index("~")] = float("nan")
    for _ in range(2):  # nor does it outlive its row
        rows = decoder.extract(TEXTS, SCHEMA)
        assert [row.status for row in rows] == [RowStatus.OK, RowStatus.ERROR, RowStatus.OK]
        assert rows[1].error == "the model gave logits that are not finite" and rows[1].values == ()
        assert [rows[n].as_dict() for n in (0, 2)] == [clean[n].as_dict() for n in (0, 2)]
