"""Values that change places between training texts: what is replaced, what is left, that every draw is repeatable."""

from __future__ import annotations

import random

import pytest

from hpd_core.examples import Labelled, Sampling, epoch_examples
from hpd_core.recombine import Recombiner
from hpd_core.schema import Attribute, Document, Schema
from hpd_core.settings import SettingsError

SHOES = Schema("shoes", tuple(map(Attribute, ("Brand", "Model", "Color"))))
TEA = Schema("tea", (Attribute("Brand"),))
OTHER = (Document("Zed Runner in teal", SHOES), {"Brand": ("Zed",), "Color": ("teal", "not there"), "Model": None})


def recombined(text: str, rate: float = 1.0, seed: int = 0, schema: Schema = SHOES, **answers: str):
    document, new = Recombiner([OTHER]).recombine(Document(text, schema), answers, rate, random.Random(seed))
    return document.text, new


def test_each_value_gives_way_to_anothers_value_of_its_attribute():
    text, answers = recombined("Acme Moon sneaker, red", Brand="Acme", Color="red", Model="")
    assert text == "Zed Moon sneaker, teal"
    assert answers == {"Brand": "Zed", "Color": "teal", "Model": ""}


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        ("red Acme, red laces", {"Color": "red"}),  # which of the two is meant?
        ("a Hundred shoes", {"Color": "red"}),  # no word of its own
        ("Acme Acme-One sneaker", {"Model": "Acme-One", "Brand": "Acme"}),  # brand and part of the model's name
        ("Acme One sneaker", {"Model": "Acme One", "Brand": "Acme"}),
        ("A sneaker in RED", {"Color": "red"}),  # written otherwise
        ("A sneaker", {"Color": "red", "Brand": ""}),
        ("Moon shoe", {"Model": "Moon"}),  # nobody lends a model
    ],
)
def test_what_is_not_clear_stays(text, answers):
    assert recombined(text, **answers) == (text, answers)


def test_other_schemas_lend_nothing_and_rate_0_changes_nothing():
    assert recombined("Acme tea", schema=TEA, Brand="Acme") == ("Acme tea", {"Brand": "Acme"})
    assert recombined("Acme shoe", rate=0, Brand="Acme") == ("Acme shoe", {"Brand": "Acme"})


def test_the_rate_is_that_of_values():
    changed = sum(
        recombined("Acme shoe", rate=0.3, seed=seed, Brand="Acme")[1] == {"Brand": "Zed"} for seed in range(400)
    )
    assert changed / 400 == pytest.approx(0.3, abs=0.07)


def test_an_epoch_recombines_repeatably_and_answers_still_stand_in_the_text():
    labelled = [
        Labelled(Document(f"Brand{n} shoe, tone{n}", SHOES), {"Brand": (f"Brand{n}",), "Color": (f"tone{n}",)})
        for n in range(30)
    ]
    sampling = Sampling(negatives=0, recombine=0.5)
    epochs = [[e for batch in epoch_examples(labelled, sampling, epoch) for e in batch] for epoch in (0, 0, 1)]
    assert epochs[0] == epochs[1] != epochs[2]
    texts = {item.document.text for item in labelled}
    assert any(e.document.text not in texts for e in epochs[0])
    for example in epochs[0]:
        assert all(value in example.document.text for value in example.answers.values())


def test_a_rate_beyond_1_is_refused():
    with pytest.raises(SettingsError, match=r"recombine is 1\.5"):
        Sampling(recombine=1.5)
