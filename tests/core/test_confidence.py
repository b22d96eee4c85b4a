"""Calibration and thresholds: monotone maps, what a threshold takes away, the file, and the decoder that uses both."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp, isnan, log, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpd_core import recipe, source
from hpd_core.confidence import (
    AUTO,
    FILE,
    Calibration,
    ConfidenceRule,
    ConfidenceSettings,
    Platt,
    Score,
    identity,
    with_confidence,
)
from hpd_core.extractor import HyperParallelDecoder
from hpd_core.model_spec import ModelSpec, Prompting
from hpd_core.recipe import COMPACT, Recipe
from hpd_core.rows import Row, RowStatus, Value, ValueStatus
from hpd_core.schema import Attribute, Document, Schema
from hpd_core.settings import DecodeSettings, SettingsError
from hpd_core.spec import DecoderSpec, fingerprint
from tests.core.tiny_folder import write_tiny_model

SCHEMA = Schema("s", (Attribute("Brand"), Attribute("Color")))
HALF = Calibration(Score.SUM, Platt(1.0, 0.0), Platt(1.0, 1.0), 0.5, {"Brand": 0.8})
logprobs = st.floats(-30, 0)
probabilities = st.floats(0, 1)


def value(name="Brand", text="Acme", p=0.9, tokens=1, status=ValueStatus.EXTRACTED):
    return Value(name, text, status, text or "raw", log(p) / tokens, tokens)


def row(*values):
    return Row(Schema("s", tuple(Attribute(v.attribute) for v in values)), RowStatus.OK, values)


@given(logprobs, logprobs, st.integers(1, 24), st.sampled_from(Score), st.floats(0, 9), st.floats(-9, 9))
def test_a_surer_value_is_never_less_probable(one, other, tokens, score, slope, intercept):
    low, high = sorted((one, other))
    platt = Platt(slope, intercept)
    assert 0 <= platt(score.of(low, tokens)) <= platt(score.of(high, tokens)) <= 1


def test_a_score_is_the_log_odds_of_the_whole_value_or_of_a_token():
    assert Score.SUM.of(log(0.5), 2) == pytest.approx(log(0.25 / 0.75))
    assert Score.MEAN.of(log(0.5), 2) == pytest.approx(0)
    assert Score.SUM.of(0.0, 3) == pytest.approx(log(1e6), abs=1e-3)  # certain, to float32
    assert Score.SUM.of(-500.0, 3) == pytest.approx(-1500)


@pytest.mark.parametrize("slope", [-0.1, nan, float("inf")])
def test_a_map_that_would_turn_the_order_round_is_refused(slope):
    with pytest.raises(SettingsError, match="must be monotone"):
        Platt(slope, 0.0)


def test_values_and_absences_have_maps_of_their_own_and_failures_none():
    assert HALF.probability(value(p=0.8)) == pytest.approx(0.8)
    odds = 0.8 / 0.2 * exp(1)
    assert HALF.probability(value(text=None, p=0.8, status=ValueStatus.ABSENT)) == pytest.approx(odds / (1 + odds))
    for status in (ValueStatus.TRUNCATED, ValueStatus.INVALID):
        assert isnan(HALF.probability(value(text=None, status=status)))
    assert isnan(HALF.probability(replace(value(), logprob=nan)))  # AR tells none
    assert isnan(replace(HALF, absences=None).probability(value(text=None, status=ValueStatus.ABSENT)))


def test_confidence_is_the_calibrated_probability_where_there_is_one():
    plain = value(p=0.81, tokens=2)
    assert plain.confidence == pytest.approx(0.9)
    assert replace(plain, probability=0.3).confidence == 0.3
    assert replace(plain, probability=nan).confidence is None
    assert replace(plain, logprob=nan).confidence is None


def test_a_value_below_its_threshold_is_unsure_and_keeps_text_and_confidence():
    rule = ConfidenceRule(HALF, HALF.threshold, HALF.thresholds)
    brand, color, low = value("Brand", p=0.79), value("Color", p=0.79), value("Size", p=0.49)
    found = rule.apply(row(brand, color, low)).values
    assert [(v.value, v.status) for v in found] == [
        (None, ValueStatus.UNSURE), ("Acme", ValueStatus.EXTRACTED), (None, ValueStatus.UNSURE),
    ]  # fmt: skip
    assert [v.confidence for v in found] == pytest.approx([0.79, 0.79, 0.49])
    assert (found[0].raw, found[0].logprob) == ("Acme", brand.logprob)


def test_a_threshold_is_reached_by_a_value_that_is_just_as_sure():
    assert ConfidenceRule(threshold=1.0).apply(row(value(p=1.0))).values[0].value == "Acme"


@given(st.lists(probabilities.filter(lambda p: p > 0), min_size=1, max_size=5), st.sampled_from([None, HALF]))
def test_threshold_0_changes_nothing_and_one_above_1_makes_all_unsure(ps, calibration):
    whole = row(*(value(str(n), p=p) for n, p in enumerate(ps)))
    kept = ConfidenceRule(calibration, 0.0).apply(whole)
    assert [(v.value, v.status) for v in kept.values] == [(v.value, v.status) for v in whole.values]
    assert calibration is not None or kept == whole
    none = ConfidenceRule(calibration, 1.01).apply(whole)
    assert {(v.value, v.status) for v in none.values} == {(None, ValueStatus.UNSURE)}


@given(st.lists(probabilities.filter(lambda p: p > 0), min_size=1, max_size=5), probabilities, probabilities)
def test_a_higher_threshold_keeps_no_value_that_a_lower_one_drops(ps, one, other):
    whole = row(*(value(str(n), p=p) for n, p in enumerate(ps)))
    low, high = sorted((one, other))
    kept = [{v.attribute for v in ConfidenceRule(None, t).apply(whole).values if v.value} for t in (low, high)]
    assert kept[1] <= kept[0]


def test_absent_invalid_and_truncated_stay_what_they_are_and_ungrounded_values_may_be_unsure():
    statuses = (ValueStatus.ABSENT, ValueStatus.INVALID, ValueStatus.TRUNCATED)
    found = ConfidenceRule(HALF, 1.01).apply(row(*(value(s, None, status=s) for s in statuses))).values
    assert tuple(v.status for v in found) == statuses
    [marked] = ConfidenceRule(HALF, 1.01).apply(row(value(status=ValueStatus.UNGROUNDED))).values
    assert (marked.value, marked.status) == (None, ValueStatus.UNSURE)


def test_a_row_in_error_stays_one():
    broken = Row(SCHEMA, RowStatus.ERROR, error="x")
    assert ConfidenceRule(HALF, 0.5).apply(broken) == broken


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"threshold": AUTO}, "set calibrated to true"),
        ({"file": "x.json"}, "unless calibrated is true"),
        ({"threshold": 1.5}, r"threshold is 1.5: must be auto, a mapping .* or a number from 0 to 1"),
        ({"threshold": 70}, "threshold is 70"),
        ({"threshold": -0.1}, "threshold is -0.1"),
        ({"threshold": nan}, "threshold is nan"),
        ({"threshold": True}, "threshold is True"),
        ({"threshold": "0.6"}, "threshold is '0.6'"),
        ({"threshold": {"Brand": 2}}, "threshold of 'Brand' is 2"),
        ({"threshold": {"Brand": None}}, "threshold of 'Brand' is None"),
    ],
)
def test_settings_that_mean_nothing_are_refused(given_, message):
    with pytest.raises(SettingsError, match=message):
        ConfidenceSettings(**given_)


def test_a_threshold_for_no_attribute_names_the_nearest():
    with pytest.raises(SettingsError, match="no attribute 'Brnad'; did you mean 'Brand'"):
        ConfidenceSettings(threshold={"Brnad": 0.5}).check_names(["Brand", "Color"])
    ConfidenceSettings(threshold={"Brand": 0.5}).check_names(["Brand", "Color"])
    ConfidenceSettings(threshold=0.5).check_names([])


def test_a_calibration_comes_back_from_its_file(tmp_path):
    whole = replace(HALF, made_for={"model": "m"}, measured={"rows": 3})
    assert Calibration.read(whole.write(tmp_path)) == whole
    assert [p.name for p in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format 2; this version reads 1"),
        ({"values": {"slope": -1.0, "intercept": 0.0}}, "must be monotone"),
        ({"score": "product"}, "'product' is not a valid Score"),
        ({"threshold": 3}, "a threshold of a calibration is 3"),
        ({"thresholds": {"Brand": "high"}}, "a threshold of a calibration is 'high'"),
        ({"absences": {"slop": 1}}, "TypeError"),
    ],
)
def test_a_broken_file_is_named(tmp_path, change, message):
    path = HALF.write(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(SettingsError, match=f"calibration.json: .*{message}"):
        Calibration.read(path)


def test_a_missing_or_cut_file_is_named(tmp_path):
    with pytest.raises(SettingsError, match="no such file; `hpd calibrate` makes one"):
        Calibration.read(tmp_path / FILE)
    (tmp_path / FILE).write_text('{"format": 1')
    with pytest.raises(SettingsError, match=r"calibration\.json: JSONDecodeError"):
        Calibration.read(tmp_path / FILE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A fully fine-tuned tiny model, as far as its folder goes."""
    path = write_tiny_model(tmp_path_factory.mktemp("model"))
    Recipe("base", DecodeSettings(max_value_tokens=24), COMPACT, Prompting.PLAIN).write(path)
    return path


