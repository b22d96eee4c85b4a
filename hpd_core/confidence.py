"""Which confidence to trust: a calibration of the decoder's own, and thresholds below which nothing is said.

The probability that a model gives its own words says how sure it was of the wording, not how often it is right. A
calibration, fitted on labelled rows that the model was not trained on (`hpd calibrate`), maps one to the other by Platt
scaling (Platt 1999; Guo et al. 2017, arXiv 1706.04599): P(right) = sigmoid(slope * score + intercept). It is monotone:
it changes no order, only what the numbers mean. It travels beside the weights as `calibration.json`. Plain files and
JSON: nothing here imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from math import exp, expm1, isfinite, log, nan
from pathlib import Path
from typing import Any

from hpd_core import recipe
from hpd_core.model_spec import ModelSpec
from hpd_core.reading import ValueStatus
from hpd_core.rows import Row, Value
from hpd_core.settings import Grounding, SettingsError, did_you_mean
from hpd_core.spec import DecoderSpec, fingerprint

FILE = recipe.CALIBRATION
AUTO = "auto"
_FORMAT = 1
#: Least distance of a probability from 1: what float32 logits tell nearer to it is noise.
_EDGE = 1e-6


class Score(StrEnum):
    """What of a value's tokens is calibrated: the log-odds of a probability, finite, growing with it."""

    #: Of the value as a whole: the product of its tokens' probabilities, the terminator included.
    SUM = "sum"
    #: Of a token on average: their geometric mean.
    MEAN = "mean"

    def of(self, logprob: float, tokens: int) -> float:
        """logprob: mean log-probability per token, at most 0."""
        log_p = min(logprob * tokens if self is Score.SUM else logprob, log(1 - _EDGE))
        return log_p - log(-expm1(log_p))


@dataclass(frozen=True, slots=True)
class Platt:
    """score -> probability of being right, growing with the score or constant."""

    slope: float
    intercept: float

    def __post_init__(self) -> None:
        if not (isfinite(self.slope) and isfinite(self.intercept) and self.slope >= 0):
            raise SettingsError(f"calibration with slope {self.slope} and intercept {self.intercept}: must be monotone")

    def __call__(self, score: float) -> float:
        odds = self.slope * score + self.intercept
        return 1 / (1 + exp(-odds)) if odds >= 0 else exp(odds) / (1 + exp(odds))


