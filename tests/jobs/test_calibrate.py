"""`hpd calibrate`: from a validation run to a calibration that the next run uses, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from hpd_core.confidence import AUTO, Calibration, ConfidenceSettings, Platt
from hpd_core.model_spec import Prompting
from hpd_core.reading import ValueStatus
from hpd_core.recipe import COMPACT, Recipe, content_hash
from hpd_core.settings import DecodeSettings, SettingsError
from jobs.calibrate import FEW
from jobs.cli import app
from jobs.options import confidence_settings
from jobs.scores.confidences import FILE, Told, read_confidences, write_confidences
from jobs.scores.dataset import read_benchmark
from jobs.scores.predictions import write_results
from jobs.scores.scoring import score
from pipeline.job import JobError
from tests.core.tiny_folder import write_tiny_model
from tests.jobs.test_dataset import row, write

SPEC = {
    "model": {"source": "sha256:x", "adapter": "", "prompting": "plain"},
    "template": {"system": "s"},
    "settings": {"layout": "branches", "visibility": "isolated", "max_value_tokens": 24},
}
Calibrate = Callable[..., Result]


def hpd(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Twenty products; the gold of the odd ones is another than what is said of them."""
    (tmp_path / "set").mkdir()
    rows = [row(f"shoe {n}", "Shoes", Brand="Acme" if n % 2 else "Bo", Color="n/a") for n in range(20)]
    return write(tmp_path / "set" / "validation.jsonl", *rows)


@pytest.fixture
def run(data: Path, tmp_path: Path) -> Path:
    """What `hpd evaluate` leaves of a decoder that is surer where it is right."""
    benchmark = read_benchmark(data)
    said: list[dict[str, str | None]] = [{"Brand": "Acme", "Color": None} for _ in range(20)]
    facts = score([r.gold for r in benchmark.rows], said).as_dict() | {
        "rows": 20,
        "rows_digest": benchmark.digest(),
        "run": {"dataset": data.name, "decoder": "hpd", **SPEC},
    }
    write_results(tmp_path / "run", said, facts)
    sure = Told(ValueStatus.ABSENT, -0.01, 1, 0.99)
    told = [
        {"Brand": Told(ValueStatus.EXTRACTED, -0.01 if n % 2 or n == 4 else -1.0, 2, 0.9), "Color": sure}
        for n in range(20)
    ]
    write_confidences(tmp_path / "run", told)
    return tmp_path / "run"