@pytest.fixture
def spec(folder):
    (folder / FILE).unlink(missing_ok=True)
    return recipe.decoder_spec(ModelSpec(str(folder)))


def test_with_nothing_set_spec_and_fingerprint_are_those_of_before(spec):
    assert with_confidence(spec, ConfidenceSettings()) == spec
    assert set(spec.as_dict()) == {"model", "settings", "template"}


def test_what_changes_answers_changes_the_fingerprint_and_figures_for_people_do_not(spec, folder):
    made = replace(HALF, made_for=identity(spec.as_dict()))

    def mark(calibration, **settings):
        calibration.write(folder)
        return fingerprint(with_confidence(spec, ConfidenceSettings(**settings)).as_dict())

    marks = [
        fingerprint(spec.as_dict()),
        mark(made, calibrated=True),
        mark(made, calibrated=True, threshold=AUTO),
        mark(made, calibrated=True, threshold=0.4),
        mark(made, threshold=0.4),
        mark(made, threshold={"Brand": 0.4}),
        mark(replace(made, thresholds={"Brand": 0.7}), calibrated=True, threshold=AUTO),
        mark(replace(made, values=Platt(2.0, 0.0)), calibrated=True),
    ]
    assert len(set(marks)) == len(marks)
    ruled = with_confidence(spec, ConfidenceSettings(calibrated=True))
    assert len({spec, ruled, replace(ruled)}) == 2  # workers keep what they load by spec
    assert mark(replace(made, measured={"rows": 9}), calibrated=True) == marks[1]