@dataclass(frozen=True, slots=True)
class Calibration:
    """What `calibration.json` says.

    values, absences: maps of what was said to be there and of what was said to be absent; absences may be None.
    threshold: least probability of a value of an attribute that `thresholds` {attribute: …} does not name.
    made_for: the decoder that it was fitted to, as `identity` tells it. measured: data and figures, for people.
    """

    score: Score
    values: Platt
    absences: Platt | None
    threshold: float
    thresholds: Mapping[str, float] = field(default_factory=dict)
    made_for: Mapping[str, Any] = field(default_factory=dict)
    measured: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "score", Score(self.score))
        for least in (self.threshold, *self.thresholds.values()):
            _check_probability(least, "a threshold of a calibration")

    def probability(self, value: Value) -> float:
        """That `value` is right: NaN where it is neither a value nor an absence, or has no log-probability."""
        absent = value.status is ValueStatus.ABSENT
        told = self.absences if absent else self.values
        if told is None or not isfinite(value.logprob) or (value.value is None and not absent):
            return nan
        return told(self.score.of(value.logprob, value.chosen_tokens))

    def write(self, folder: Path) -> Path:
        """Writes `calibration.json` into a folder that is there, whole or not at all."""
        path = folder / FILE
        text = json.dumps({"format": _FORMAT} | asdict(self), indent=2, ensure_ascii=False) + "\n"
        beside = path.with_name(path.name + ".part")
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
        return path

    @classmethod
    def read(cls, path: Path) -> Calibration:
        """Raises SettingsError naming the file where it is missing, unreadable or not monotone."""
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
            if facts["format"] != _FORMAT:
                raise SettingsError(f"format {facts['format']}; this version reads {_FORMAT}")
            absences = facts["absences"]
            return cls(
                score=Score(facts["score"]),
                values=Platt(**facts["values"]),
                absences=None if absences is None else Platt(**absences),
                threshold=facts["threshold"],
                thresholds=dict(facts["thresholds"]),
                made_for=dict(facts["made_for"]),
                measured=dict(facts["measured"]),
            )
        except FileNotFoundError:
            raise SettingsError(f"{path}: no such file; `hpd calibrate` makes one") from None
        except SettingsError as error:
            raise SettingsError(f"{path}: {error}") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SettingsError(f"{path}: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class ConfidenceSettings:
    """What a job says about confidence.

    calibrated: confidence is the probability of being right, by the calibration that lies beside the adapter (or in the
        directory of a fully fine-tuned model), or is `file`.
    threshold: least confidence of a value; one that is less sure is null with the status `unsure`. `auto`: those of the
        calibration; a number from 0 to 1; {attribute: number}, which leaves other attributes alone; None keeps all.
    file: a calibration in place of the model's own.
    """

    calibrated: bool = False
    # Checked below and not by its annotation: pydantic would make 1.0 of `true`.
    threshold: object = None
    file: str = ""

    def __post_init__(self) -> None:
        if self.threshold == AUTO and not self.calibrated:
            raise SettingsError(f"threshold {AUTO!r} is that of a calibration: set calibrated to true")
        if self.file and not self.calibrated:
            raise SettingsError(f"calibration file {self.file}: nobody reads it unless calibrated is true")
        if isinstance(self.threshold, Mapping):
            for attribute, least in self.threshold.items():
                _check_probability(least, f"threshold of {attribute!r}")
        elif self.threshold is not None and self.threshold != AUTO:
            _check_probability(self.threshold, "threshold", f"{AUTO}, a mapping of attributes to numbers, or ")

    @property
    def attributes(self) -> tuple[str, ...]:
        """Attributes that are given a threshold of their own."""
        return tuple(self.threshold) if isinstance(self.threshold, Mapping) else ()

    def check_names(self, known: Iterable[str]) -> None:
        """Raises SettingsError naming the nearest of the `known` attributes where a threshold is for none of them."""
        known = list(dict.fromkeys(known))
        for name in self.attributes:
            if name not in known:
                raise SettingsError(f"threshold: no attribute {name!r}; {did_you_mean(name, known, 'attributes')}")


@dataclass(frozen=True, slots=True)
class ConfidenceRule:
    """Settings with their calibration read: what a decoder does to its rows. Small, without files.

    threshold: least confidence of values of attributes that `thresholds` does not name; 0 keeps all.
    """

    calibration: Calibration | None = None
    threshold: float = 0.0
    thresholds: Mapping[str, float] = field(default_factory=dict)

    def apply(self, row: Row) -> Row:
        """`row` with probabilities, and without the values that are less sure than asked."""
        return replace(row, values=tuple(self._decided(value) for value in row.values))

    def facts(self) -> dict[str, Any]:
        """JSON-able: what decides answers, and nothing about where it comes from."""
        made = self.calibration
        maps = None if made is None else {"score": made.score, "values": made.values, "absences": made.absences}
        told = {name: asdict(m) if isinstance(m, Platt) else m for name, m in maps.items()} if maps else None
        return {"calibration": told, "threshold": self.threshold, "thresholds": dict(self.thresholds)}

    def _decided(self, value: Value) -> Value:
        if self.calibration is not None:
            value = replace(value, probability=self.calibration.probability(value))
        least = self.thresholds.get(value.attribute, self.threshold)
        if value.value is None or least <= 0 or (value.confidence is not None and value.confidence >= least):
            return value
        return replace(value, value=None, status=ValueStatus.UNSURE)


def with_confidence(spec: DecoderSpec, settings: ConfidenceSettings) -> DecoderSpec:
    """`spec` with the rule of `settings`, the calibration read; unchanged where nothing is set.

    Raises SettingsError naming the file where the calibration is missing, broken or was fitted to another decoder.
    """
    if settings == ConfidenceSettings():
        return spec
    calibration = None
    if settings.calibrated:
        path = Path(settings.file).expanduser() if settings.file else _beside(spec.model)
        calibration = Calibration.read(path)
        _check_decoder(path, calibration.made_for, identity(spec.as_dict()))
    if settings.threshold == AUTO:
        assert calibration is not None
        rule = ConfidenceRule(calibration, calibration.threshold, calibration.thresholds)
    elif isinstance(settings.threshold, Mapping):
        rule = ConfidenceRule(calibration, thresholds=dict(settings.threshold))
    else:
        least = settings.threshold
        rule = ConfidenceRule(calibration, float(least) if isinstance(least, int | float) else 0.0)
    return replace(spec, confidence=rule)


def identity(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a calibration is bound to, out of `DecoderSpec.as_dict()`: whatever moves the log-probabilities of values.

    How long documents may be and how they are packed do not; precision moves them too little to matter, quantised
    weights do not.
    """
    model, settings = facts["model"], facts["settings"]
    return {
        "model": model["source"],
        "adapter": model["adapter"],
        "template": fingerprint({"template": facts["template"], "prompting": model["prompting"]}),
        "layout": settings["layout"],
        "visibility": settings["visibility"],
        "max_value_tokens": settings["max_value_tokens"],
        "enforced": settings.get("grounding") == Grounding.ENFORCE,
        "closed_values": settings.get("closed_values"),  # None where they are free, as before there was a choice
        "absent_margin": settings.get("absent_margin"),  # likewise
        "document_block": settings.get("document_block"),
        "quantization": model.get("quantization"),  # likewise
    }


def _check_decoder(path: Path, made_for: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    other = [name for name in asked if asked[name] != made_for.get(name)]
    if other:
        told = "; ".join(f"{name} is {asked[name]}, fitted with {made_for.get(name)}" for name in other)
        raise SettingsError(f"{path}: a calibration of another decoder says nothing: {told}")


def _beside(model: ModelSpec) -> Path:
    folder = recipe.beside_weights(model)
    if not folder.is_dir():
        raise SettingsError(f"model {model.name}: has no folder of its own where a {FILE} could lie: give its file")
    return folder / FILE


def _check_probability(number: object, what: str, others: str = "") -> None:
    # A bool is an int to Python, and NaN is in no range.
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= 1:
        raise SettingsError(f"{what} is {number!r}: must be {others}a number from 0 to 1")
