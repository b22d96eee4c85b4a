"""An epoch's lessons: those that were made at once before, each when it is asked for."""

from __future__ import annotations

import pytest

from hpd_core.examples import Labelled, Sampling, epoch_examples
from hpd_core.lessons import LessonMaker
from hpd_core.model_spec import ModelSpec, Prompting
from hpd_core.prompt import PromptEncoder
from hpd_core.recipe import COMPACT
from hpd_core.schema import Attribute, Document, Schema
from hpd_core.settings import DecodeSettings
from hpd_core.spec import DecoderSpec
from jobs.training.epoch import Lessons
from tests.core.tiny_folder import write_tiny_model

SHOES = Schema("shoes", (Attribute("Brand"), Attribute("Color")))
SAMPLING = Sampling(negatives=0.5, batch_documents=3, accumulate=2, documents_per_prefix=2)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> PromptEncoder:
    model = ModelSpec(str(write_tiny_model(tmp_path_factory.mktemp("base"))), prompting=Prompting.PLAIN)
    return PromptEncoder.from_spec(DecoderSpec(model, DecodeSettings(max_value_tokens=6), COMPACT))


def labelled(*colors: str) -> list[Labelled]:
    return [Labelled(Document(f"shoe {n}", SHOES), {"Color": (color,)}) for n, color in enumerate(colors)]


def test_steps_are_those_made_at_once_in_any_order_of_asking(encoder: PromptEncoder) -> None:
    rows = labelled(*["red", "tan"] * 7)
    maker = LessonMaker(encoder)
    batches = [[maker.lesson(example) for example in batch] for batch in epoch_examples(rows, SAMPLING, 1)]
    expected = [batches[start : start + 2] for start in range(0, len(batches), 2)]
    epoch = Lessons(encoder, rows, SAMPLING, autoregressive=False)(1)
    assert len(epoch) == len(expected) == 3 and [len(batch) for batch in expected[-1]] == [2]
    assert [epoch[n] for n in (2, 0, 1, 0)] == [expected[n] for n in (2, 0, 1, 0)]
    assert list(epoch) == expected and epoch[1:] == expected[1:] and epoch[-1] == expected[-1]
    with pytest.raises(IndexError):
        epoch[3]


def test_nothing_is_made_before_it_is_asked_for(encoder: PromptEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    real = LessonMaker.lesson

    def counted(maker: LessonMaker, example: object) -> object:
        made.append("one")
        return real(maker, example)  # type: ignore[arg-type]

    monkeypatch.setattr(LessonMaker, "lesson", counted)
    epoch = Lessons(encoder, labelled(*["red"] * 14), SAMPLING, autoregressive=False)(0)
    assert not made and len(epoch) == 3
    _ = epoch[1]
    assert len(made) == 6


def test_what_cannot_be_taught_is_said_at_the_first_and_counted_at_the_end(
    encoder: PromptEncoder, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = labelled(*["red"] * 12, "two\nlines", "and\ntwo")
    steps = list(Lessons(encoder, rows, SAMPLING, autoregressive=False)(0))
    assert sum(len(batch) for step in steps for batch in step) == 12
    first, last = capsys.readouterr().err.splitlines()
    assert (first.startswith("a document cannot be taught and is left out") and "lines" in first) or "two" in first
    assert last == "2 documents of this epoch could not be taught"