def test_a_calibration_beside_the_weights_is_no_part_of_them(spec, folder, tmp_path):
    before = source.identity(spec.model)
    HALF.write(folder)
    assert source.identity(spec.model) == before
    (tmp_path / "adapter_model.safetensors").write_bytes(b"weights")
    before = recipe.content_hash(str(tmp_path))
    HALF.write(tmp_path)
    assert recipe.content_hash(str(tmp_path)) == before
    (tmp_path / "other.json").write_text("{}")
    assert recipe.content_hash(str(tmp_path)) != before


def test_a_calibration_of_another_decoder_is_refused(spec, folder):
    made_for = identity(spec.as_dict())
    replace(HALF, made_for=made_for | {"adapter": "other", "enforced": True}).write(folder)
    with pytest.raises(SettingsError, match=r"adapter is , fitted with other; enforced is False, fitted with True"):
        with_confidence(spec, ConfidenceSettings(calibrated=True))
    replace(HALF, made_for=made_for).write(folder)
    other = replace(spec, settings=replace(spec.settings, max_document_tokens=64, tokens_per_step=7))
    assert with_confidence(other, ConfidenceSettings(calibrated=True)).confidence.calibration.made_for == made_for


def test_a_model_without_a_folder_asks_for_the_file():
    spec = DecoderSpec(ModelSpec("somebody/model", name="m"))
    with pytest.raises(SettingsError, match=r"model m: has no folder of its own where a calibration.json could lie"):
        with_confidence(spec, ConfidenceSettings(calibrated=True))


def test_a_decoder_tells_probabilities_and_drops_what_is_below_its_thresholds(spec, folder, tmp_path):
    # Held to its text, since a random model knows no end.
    settings = DecodeSettings(max_value_tokens=24, grounding="enforce")
    spec = replace(spec, settings=settings)
    (tmp_path / "elsewhere").mkdir()
    calibration = replace(HALF, values=Platt(0.7, 2.0), thresholds={"Brand": 1.0}, threshold=0.0)
    path = replace(calibration, made_for=identity(spec.as_dict())).write(tmp_path / "elsewhere")
    texts = [f"shoe {n} tan" for n in range(8)]

    def rows(**sure):
        made = HyperParallelDecoder.from_pretrained(str(folder), settings, confidence=ConfidenceSettings(**sure))
        found = made.extract_encoded([made.encoder.encode(Document(text, SCHEMA)) for text in texts])
        return found.rows, found.counts

    plain, _ = rows()
    told, counts = rows(calibrated=True, file=str(path))
    assert counts.unsure == 0
    dropped, counts = rows(calibrated=True, file=str(path), threshold=AUTO)
    some = 0
    for before, sure, after in zip(plain, told, dropped, strict=True):
        for v, w, x in zip(before.values, sure.values, after.values, strict=True):
            assert (v.value, v.status, v.raw, v.logprob) == (w.value, w.status, w.raw, w.logprob)
            if v.value is not None:
                some += v.attribute == "Brand"
                assert w.probability == pytest.approx(Platt(0.7, 2.0)(Score.SUM.of(v.logprob, v.tokens)))
                assert x == (w if v.attribute == "Color" else replace(w, value=None, status=ValueStatus.UNSURE))
            else:
                assert repr(x) == repr(w)  # NaN equals nothing
    assert counts.unsure == some > 0
