"""Steps that are read while the next one runs, and documents that wait until they are worth a step with prefill."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from hpd_core.decode import Decoder
from hpd_core.flight import Reading
from hpd_core.graphs import GraphRunner
from hpd_core.rows import Counts
from tests.core.graphed import check, decoder_of
from tests.core.test_exactness import WAYS, _forced, settings_of
from tests.core.test_trie import assert_same, bounded
from tests.core.tiny import STOP_IDS, prompts_of


class TestFlights:
    def test_the_host_reads_a_step_while_the_next_one_runs(self, models, monkeypatch):
        launched, late = [], []
        step, read = GraphRunner.step, Reading.read
        monkeypatch.setattr(GraphRunner, "step", lambda *a, **k: (launched.append(1), step(*a, **k))[1])
        begun = Reading.__init__
        monkeypatch.setattr(Reading, "__init__", lambda self, o: (begun(self, o), setattr(self, "n", len(launched)))[0])
        monkeypatch.setattr(Reading, "read", lambda self: (late.append(len(launched) - self.n), read(self))[1])
        prompts = prompts_of(1, [9, 12])
        forced = _forced(prompts, 1, length=6)
        check(models("llama"), prompts, settings_of(*WAYS[2]), forced=forced)
        assert late == [1, 1, 1, 1, 0] and len(launched) == 5

    def test_a_slot_leaves_one_step_late_and_what_was_fed_of_it_counts_for_nothing(self, models):
        settings = settings_of(*WAYS[2], tokens_per_step=512)
        prompts = prompts_of(1, [9, 12, 30])
        plain, ahead = Counts(), Counts()
        Decoder(models("llama"), settings, STOP_IDS, graphs=False).decode(prompts, plain)
        fed, step = [], GraphRunner.step
        decoder = decoder_of(models("llama"), settings)
        decoder._graphs.step = lambda feeds, *rest, **others: (
            fed.append(sum(len(f.ids) for f in feeds)),
            step(decoder._graphs, feeds, *rest, **others),
        )[1]
        decoder.decode(prompts, ahead)
        assert (ahead.steps, ahead.slot_steps, ahead.decode_rows) == (plain.steps, plain.slot_steps, plain.decode_rows)
        assert plain.decode_rows < sum(fed) <= plain.decode_rows + plain.slots

    @pytest.mark.parametrize("why", ["causal", "drafts", "closed"])
    def test_where_the_host_has_to_choose_it_reads_at_once(self, models, monkeypatch, why):
        def never(*_):
            raise AssertionError("read late")

        monkeypatch.setattr(Reading, "__init__", never)
        way = WAYS[1] if why == "causal" else WAYS[2]
        settings = settings_of(*way, draft_tokens=2 * (why == "drafts"), max_value_tokens=8)
        prompts = prompts_of(0, [9, 12], max_value_tokens=8)
        if why == "closed":
            prompts = [replace(p, allowed=(*p.allowed[:3], p.allowed[0])) for p in bounded(0)]
        check(models("llama"), prompts, settings, assert_same)


def kinds_of_steps(monkeypatch, model, prompts, settings, **others):
    steps, run = [], Decoder._run

    def watched(self, feeds, owners, counts):
        steps.append((sum(len(f.ids) for f in feeds), sum(f.is_prefill for f in feeds)))
        run(self, feeds, owners, counts)

    monkeypatch.setattr(Decoder, "_run", watched)
    Decoder(model, settings, STOP_IDS, **others).decode(prompts, Counts())
    return steps


def test_documents_wait_until_they_are_worth_a_step_with_prefill(models, monkeypatch):
    rng = random.Random(4)
    prompts = prompts_of(4, [rng.randrange(8, 20) for _ in range(40)])

    def steps(graphs_on, **sizes):
        settings = settings_of(*WAYS[2], **sizes)
        return kinds_of_steps(monkeypatch, models("llama"), prompts, settings, graphs=graphs_on)

    at_once, waited = (steps(on, tokens_per_step=200, max_slots=24) for on in (False, True))
    mixed = [prefills for _, prefills in waited if prefills]
    assert len(mixed) < sum(1 for _, prefills in at_once if prefills)
    assert sum(mixed) == 40 and min(mixed[:-1]) >= 2  # of 4 slots each: a quarter of 24
    full = [rows for rows, prefills in steps(True, tokens_per_step=60, max_slots=400) if prefills]
    assert set(full[:-1]) == {60}
