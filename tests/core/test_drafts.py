"""Drafts looked up in the document: they save steps and change no token, right or wrong."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpd_core import decode as decoding
from hpd_core.cache import Slab
from hpd_core.constraint import constraints
from hpd_core.decode import Decoder
from hpd_core.drafts import Lookup
from hpd_core.model_spec import ModelSpec
from hpd_core.rows import Counts
from hpd_core.schema import Attribute, Schema
from hpd_core.serial import decode_serial
from hpd_core.settings import DecodeSettings, SettingsError
from hpd_core.slots import ActiveDocument
from hpd_core.spec import DecoderSpec
from tests.core.test_enforce import DOCUMENTS, WRITTEN
from tests.core.test_exactness import WAYS, settings_of
from tests.core.test_trie import assert_same, bounded
from tests.core.tiny import CONFIGS, STOP_IDS, VOCABULARY, prompts_of

ISOLATED = [WAYS[0], WAYS[2]]
#: Fewer terminators than elsewhere, so that values are long enough to be guessed.
STOPS = frozenset(range(0, VOCABULARY, 20))


def with_drafts(layout, visibility, **others):
    return settings_of(layout, visibility, **{"max_value_tokens": 9, "draft_tokens": 3, "draft_rows": 999, **others})


def decode(model, prompts, settings, stop_ids=STOPS, *, fast=True, forced=None):
    counts = Counts()
    decoder = Decoder(model, settings, stop_ids, fast=fast, keep_logits=True)
    return decoder.decode(prompts, counts, forced), counts


@pytest.fixture
def guess(monkeypatch):
    """Makes drafts out of the answers [document][slot]: each id is right with the given probability. Unless all are,
    half of the drafts are left out, so that cells of rejected ones lie about for a while."""

    def install(answers, right: float, seed: int = 0) -> None:
        rng = random.Random(seed)

        def draft(self, n, most):
            slot, guessed = self.slots[n], []
            for i in answers[self.number][n].ids[len(slot.ids) :][:most]:
                if rng.random() >= right:  # another one, such as may be written
                    may = slot.allowed(slot.ids + guessed) if slot.allowed else range(VOCABULARY)
                    i = rng.choice([j for j in may if j != i] or [i])
                guessed.append(i)
            slot.draft([] if right < 1 and rng.random() < 0.5 else guessed)

        monkeypatch.setattr(ActiveDocument, "draft", draft)

    return install


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("layout, visibility", ISOLATED)
@pytest.mark.parametrize("fast, seed, right", [(True, 0, 0.6), (False, 1, 0.6), (True, 2, 1.0), (True, 3, 0.0)])
def test_equals_the_oracle(models, guess, kind, layout, visibility, fast, seed, right):
    model, settings = models(kind), with_drafts(layout, visibility)
    prompts = prompts_of(seed, [9, 33, 5], schemas=2, max_value_tokens=9)
    expected = [decode_serial(model, p, settings, STOPS) for p in prompts]
    guess(expected, right)
    got, counts = decode(model, prompts, settings, fast=fast)
    for slots, truth in zip(got, expected, strict=True):
        assert_same(slots, truth)
    assert counts.drafted_tokens >= counts.accepted_tokens
    assert (counts.accepted_tokens == counts.drafted_tokens > 0) == (right == 1.0)
    assert (counts.accepted_tokens > 0) == (right > 0)
    assert counts.decode_rows == sum(len(s.ids) - 1 for d in got for s in d)


@pytest.mark.parametrize("layout, visibility", ISOLATED)
@pytest.mark.parametrize("kind, fast", [("llama", True), ("gemma3", False)])
def test_equals_the_oracle_with_forced_ids_and_copies(models, guess, kind, layout, visibility, fast):
    """Drafts behind forced ids, through them and against constraints."""
    model, settings, total = models(kind), with_drafts(layout, visibility, max_value_tokens=8), Counts()
    for seed in range(3):
        prompts = bounded(seed, lengths=(9, 33, 5))
        copies = constraints(WRITTEN, DOCUMENTS[2], Schema("s", (Attribute("A"),)), "n/a")
        prompts = [replace(p, allowed=(*p.allowed[:3], *copies)) for p in prompts]
        expected = [decode_serial(model, p, settings, STOP_IDS) for p in prompts]
        guess(expected, 0.7)
        got, counts = decode(model, prompts, settings, STOP_IDS, fast=fast)
        for slots, truth in zip(got, expected, strict=True):
            assert_same(slots, truth)
        total += counts
    assert total.forced_tokens > 0 and total.drafted_tokens > total.accepted_tokens > 0


@pytest.mark.parametrize("tokens_per_step, max_slots", [(8, 5), (64, 9)])
def test_companions_and_schedule_do_not_matter(models, guess, tokens_per_step, max_slots):
    prompts = prompts_of(5, [40, 3, 22, 14, 7], schemas=2, max_value_tokens=9)
    alone = [decode_serial(models("qwen3"), p, settings_of(*WAYS[2], max_value_tokens=9), STOPS) for p in prompts]
    guess(alone, 0.5)
    settings = with_drafts(*WAYS[2], tokens_per_step=tokens_per_step, max_slots=max_slots, draft_rows=12)
    for slots, truth in zip(decode(models("qwen3"), prompts, settings)[0], alone, strict=True):
        assert_same(slots, truth)


def test_right_drafts_save_steps_and_none_are_made_beyond_the_rows_of_a_step(models, guess, monkeypatch):
    prompts = prompts_of(2, [9, 30, 5], max_value_tokens=9)
    plain, without = decode(models("llama"), prompts, with_drafts(*WAYS[2], draft_tokens=0))
    guess(plain, 1.0)
    widths, make = [], decoding.make_step

    def watched(feeds, *arguments, **others):
        widths.append((sum(len(f.ids) for f in feeds), sum(len(f.wanted) for f in feeds if not f.is_prefill)))
        return make(feeds, *arguments, **others)

    monkeypatch.setattr(decoding, "make_step", watched)
    _, most = decode(models("llama"), prompts, with_drafts(*WAYS[2]))
    assert most.steps < without.steps and most.decode_rows == without.decode_rows == without.slot_steps
    assert most.slot_steps == sum(wanted for _, wanted in widths) - most.drafted_tokens < most.decode_rows
    assert most.generated_tokens == without.generated_tokens and without.drafted_tokens == 0
    widths.clear()
    _, some = decode(models("llama"), prompts, with_drafts(*WAYS[2], draft_rows=10))
    assert 0 < some.drafted_tokens < most.drafted_tokens
    live = 12  # slots at the start; a step of at most 10 rows has room for drafts once some have ended
    assert max(rows for rows, _ in widths[2:]) <= live
    assert decode(models("llama"), prompts, with_drafts(*WAYS[2], draft_rows=1))[1].drafted_tokens == 0


def test_taught_ids_are_checked_against_drafts_too(models):
    """The lookup itself: values that are copies of the document are guessed from their first id on."""
    prompts = prompts_of(8, [25, 12], max_value_tokens=9)
    forced = [[[*p.document[n : n + 5], 20] for n in range(4)] for p in prompts]
    settings = with_drafts(*WAYS[2])
    drafted, counts = decode(models("llama"), prompts, settings, forced=forced)
    plain, without = decode(models("llama"), prompts, replace(settings, draft_tokens=0), forced=forced)
    for a, b in zip(drafted, plain, strict=True):
        assert_same(a, b)
    assert counts.accepted_tokens > 8 and counts.steps < without.steps


def test_the_last_id_of_a_value_is_never_drafted_so_that_reserved_cells_suffice(models, guess, monkeypatch):
    """Values as long as K_max, with drafts that are wrong: not one cell more than without."""
    settings = with_drafts(*WAYS[2], max_value_tokens=5, draft_tokens=9)
    prompts = prompts_of(1, [9], max_value_tokens=5)
    expected = [decode_serial(models("llama"), p, settings, frozenset()) for p in prompts]
    assert all(s.truncated for s in expected[0])
    guess(expected, 0.3)
    used, append = [], Slab.append

    def watched(self, block, count):
        cells = append(self, block, count)
        used.append(self.used[block])
        return cells

    monkeypatch.setattr(Slab, "append", watched)
    got, counts = decode(models("llama"), prompts, settings, frozenset())
    assert_same(got[0], expected[0])
    copied = len(prompts[0].shared.prefix)
    assert max(used) <= copied + len(prompts[0].memory_ids) + 4 * 4 and counts.drafted_tokens > counts.accepted_tokens


def test_cells_that_are_given_back_come_first_and_are_seen_by_nobody_until_then(models):
    slab = Slab(2, 8, models("llama").device)
    slab.append(0, 3)
    cells = slab.append(1, 4)
    slab.position[1, :4] = 7
    slab.give_back(1, cells[2:])
    assert slab.position[1].tolist() == [7, 7, *[2**62] * 6]
    assert slab.append(1, 3) == [10, 11, 12] and slab.used[1] == 5
    with pytest.raises(IndexError, match="8 cells is asked for 9"):
        slab.append(1, 4)
    slab.give_back(1, [10])
    slab.release(1)
    assert slab.append(1, 1) == [8]


@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=5), st.integers(0, 4))
def test_lookup_follows_the_longest_end_at_its_first_place(ids, written, most):
    found = []
    for length in range(len(written), 0, -1):
        end = written[-length:]
        places = [n for n in range(len(ids) - length + 1) if ids[n : n + length] == end]
        if places:
            found = ids[places[0] + length :][:most]
            break
    assert list(Lookup(ids).after(written, most)) == found


def test_settings():
    with pytest.raises(SettingsError, match="draft_tokens needs visibility 'isolated'"):
        DecodeSettings(layout="gaps", visibility="causal", draft_tokens=2)
    with pytest.raises(SettingsError, match="draft_rows is 0"):
        DecodeSettings(draft_rows=0)
    off, on = (DecoderSpec(ModelSpec("org/name"), DecodeSettings(draft_tokens=n)).as_dict() for n in (0, 4))
    assert set(on["settings"]) - set(off["settings"]) == {"draft_tokens", "draft_rows"}
