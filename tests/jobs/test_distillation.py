"""A teacher's extraction becomes a smaller student's training data: extract, finetune on the output, decode."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as dataset
import pyarrow.parquet as pq
import pytest

from hpd_core.extractor import HyperParallelDecoder
from hpd_core.schema import Attribute, Schema
from tests.core.tiny_folder import write_tiny_model
from tests.jobs.test_dataset import row, write

COLORS = ("red", "tan", "sky")
JOB = """
text: {template: "{{ title }}"}
schemas: {define: {shoes: {attributes: [Brand, Color]}}, default: shoes}
output: {confidence: true, statuses: true}
pool: {cpus: 1, threads: 1}
run: {num_cpus: 2}
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_small_student_learns_from_what_a_larger_teacher_extracted(tmp_path: Path, repository: Path) -> None:
    def hpd(*arguments: object) -> dict[str, Any]:
        command = [sys.executable, "-m", "jobs.cli", *map(str, arguments), "--json"]
        there = os.environ | {"PYTHONPATH": str(repository), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=repository, env=there)
        assert done.returncode == 0, done.stderr[-3000:]
        return {"said": done.stderr, **json.loads(done.stdout.splitlines()[-1])}

    def finetune(base: Path, data: Path, out: Path, *options: object) -> dict[str, Any]:
        learn = ("--prompting", "plain", "--max-value-tokens", 6, "--threads", 1, "--batch-documents", 6)
        # All weights: an adapter leaves the random embeddings of a tiny model as they are, and with them its doubts.
        learn += ("--epochs", 30, "--rank", 0, "--lr", 0.005, "--negatives", 1)
        return hpd("finetune", "-d", data, "-o", out, "-m", base, *learn, *options)

    labelled = [row(f"shoe {n} {COLORS[n % 3]}", "shoes", Color=COLORS[n % 3], Brand="n/a") for n in range(20)]
    base = write_tiny_model(tmp_path / "large", hidden_size=48, layers=3)
    finetune(base, write(tmp_path / "gold.jsonl", *labelled), tmp_path / "teacher")

    titles = [None, *(f"shoe {n} {COLORS[n % 3]}" for n in range(40, 63))]
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"title": titles}), tmp_path / "in" / "catalog.parquet")
    (tmp_path / "job.yaml").write_text(JOB)
    places = ("--config", tmp_path / "job.yaml", "--input", tmp_path / "in", "--output", tmp_path / "enriched")
    hpd("extract", *places, "--set", f"model={tmp_path / 'teacher' / 'model'}")
    found = dataset.dataset(tmp_path / "enriched" / "data").to_table().to_pylist()
    assert all(r["color__confidence"] for r in found[1:])
    right = sum(r["color"] == COLORS[n % 3] and r["brand__status"] == "absent" for n, r in enumerate(found[1:], 40))
    assert right >= 20  # the teacher has learnt its toy, so there is something to hand on

    small = write_tiny_model(tmp_path / "small")
    facts = finetune(small, tmp_path / "enriched", tmp_path / "student", "--min-confidence", 0.5)
    assert (facts["rows"], facts["min_confidence"]) == (23, 0.5)
    assert facts["datasets"] == [f"{tmp_path.name}/enriched"]
    assert "1 rows left out: hpd_status 'no_text'" in facts["said"]

    (teacher,) = json.loads((tmp_path / "student" / "model" / "hpd.json").read_text())["training"]["teachers"]
    run = json.loads((tmp_path / "enriched" / "run.json").read_text())
    assert (teacher["fingerprint"], teacher["model"]) == (run["fingerprint"], "teacher/model")
    assert teacher["weights"] == run["facts"]["decoder"]["model"]["source"]

    student = HyperParallelDecoder.from_pretrained(str(tmp_path / "student" / "model"))
    rows = student.extract(["shoe 31 tan", "shoe 33 red"], Schema("x", (Attribute("Color"), Attribute("Brand"))))
    assert [r.as_dict() for r in rows] == [{"Color": "tan", "Brand": None}, {"Color": "red", "Brand": None}]