def test_the_file_says_what_was_measured_and_for_which_decoder(
    run: Path, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    done = hpd("calibrate", run, "--dataset", data, "--output", tmp_path / "o", "--json")
    assert done.exit_code == 0, done.output
    made = Calibration.read(tmp_path / "o" / "calibration.json")
    assert made.made_for["model"] == "sha256:x" and made.made_for["enforced"] is False
    assert made.values.slope > 0 and 0.1 < made.threshold < 0.6
    assert (made.measured["dataset"], made.measured["rows"]) == ("set/validation.jsonl", 20)
    assert (made.measured["values"], made.measured["right"], made.measured["gold"]) == (20, 10, 20)
    assert made.measured["f1"]["thresholds"] > made.measured["f1"]["all"] == 0.5
    assert "warning: 20 values are few to calibrate on" in done.output and FEW > 20
    assert json.loads(capfd.readouterr().out.splitlines()[-1])["threshold"] == made.threshold


def edited(path: Path, change: Callable[[Any], None]) -> None:
    facts = json.loads(path.read_text())
    change(facts)
    path.write_text(json.dumps(facts))


def refused(run: Path, data: Path, *more: object) -> str:
    done = hpd("calibrate", run, "--dataset", data, "--output", run.parent / "o", *more)
    assert done.exit_code == 2, done.output
    assert not (run.parent / "o" / "calibration.json").exists()
    return done.output


def test_what_cannot_be_calibrated_is_refused_by_name(run: Path, data: Path, tmp_path: Path) -> None:
    told = read_confidences(run)
    write_confidences(run, told[:-1])
    assert "19 rows of confidences for 20 predictions" in refused(run, data)
    unsure = replace(told[6]["Brand"], status=ValueStatus.UNSURE)
    write_confidences(run, [*told[:6], {**told[6], "Brand": unsure}, *told[7:]])
    assert "row 7 lacks values that a threshold took away" in refused(run, data)
    write_confidences(run, [*told[:6], {"Color": told[6]["Color"]}, *told[7:]])
    assert "row 7: no confidence for the value of 'Brand'" in refused(run, data)
    lines = (run / FILE).read_text().splitlines()
    (run / FILE).write_text("\n".join([*lines[:2], lines[2].replace("-0.01", '"high"'), *lines[3:]]) + "\n")
    assert f"{FILE}: line 3: not a row of confidences" in refused(run, data)
    write_confidences(run, [{name: replace(t, logprob=None) for name, t in row.items()} for row in told])
    assert f"no {FILE}: its decoder tells no confidence" in refused(run, data)  # that of before is gone too
    write_confidences(run, told)
    assert "is over validation.jsonl, not over other.jsonl" in refused(
        run, write(tmp_path / "other.jsonl", row("a", "T", B="c"))
    )
    edited(run / "scores.json", lambda facts: facts["run"].update(decoder="per-attribute"))
    assert "made by the decoder per-attribute" in refused(run, data)
    edited(run / "scores.json", lambda facts: facts["counts"].update(VC=3))
    assert "scores.json has counts" in refused(run, data)


def test_an_adapter_takes_only_its_own_calibration_and_not_one_of_what_it_was_trained_on(
    run: Path, data: Path, tmp_path: Path
) -> None:
    def adapter(*trained_on: str) -> Path:
        folder = tmp_path / "adapter"
        folder.mkdir(exist_ok=True)
        (folder / "adapter_config.json").write_text("{}")
        training = {"datasets": list(trained_on)}
        Recipe("base", DecodeSettings(), COMPACT, Prompting.PLAIN, training=training).write(folder)
        return folder

    def calibrate(*options: str) -> Result:
        return hpd("calibrate", run, "--dataset", data, "--output", tmp_path / "adapter", *options)

    folder = adapter("set/train.jsonl")
    assert f"its adapter is {content_hash(str(folder))}, {run} was made with none" in calibrate().output
    edited(run / "scores.json", lambda facts: facts["run"]["model"].update(adapter=content_hash(str(folder))))
    assert calibrate().exit_code == 0
    done = calibrate()
    assert done.exit_code == 2 and "calibration.json exists: --overwrite replaces it" in done.output
    assert calibrate("--overwrite").exit_code == 0  # the calibration beside it does not change what it is
    adapter("set/validation.jsonl")
    edited(run / "scores.json", lambda facts: facts["run"]["model"].update(adapter=content_hash(str(folder))))
    done = calibrate("--overwrite")
    assert done.exit_code == 2 and "was trained on it" in done.output


def test_words_of_the_command_line() -> None:
    assert confidence_settings(False, None, None) == ConfidenceSettings()
    assert confidence_settings(False, None, ["auto"]) == ConfidenceSettings(True, AUTO)
    assert confidence_settings(False, Path("x"), ["0.5"]) == ConfidenceSettings(True, 0.5, "x")
    assert confidence_settings(False, None, ["A=B=0.5", "C=1"]) == ConfidenceSettings(False, {"A=B": 0.5, "C": 1.0})
    for words, message in (
        (["high"], "'high' is no number"),
        (["A=high"], "--threshold A=high: 'high' is no number"),
        (["auto", "A=0.5"], "give auto, one number, or ATTRIBUTE=NUMBER"),
        (["A=0.5", "A=0.6"], "one attribute is given twice"),
    ):
        with pytest.raises(JobError, match=message):
            confidence_settings(False, None, words)
    with pytest.raises(SettingsError, match="threshold is 60"):
        confidence_settings(False, None, ["60"])


def test_from_evaluation_to_calibration_to_values_that_are_unsure(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model")
    Recipe("base", DecodeSettings(max_value_tokens=24), COMPACT, Prompting.PLAIN).write(model)

    def evaluate(name: str, *options: object) -> tuple[Any, list[Any], list[dict[str, Told]]]:
        # Held to the text, since a random model knows no end.
        done = hpd(
            "evaluate", "--dataset", data, "--output", tmp_path / name, "--model", model, "--grounding", "enforce",
            "--threads", 1, *options,
        )  # fmt: skip
        assert done.exit_code == 0, done.output
        lines = (tmp_path / name / "predictions.jsonl").read_text().splitlines()
        facts = json.loads((tmp_path / name / "scores.json").read_text())
        return facts, [json.loads(line) for line in lines], read_confidences(tmp_path / name)

    texts = [f"shoe {n * 37 % 100} tan {chr(97 + n)}" for n in range(16)]
    data = write(tmp_path / "v.jsonl", *(row(text, "Shoes", Brand="x", Color="y") for text in texts))
    _, said, _ = evaluate("first")
    gold = [{a: v if v and n % 3 else "other" for a, v in line.items()} for n, line in enumerate(said)]
    write(data, *(row(text, "Shoes", **values) for text, values in zip(texts, gold, strict=True)))

    facts, plain, told = evaluate("plain")
    assert plain == said and not facts["confidence"]["calibrated"] and "confidence" not in facts["run"]
    calibration = tmp_path / "o" / "calibration.json"
    done = hpd("calibrate", tmp_path / "plain", "--dataset", data, "--output", tmp_path / "o")
    assert done.exit_code == 0, done.output
    # A random model is as sure of wrong values as of right ones, which gives a constant: make it tell them apart.
    replace(Calibration.read(calibration), values=Platt(1.0, 0.0)).write(calibration.parent)

    facts, calibrated, sure = evaluate("calibrated", "--calibration", calibration)
    assert calibrated == plain and facts["confidence"]["calibrated"]
    confidences = sorted(line["Color"].confidence or 0 for line in sure if line["Color"].status == "extracted")
    cut = confidences[len(confidences) // 2]
    facts, after, kept = evaluate("cut", "--calibration", calibration, "--threshold", f"Color={cut}")
    dropped = 0
    for before, now, was, then in zip(calibrated, after, sure, kept, strict=True):
        assert now["Brand"] == before["Brand"]
        if before["Color"] is not None and was["Color"].confidence < cut:
            dropped += 1
            assert now["Color"] is None and then["Color"] == replace(was["Color"], status=ValueStatus.UNSURE)
        else:
            assert now["Color"] == before["Color"]
    assert facts["work"]["unsure"] == dropped > 0
    assert facts["run"]["confidence"]["thresholds"] == {"Color": cut}
    assert told[0]["Brand"].logprob == sure[0]["Brand"].logprob

    for options, message in (
        (("--threshold", "Colour=0.5"), "no attribute 'Colour'; did you mean 'Color'"),
        (("--threshold", "0.5", "--decoder", "ar"), "--decoder ar: calibrations and thresholds are of hpd"),
        (("--calibrated",), "calibration.json: no such file"),
        (("--calibration", calibration, "--grounding", "off"), "a calibration of another decoder"),
    ):
        done = hpd(
            "evaluate",
            "--dataset",
            data,
            "--output",
            tmp_path / "x",
            "--model",
            model,
            "--grounding",
            "enforce",
            *options,
        )
        assert done.exit_code == 2 and message in done.output, done.output
