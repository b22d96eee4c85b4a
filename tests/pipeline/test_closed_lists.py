"""Closed lists that a job could not write: refused before its first unit, by validate, plan and the job itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hpd_core.model_spec import ModelSpec, Prompting
from hpd_core.prompt import PromptEncoder
from hpd_core.schema import Attribute, Schema
from hpd_core.settings import DecodeSettings
from hpd_core.spec import DecoderSpec
from jobs.cli import app
from pipeline.closed_lists import check_lists, check_where_it_runs, has_lists
from pipeline.job import JobError
from pipeline.run import run
from tests.core.tiny_folder import write_tiny_model
from tests.pipeline.helpers import job, shards

#: 6 and 16 tokens with the blank and the end: the tiny tokenizer has one for each letter.
SHOES = Schema("shoes", (Attribute("Kind", values=("clog", "sandals" * 2)), Attribute("Brand")))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


def spec(model: Path, most: int, closed_values: str = "listed") -> DecoderSpec:
    settings = DecodeSettings(max_value_tokens=most, closed_values=closed_values)  # type: ignore[arg-type]
    return DecoderSpec(ModelSpec(str(model), prompting=Prompting.PLAIN), settings)


def test_every_value_is_named_with_its_tokens_and_what_would_do(model: Path) -> None:
    many = Schema("many", (Attribute("Size", values=tuple("x" * n for n in range(20, 40))),))
    with pytest.raises(JobError) as e:
        check_lists(PromptEncoder.from_spec(spec(model, 10)), (SHOES, many))
    lines = str(e.value).splitlines()
    assert lines[0].startswith("schema 'shoes': the value 'sandalssandals' of 'Kind' takes 16 tokens, its end counted")
    assert "decode.max_value_tokens is 10" in lines[0] and len(lines) == 12
    assert lines[-2:] == ["… and 11 more", "set decode.max_value_tokens to 41, or list shorter values"]
    check_lists(PromptEncoder.from_spec(spec(model, 41)), (SHOES, many))


@pytest.mark.usefixtures("cluster")
def test_a_job_is_refused_before_its_first_unit(model: Path, tmp_path: Path) -> None:
    shards(tmp_path / "in", 1)
    changes = {"encoder_factory": None, "schemas": (SHOES,)}
    with pytest.raises(JobError, match="'sandalssandals' of 'Kind' takes 16 tokens"):
        run(job(tmp_path, tmp_path / "in", decoder=spec(model, 10), **changes))
    assert not (tmp_path / "out/run.json").exists() and not (tmp_path / "calls.log").exists()
    for fine in (spec(model, 16), spec(model, 10, "free"), spec(tmp_path / "nowhere", 10)):
        check_where_it_runs(job(tmp_path, tmp_path / "in", decoder=fine, **changes))


def test_free_values_and_open_attributes_ask_for_no_tokenizer(model: Path, tmp_path: Path) -> None:
    open_ = Schema("open", (Attribute("Brand"),))
    assert has_lists(job(tmp_path, tmp_path, decoder=spec(model, 1), schemas=(SHOES,)))
    assert not has_lists(job(tmp_path, tmp_path, decoder=spec(model, 1, "free"), schemas=(SHOES,)))
    assert not has_lists(job(tmp_path, tmp_path, decoder=spec(model, 1), schemas=(open_,)))


@pytest.mark.parametrize("command", ["validate", "plan"])
def test_the_commands_that_look_at_a_job_say_it_too(model: Path, tmp_path: Path, command: str) -> None:
    shards(tmp_path / "in", 1)
    config = tmp_path / "job.yaml"
    facts = {
        "text": {"template": "{{ title }}"},
        "schemas": {"define": {"shoes": {"attributes": [{"name": "Kind", "values": ["sandalssandals"]}]}}},
        "model": {"source": str(model), "name": "tiny", "prompting": "plain"},
        "decode": {"closed_values": "listed", "max_value_tokens": 10},
        "pool": {"threads": 1},
    }
    facts["schemas"]["default"] = "shoes"
    config.write_text(json.dumps(facts))
    words = [command, "--config", str(config), "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    ended = CliRunner().invoke(app, words)
    assert ended.exit_code == 2
    assert "error: schema 'shoes': the value 'sandalssandals' of 'Kind' takes 16" in ended.output
    ended = CliRunner().invoke(app, [*words, "--set", "decode.max_value_tokens=16"])
    assert ended.exit_code == 0, ended.output
    if command == "validate":  # of a job that is to run where its model is
        there = ["--set", f"model.source={tmp_path}/nowhere", "--set", "run.ray_address=ray://elsewhere:10001"]
        ended = CliRunner().invoke(app, [*words, *there])
        assert ended.exit_code == 0 and "note: nobody has looked whether the closed lists fit" in ended.output
