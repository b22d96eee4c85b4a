"""What an epoch teaches: every document once, values and absences as drawn, the same at every call."""

from __future__ import annotations

from collections import Counter

import pytest

from hpd_core.examples import Labelled, Sampling, epoch_examples
from hpd_core.lessons import LessonMaker
from hpd_core.model_spec import ModelSpec, Prompting
from hpd_core.prompt import PromptEncoder
from hpd_core.recipe import COMPACT
from hpd_core.schema import Attribute, Document, Schema
from hpd_core.settings import DecodeSettings, Layout, SettingsError
from hpd_core.spec import DecoderSpec
from tests.core.tiny_folder import write_tiny_model

SHOES = Schema("shoes", tuple(map(Attribute, ("Brand", "Color", "Size", "Style"))))
TEA = Schema("tea", tuple(map(Attribute, ("Flavor", "Weight"))))
LABELLED = [
    *(Labelled(Document(f"shoe {n}", SHOES), {"Brand": ("A", "B"), "Color": ()}) for n in range(9)),
    *(Labelled(Document(f"tea {n}", TEA), {"Flavor": ("mint",)}) for n in range(5)),
]


def flat(sampling, epoch=0):
    return [e for batch in epoch_examples(LABELLED, sampling, epoch) for e in batch]


def test_every_document_once_in_batches_whose_neighbours_share_a_prefix():
    sampling = Sampling(batch_documents=4, documents_per_prefix=2)
    batches = epoch_examples(LABELLED, sampling, 3)
    assert [len(b) for b in batches] == [4, 4, 4, 2]
    assert sorted(e.document.text for b in batches for e in b) == sorted(i.document.text for i in LABELLED)
    orders = Counter(e.document.schema for e in flat(sampling))
    assert max(orders.values()) > 1 and len(orders) > 2


def test_an_epoch_is_a_function_of_seed_and_number():
    assert flat(Sampling(), 1) == flat(Sampling(), 1)
    assert flat(Sampling(), 1) != flat(Sampling(), 2) != flat(Sampling(seed=1), 2)


def test_one_of_several_values_is_drawn_anew():
    drawn = {e.answers["Brand"] for epoch in range(4) for e in flat(Sampling(), epoch) if "Brand" in e.answers}
    assert drawn == {"A", "B"}


@pytest.mark.parametrize("rate, expected", [(0, 0), (1, 3 * 9 + 5), (0.5, 16)])
def test_absent_attributes_are_taught_at_their_rate_in_gold_or_not(rate, expected):
    counts = [
        sum(a == "" for e in flat(Sampling(negatives=rate), epoch) for a in e.answers.values()) for epoch in "abc"
    ]
    assert sum(counts) / 3 == pytest.approx(expected, abs=0 if rate in (0, 1) else 6)


@pytest.mark.parametrize("negatives", [0, 1])
def test_what_nothing_is_known_of_is_never_taught_and_moves_no_other_draw(negatives):
    sampling = Sampling(negatives=negatives)
    unknown = [Labelled(item.document, {**item.values, "Color": None}) for item in LABELLED]
    for known, without in zip(
        flat(sampling), (e for b in epoch_examples(unknown, sampling, 0) for e in b), strict=True
    ):
        assert without.answers == {name: text for name, text in known.answers.items() if name != "Color"}


@pytest.mark.parametrize("wrong", [{"negatives": 1.5}, {"batch_documents": 0}, {"documents_per_prefix": 0}])
def test_sampling_is_checked(wrong):
    with pytest.raises(SettingsError):
        Sampling(**wrong)


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    model = ModelSpec(str(write_tiny_model(tmp_path_factory.mktemp("base"))), prompting=Prompting.PLAIN)
    return {
        layout: PromptEncoder.from_spec(DecoderSpec(model, DecodeSettings(layout, max_value_tokens=6), COMPACT))
        for layout in Layout
    }


@pytest.fixture
def encoder(encoders):
    return encoders[Layout.BRANCHES]


def written(encoder, lesson):
    """Text of the lesson's targets."""
    return encoder.decode([i for _, i in lesson.targets])


class TestLessons:
    """Byte-level tokens, so that ids read as text."""

    def example(self, **answers):
        example = flat(Sampling(negatives=0))[0]
        return type(example)(Document("a red shoe", SHOES), answers)

    def test_values_and_absences(self, encoder):
        lesson = LessonMaker(encoder).lesson(self.example(Color="red", Size=""))
        assert written(encoder, lesson) == " red\n\n"
        own = encoder.decode(lesson.ids)
        assert own == "a red shoe\n\nColor:Size: red"  # no stub that teaches nothing; no terminator is fed

    def test_gaps_keeps_every_stub(self, encoders):
        encoder = encoders[Layout.GAPS]
        lesson = LessonMaker(encoder).lesson(self.example(Color="red"))
        assert encoder.decode(lesson.ids) == "a red shoe\n\nBrand:\nColor:\nSize:\nStyle: red"

    def test_a_value_that_is_too_long_teaches_no_end(self, encoder):
        lesson = LessonMaker(encoder).lesson(self.example(Color="dark red"))
        assert written(encoder, lesson) == " dark "

    def test_the_control_writes_every_key(self, encoder):
        lesson = LessonMaker(encoder, autoregressive=True).lesson(self.example(Brand="dark red", Size=""))
        answer = "Brand: dark\nColor:\nSize:\nStyle:\n"
        assert encoder.decode(lesson.ids) == "a red shoe\n\n" + answer[:-1]
        assert written(encoder, lesson) == "Brand: dark\nColor:Size:\nStyle:"  # absences not drawn carry no loss
        line = [*lesson.prefix, *lesson.ids, encoder.newline_id]
        assert all(line[len(lesson.prefix) + row + 1] == id_ for row, id_ in lesson.targets)
