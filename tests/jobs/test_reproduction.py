"""What hpd.json records for whoever trains the same again: every option, versions, digests of the data."""

from __future__ import annotations

import hashlib
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from hpd_core import source
from hpd_core.examples import Labelled
from hpd_core.model_spec import ModelSpec
from hpd_core.schema import Attribute, Document, Schema
from jobs.cli import app
from jobs.finetune import finetune
from jobs.training.labelled import DataSet, Kind
from jobs.training.reproduction import reproduction
from tests.core.tiny_folder import write_tiny_model
from tests.jobs.test_dataset import row, write


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("base"))


def test_a_trained_adapter_says_how_to_train_it_again(base: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "a.jsonl", row("red", "shoes", Color="red", Brand="n/a"), row("tan", "shoes", Size="4"))
    test = write(tmp_path / "test.jsonl", row("sky", "shoes", Color="sky"))
    few = ("--prompting", "plain", "--max-value-tokens", "6", "--rank", "2", "--max-steps", "1", "--threads", "1")
    command = ["finetune", "-d", data, "--exclude", test, "-m", base, "-o", tmp_path / "out", *few, "--seed", "7"]
    done = CliRunner().invoke(app, list(map(str, command)))
    assert done.exit_code == 0, done.output
    training = json.loads((tmp_path / "out" / "adapter" / "hpd.json").read_text())["training"]
    found = training["reproduction"]
    assert found["weights"] == source.identity(ModelSpec(str(base)))
    options = found["options"]
    assert (options["seed"], options["negatives"], options["decoder"], options["threads"]) == (7, 0.25, "hpd", 1)
    assert options["dataset"] == [f"{tmp_path.name}/a.jsonl"] and options["prompting"] == "plain"
    assert options["model"] == f"{base.parent.name}/{base.name}"
    assert found["versions"]["torch"] == torch.__version__ and set(found["versions"]) >= {"python", "peft", "numpy"}
    (facts,) = found["data"]
    assert facts["sha256"] == hashlib.sha256(data.read_bytes()).hexdigest()
    assert (facts["kind"], facts["rows"], facts["values"], facts["absences"]) == ("benchmark", 2, 2, 4)
    assert found["files"] == {"exclude": [hashlib.sha256(test.read_bytes()).hexdigest()]}
    assert str(tmp_path) not in json.dumps(training) and str(base) not in json.dumps(training)


def test_every_option_is_recorded_unless_it_decides_nothing() -> None:
    names = set(inspect.signature(finetune).parameters)
    files, elsewhere = {"validation", "schemas", "job", "exclude"}, {"output_folder", "resume", "json_"}
    data, spec = DataSet("x", Kind.TABLE, []), ModelSpec("org/name")
    recorded = reproduction({name: None if name in files else "1" for name in names}, [], spec)
    assert set(recorded["options"]) == names - files - elsewhere
    assert reproduction({}, [data], spec)["weights"] == "org/name@main"


def test_the_digest_of_what_is_taught_changes_with_a_label_and_the_order() -> None:
    schema = Schema("x", (Attribute("A"), Attribute("B")))

    def taught(*values: Any) -> dict[str, Any]:
        rows = [Labelled(Document(str(n), schema), {"A": v}) for n, v in enumerate(values)]
        return dict(reproduction({}, [DataSet("a/b/c.parquet", Kind.TABLE, rows)], ModelSpec("org/name"))["data"][0])

    one = taught(("red",), None, ())
    assert (one["values"], one["absences"], one["unknown"], one["name"]) == (1, 4, 1, "b/c.parquet")
    assert len({facts["taught"] for facts in (one, taught(("red",), (), ()), taught(None, ("red",), ()))}) == 3
    assert one["taught"] == taught(("red",), None, ())["taught"] and "sha256" not in one
