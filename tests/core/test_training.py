"""The training forward computes what decoding computes: teacher-forced logits of both, in float64."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import pytest
import torch

from hpd_core import training
from hpd_core.decode import Decoder
from hpd_core.lessons import ar_lesson, lesson
from hpd_core.products import Scoring
from hpd_core.prompt import Prompt
from hpd_core.rows import Counts
from hpd_core.settings import Layout, Visibility
from hpd_core.training import make_batch, summed_loss, target_logits
from tests.core.test_exactness import WAYS, settings_of
from tests.core.tiny import CONFIGS, STOP_IDS, VOCABULARY, prompts_of, tiny_model

CPU = torch.device("cpu")
#: Prefix shared by three documents of one schema and two of another; a document of one token.
LENGTHS = [1, 17, 9, 33, 5]


def values_of(prompts: list[Prompt], seed: int) -> list[list[list[int]]]:
    """Values of 0 to K_max - 1 tokens and a terminator, and some of K_max tokens without one."""
    rng = random.Random(seed)
    body = [i for i in range(VOCABULARY) if i not in STOP_IDS]

    def value(most: int) -> list[int]:
        length = rng.randrange(most + 1)
        return [rng.choice(body) for _ in range(length)] + ([0] if length < most else [])

    return [[value(p.max_value_tokens) for _ in p.shared.stubs] for p in prompts]


def decoded_logits(model, prompts, values, layout, visibility):
    """[targets, vocabulary] logits of the decoding path, documents and slots in order."""
    decoder = Decoder(model, settings_of(layout, visibility), STOP_IDS, keep_logits=True)
    slots = [slot for document in decoder.decode(prompts, Counts(), values) for slot in document]
    assert [list(s.ids) for s in slots] == [v for document in values for v in document]
    return torch.cat([s.logits for s in slots])


def trained_logits(model, lessons, layout, visibility):
    """The training forward's, in the order of `decoded_logits`: slot by slot."""
    batch = make_batch(lessons, layout, visibility, CPU)
    return target_logits(model.hf, batch).detach(), batch


def difference(a, b):
    return float((a - b).abs().max()) / max(1.0, float(b.abs().max()))


def case(models, kind, layout, visibility, seed=0):
    prompts = prompts_of(seed, LENGTHS, schemas=2)
    values = values_of(prompts, seed)
    expected = decoded_logits(models(kind), prompts, values, layout, visibility)
    got, batch = trained_logits(
        models(kind), [lesson(p, v, layout) for p, v in zip(prompts, values, strict=True)], layout, visibility
    )
    assert batch.labels.tolist() == [i for document in values for value in document for i in value]
    return got, expected


@pytest.mark.parametrize("kind, way, seed", product(CONFIGS, WAYS, [0, 1]))
def test_teacher_forced_logits_equal_those_of_decoding(models, kind, way, seed):
    got, expected = case(models, kind, *way, seed=seed)
    assert difference(got, expected) < 1e-10


@pytest.mark.parametrize("prefix", [0, 13])
def test_one_document_with_and_without_a_prefix(models, prefix):
    prompts = prompts_of(3, [7], attributes=1, prefix=prefix)
    values = values_of(prompts, 5)
    expected = decoded_logits(models("llama"), prompts, values, *WAYS[0])
    got, _ = trained_logits(models("llama"), [lesson(prompts[0], values[0], Layout.GAPS)], *WAYS[0])
    assert difference(got, expected) < 1e-10


@pytest.mark.parametrize("layout, visibility", WAYS)
def test_slots_that_teach_nothing_change_no_other(models, layout, visibility):
    """A slot left out has the effect of one whose value ended at once: its terminator is never fed."""
    prompts = prompts_of(4, [12, 20])
    values = [[v if n % 2 else [0] for n, v in enumerate(d)] for d in values_of(prompts, 4)]
    wanted = [[v if n % 2 else None for n, v in enumerate(d)] for d in values]
    logits = decoded_logits(models("llama"), prompts, values, layout, visibility)
    taught = [n % 2 == 1 for d in values for n, v in enumerate(d) for _ in v]
    lessons = [lesson(p, v, layout) for p, v in zip(prompts, wanted, strict=True)]
    got, batch = trained_logits(models("llama"), lessons, layout, visibility)
    assert difference(got, logits[taught]) < 1e-10
    full = make_batch([lesson(p, v, layout) for p, v in zip(prompts, values, strict=True)], layout, visibility, CPU)
    assert (len(batch.ids) < len(full.ids)) == (layout is Layout.BRANCHES)


def test_a_shared_prefix_stands_in_the_batch_once():
    prompts = prompts_of(0, LENGTHS, schemas=2)
    lessons = [lesson(p, v, Layout.GAPS) for p, v in zip(prompts, values_of(prompts, 0), strict=True)]
    batch = make_batch(lessons, *WAYS[0], CPU)
    assert len(batch.ids) == 2 * 13 + sum(len(item.ids) for item in lessons)


