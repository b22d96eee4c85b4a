"""`document_block`: a document's tokens see each other in blocks. Everything else stays as it was, chunks included."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from hpd_core.layout import DocumentLayout
from hpd_core.lessons import ar_lesson, lesson
from hpd_core.model_spec import ModelSpec
from hpd_core.recipe import COMPACT, Recipe
from hpd_core.serial import decode_serial
from hpd_core.settings import DecodeSettings, SettingsError
from hpd_core.spec import DecoderSpec
from tests.core.test_exactness import TWINS, WAYS, _forced, assert_equal, decode, settings_of, worst
from tests.core.test_training import decoded_logits, difference, trained_logits, values_of
from tests.core.tiny import CONFIGS, STOP_IDS, prompts_of

LENGTHS = [1, 17, 9, 33, 5]
BLOCKS = [2, 8, 1000]


@pytest.mark.parametrize("kind, way, twin", list(product(CONFIGS, WAYS, TWINS)))
@pytest.mark.parametrize("block", BLOCKS)
def test_equals_the_oracle_whatever_the_schedule(models, kind, way, twin, block):
    prompts = prompts_of(0, LENGTHS, schemas=2, document_block=block)
    expected = [decode_serial(models(kind), p, settings_of(*way, document_block=block), STOP_IDS) for p in prompts]
    for tokens_per_step in (7, 64):
        settings = settings_of(*way, document_block=block, tokens_per_step=tokens_per_step)
        for slots, right in zip(decode(models(kind), prompts, settings, twin=twin), expected, strict=True):
            assert_equal(slots, right)


@pytest.mark.parametrize("kind, way", list(product(CONFIGS, WAYS)))
def test_training_computes_what_decoding_computes(models, kind, way):
    prompts = prompts_of(1, LENGTHS, schemas=2, document_block=8)
    values = values_of(prompts, 1)
    expected = decoded_logits(models(kind), prompts, values, *way)
    lessons = [lesson(p, v, way[0]) for p, v in zip(prompts, values, strict=True)]
    assert difference(trained_logits(models(kind), lessons, *way)[0], expected) < 1e-10


def test_the_control_stays_causal(models):
    causal, blocks = (prompts_of(2, [11, 4], attributes=3, document_block=b) for b in (1, 100))
    values = values_of(causal, 2)
    pair = [
        [ar_lesson(p, p.shared.stubs, v, [True] * 3) for p, v in zip(prompts, values, strict=True)]
        for prompts in (causal, blocks)
    ]
    assert pair[0] == pair[1]


@pytest.mark.parametrize("kind", CONFIGS)
def test_what_a_block_shows_matters(models, kind, monkeypatch):
    """Causal, in blocks and with a block cut short by one position: three different answers."""
    prompts = prompts_of(3, [14, 9])
    forced = _forced(prompts, 3, length=5)

    def answers(block):
        inside = [replace(p, document_block=block) for p in prompts]
        return decode(models(kind), inside, settings_of(*WAYS[2], document_block=block), forced=forced)[0]

    causal, whole = answers(1), answers(100)
    assert worst(causal, whole) > 1e-3
    assert worst(answers(4), whole) > 1e-3 and worst(answers(4), causal) > 1e-3
    whole_blocks = DocumentLayout.chunk_end
    monkeypatch.setattr(DocumentLayout, "chunk_end", lambda self, *span: whole_blocks(self, *span) if span[0] else 7)
    assert worst(answers(100), whole) > 1e-3  # a chunk that splits a block shows too


def test_a_recipe_keeps_it_and_old_recipes_are_causal(tmp_path):
    settings = DecodeSettings(document_block=512)
    Recipe("base", settings, COMPACT).write(tmp_path)
    assert Recipe.read(tmp_path).settings == settings
    path = tmp_path / "hpd.json"
    path.write_text(path.read_text().replace('  "document_block": 512,\n', ""))
    assert Recipe.read(tmp_path).settings.document_block == 1


def test_it_is_part_of_a_decoders_identity_only_where_it_is_used():
    spec = DecoderSpec(ModelSpec("somebody/model"))
    assert "document_block" not in spec.as_dict()["settings"]
    assert replace(spec, settings=DecodeSettings(document_block=9)).as_dict()["settings"]["document_block"] == 9


def test_nonsense_is_refused():
    with pytest.raises(SettingsError, match="document_block is 0: must be at least 1"):
        DecodeSettings(document_block=0)
