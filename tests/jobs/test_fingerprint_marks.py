"""The mark **F** of docs/configuration.md: a key has it where another value of it is another job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpd_core.spec import fingerprint
from jobs.reference import SECTIONS, keys
from pipeline.compose import compose
from pipeline.config import load_config
from pipeline.resume import job_facts, resolve

#: With values that let one other key change at a time, and that leave nothing to pool or machine.
JOB = """
input: {path: in}
output: {path: out}
text: {template: "{{ title }}"}
schemas: {define: {shoes: {attributes: [{name: Size}]}, tools: {attributes: [Brand]}}, default: shoes}
model: {source: somebody/some-model, dtype: float32}
decode: {layout: gaps, grounding: mark, draft_tokens: 4}
pool: {threads: 2}
"""
ATTRIBUTE = {"name": "Size"}
#: {where: {key: another value}}
OTHERS: dict[str, dict[str, object]] = {
    "text": {"template": "{{ name }}", "category_column": "kind", "attributes_column": "asked"},
    "schemas": {"define": {"shoes": {"attributes": ["Colour"]}}, "default": "tools"},
    "schemas.define.shoes": {"attributes": ["Colour"]},
    "input": {"path": "other", "limit": 5, "storage": {"anon": True}},
    "output": {
        "path": "other", "keep": ["title"], "confidence": True, "statuses": True, "raw": True, "spans": True,
        "layout": "hive", "profile": "athena", "storage": {"anon": True},
    },
    "model": {
        "source": "somebody/another-model", "name": "mine", "revision": "v2", "dtype": "bfloat16", "prompting": "plain",
        "install": "pip install it", "trust_remote_code": True, "long_context": True, "notice": "not for sale",
        "quantization": "int8-weight-only",
    },
    "prompt": {
        "system": "Extract.", "instruction": "Find {attributes}", "before_document": "Text:", "after_document": "End.",
        "absent": "", "stub": "shortest",
    },
    "decode": {
        "layout": "branches", "visibility": "causal", "max_value_tokens": 7, "max_document_tokens": 99,
        "tokens_per_step": 64, "max_slots": 32, "prefix_cache_mib": 1, "grounding": "enforce", "kv_mib": 64,
        "closed_values": "listed", "absent_margin": 0.5, "draft_tokens": 2, "draft_rows": 8,
        "document_block": 4, "cuda_graphs": True,
    },
    "confidence": {"threshold": 0.5},
    "pool": {
        "min_size": 2, "max_size": 3, "cpus": 3, "gpus": 1, "threads": 1, "device": "cuda", "max_retries": 7,
        "read_cpus": 0.7, "commit_cpus": 0.1, "stall_seconds": 7,
    },
    "units": {"rows": 7, "bytes": 7, "seconds": 7, "documents_per_second": 7},
    "run": {
        "pack_documents": 7, "pack_deadline_seconds": 7, "max_rounds": 7, "on_bad_file": "skip", "allow_mixed": True,
        "budget_seconds": 7, "ray_address": "auto", "num_cpus": 7,
    },
    "limits": {"max_error_rate": 0.5},
    "price": {"machine": "laptop-2-core", "dollars_per_hour": 7, "machines": 7},
}  # fmt: skip
ATTRIBUTES: dict[str, object] = {
    "name": "Width", "description": "how long", "values": ["S", "M"], "type": "number", "column": "size_", "many": True,
}  # fmt: skip
PLACES = {"A schema": "schemas.define.shoes", "An attribute": "schemas.define.shoes.attributes"}
#: What a key has to go with before it may change.
ALONG = {
    "pool.min_size": "pool.max_size=2",
    "decode.visibility": "decode.draft_tokens=0",
    "decode.absent_margin": "prompt.absent=''",
}
#: Keys without another value in the tables, and why.
LEFT_OUT = {
    "schemas.file": "needs a file of schemas; what it defines counts as under `define`",
    "schemas.define.shoes.categories": "decides only with text.category_column: see its own test",
    "model.adapter": "needs an adapter, whose content counts, and the settings that it was trained with",
    "confidence.calibrated": "needs the calibration of a decoder",
    "confidence.file": "likewise",
}
FINGERPRINTED = {
    (PLACES.get(section.title, section.title), key.name): section.fingerprint is None or key.name in section.fingerprint
    for section in SECTIONS
    for key in keys(section)
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("marks") / "job.yaml"
    path.write_text(JOB)
    return path


def mark_of(path: Path, *overrides: str) -> str:
    job = compose(load_config(path, overrides), path)
    return fingerprint(job_facts(*resolve(job, None)))


@pytest.mark.parametrize(("where", "key"), [p for p in FINGERPRINTED if ".".join(p) not in LEFT_OUT])
def test_a_key_is_marked_where_another_value_is_another_job(path: Path, where: str, key: str) -> None:
    if where == PLACES["An attribute"]:
        change = f"{where}={json.dumps([ATTRIBUTE | {key: ATTRIBUTES[key]}])}"
    else:
        change = f"{where}.{key}={json.dumps(OTHERS[where][key])}"
    along = [ALONG[f"{where}.{key}"]] if f"{where}.{key}" in ALONG else []
    is_another = mark_of(path, *along, change) != mark_of(path, *along)
    assert is_another == FINGERPRINTED[where, key], change


def test_categories_decide_where_a_column_is_read(path: Path) -> None:
    column = "text.category_column=kind"
    assert mark_of(path, column, "schemas.define.shoes.categories=[boots]") != mark_of(path, column)


def test_what_is_left_out_is_a_key() -> None:
    assert set(LEFT_OUT) <= {".".join(place) for place in FINGERPRINTED}