class TestMutations:
    """A wrong mask or position must show, by far more than the tolerance."""

    def test_one_key_shown(self, models, monkeypatch):
        rule = training.mask.visible

        def mutated(q, x, layout, visibility, window=None):
            queries, keys = q.expand_queries(), x.expand_keys()
            shown = (keys.document == queries.document) & (keys.stub >= 0) & (keys.stub < queries.stub)
            return rule(q, x, layout, visibility, window) | (shown & (keys.value_index == 1))

        prompts, values, lessons = self.lessons()
        expected = decoded_logits(models("llama"), prompts, values, *WAYS[0])
        monkeypatch.setattr(training.mask, "visible", mutated)
        assert difference(trained_logits(models("llama"), lessons, *WAYS[0])[0], expected) > 1e-3

    def test_another_documents_prefix(self, models):
        prompts, values, lessons = self.lessons()
        expected = decoded_logits(models("llama"), prompts, values, *WAYS[0])
        swapped = [replace(item, prefix=lessons[1 - n].prefix) for n, item in enumerate(lessons)]
        assert difference(trained_logits(models("llama"), swapped, *WAYS[0])[0], expected) > 1e-3

    def test_one_position(self, models):
        prompts, values, lessons = self.lessons()
        expected = decoded_logits(models("llama"), prompts, values, *WAYS[0])
        at = next(n for n, k in enumerate(lessons[0].indices) if k == 1)
        positions = [p + (n == at) for n, p in enumerate(lessons[0].positions)]
        first = replace(lessons[0], positions=tuple(positions))
        assert difference(trained_logits(models("llama"), [first, lessons[1]], *WAYS[0])[0], expected) > 1e-3

    def test_another_visibility(self, models):
        prompts, values, lessons = self.lessons()
        expected = decoded_logits(models("llama"), prompts, values, Layout.GAPS, Visibility.CAUSAL)
        assert difference(trained_logits(models("llama"), lessons, *WAYS[0])[0], expected) > 1e-3

    @staticmethod
    def lessons():
        prompts = prompts_of(6, [12, 9], schemas=2)
        values = [[[7, 8, 9, 0]] * 4 for _ in prompts]
        return prompts, values, [lesson(p, v, Layout.GAPS) for p, v in zip(prompts, values, strict=True)]


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_autoregressive_control_is_ordinary_causal_text(models, kind):
    prompts = prompts_of(7, [11, 4], attributes=3)
    values = values_of(prompts, 7)
    taught = [True, False, True]
    lessons = [ar_lesson(p, p.shared.stubs, v, taught) for p, v in zip(prompts, values, strict=True)]
    got, batch = trained_logits(models(kind), lessons, *WAYS[0])
    expected, labels = [], []
    for prompt, document in zip(prompts, values, strict=True):
        line = [*prompt.shared.prefix, *prompt.document]
        wanted = []
        for stub, value, is_taught in zip(prompt.shared.stubs, document, taught, strict=True):
            wanted += range(len(line), len(line) + len(stub))
            line += stub
            wanted += range(len(line), len(line) + len(value)) if is_taught else []
            line += value
        with models(kind).native_attention("sdpa") as hf, torch.inference_mode():
            logits = hf(torch.tensor([line])).logits[0]
        expected += [logits[w - 1] for w in wanted]
        labels += [line[w] for w in wanted]
    assert batch.labels.tolist() == labels
    assert difference(got, torch.stack(expected)) < 1e-10


@pytest.mark.parametrize("kind", CONFIGS)
def test_gradients_of_a_stacked_batch_are_the_sum_over_its_documents(kind):
    prompts = prompts_of(8, [6, 15, 3], schemas=2)
    lessons = [lesson(p, v, Layout.BRANCHES) for p, v in zip(prompts, values_of(prompts, 8), strict=True)]

    def gradients(batches):
        hf = tiny_model(kind).hf
        for batch in batches:
            summed_loss(hf, make_batch(batch, *WAYS[2], CPU)).backward()
        return [p.grad for p in hf.parameters()]

    for whole, parts in zip(gradients([lessons]), gradients([[item] for item in lessons]), strict=True):
        # transformers' norms sum their weights' gradients in float32, whatever the model's type
        assert difference(whole, parts) < 1e-6


def test_softcap_takes_the_same_way_as_decoding(models):
    """No tiny configuration caps its scores, so the plan alone is asked."""
    prompts = prompts_of(9, [5])
    batch = make_batch([lesson(prompts[0], [[7, 0]] * 4, Layout.GAPS)], *WAYS[0], CPU)
    rows = len(batch.ids)
    query, key, value = (torch.randn(rows, heads, 8, dtype=torch.float64) for heads in (4, 2, 2))
    plain = batch.plan.attend(query, key, value, layer=0, scoring=Scoring(0.3))
    loose = batch.plan.attend(query, key, value, layer=0, scoring=Scoring(0.3, softcap=1e6))
    tight = batch.plan.attend(query, key, value, layer=0, scoring=Scoring(0.3, softcap=0.1))
    assert difference(loose, plain) < 1e-9 and difference(tight, plain) > 1e-3


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_sinks_take_their_share_as_in_decoding(models, softcap):
    """A sink is a key of its own whose value is nothing; that of decoding stands in tests/core/test_families.py."""
    batch = make_batch([lesson(prompts_of(9, [5])[0], [[7, 0]] * 4, Layout.GAPS)], *WAYS[0], CPU)
    query, key, value = (torch.randn(len(batch.ids), heads, 8, dtype=torch.float64) for heads in (4, 2, 2))
    sinks = torch.tensor([-50.0, -1.0, 2.0, 50.0], dtype=torch.float64)
    plain = batch.plan.attend(query, key, value, layer=0, scoring=Scoring(0.3, softcap=softcap))
    found = batch.plan.attend(query, key, value, layer=0, scoring=Scoring(0.3, softcap=softcap, sinks=sinks))
    assert difference(found[:, 0], plain[:, 0]) < 1e-9 and found[:, 3].abs().max() < 1e-9  # no share, and all of it
    share = found[:, 1:3] / plain[:, 1:3]
    assert difference(share, share[..., :1].expand_as(share)) < 1e-9 and share.min() > 0 and share.max() < 1
    first = torch.exp(0.3 * (query[0] * key[0].repeat_interleave(2, 0)).sum(-1))  # which sees itself alone
    if softcap is None:
        assert difference(found[0], plain[0] * (first / (first + sinks.exp()))[:, None]) < 1e-9
