"""Steps over buffers that stay where they are: equal to the oracle, and nothing in them that a CUDA graph cannot hold.

A CPU records nothing. Everything else is what a GPU runs: buckets, padding, the arena, ids that are fed before the host
has read them. `recorded` stands for the recording: the same function over the same buffers, watched.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
import torch

from hpd_core import decode as decoding
from hpd_core import gathered, graphs, mask
from hpd_core.buffers import Buffers, StepShape, bucket
from hpd_core.decode import Decoder
from hpd_core.flight import Reading
from hpd_core.gathered import merged
from hpd_core.graphs import GraphRunner, Unrecordable
from hpd_core.model import Model
from hpd_core.rows import Counts
from hpd_core.serial import decode_serial
from tests.core.test_exactness import WAYS, _forced, assert_equal, settings_of, worst
from tests.core.test_trie import assert_same, bounded
from tests.core.tiny import CONFIGS, STOP_IDS, prompts_of, tiny_model

SCHEDULES = [{}, {"tokens_per_step": 16, "max_slots": 9}, {"tokens_per_step": 31, "max_slots": 40, "kv_mib": 1}]


@pytest.fixture
def recorded(monkeypatch):
    """Runs shapes as a GPU would: first as they are, then recorded, then replayed. What replays did, by shape."""
    replays: Counter[StepShape] = Counter()

    def record(self, buffers):
        assert self._outputs[buffers.shape.rows].logits.any()  # made by the first step of the shape

        def replay():
            replays[buffers.shape] += 1
            with Unrecordable() as found:
                self._run(buffers)
            assert not found.names

        return replay

    monkeypatch.setattr(GraphRunner, "_recorded", record)
    return replays


def decoder_of(model, settings, **others):
    return Decoder(model, settings, STOP_IDS, keep_logits=True, graphs=True, **others)


def check(model, prompts, settings, same=assert_equal, forced=None):
    counts = Counts()
    decoder = decoder_of(model, settings)
    got = decoder.decode(prompts, counts, forced)
    for n, prompt in enumerate(prompts):
        same(got[n], decode_serial(model, prompt, settings, STOP_IDS, forced and forced[n]))
    assert decoder._flight is None and all(slab.is_empty for slab in decoder._pool.slabs)
    return decoder, counts


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("layout, visibility", WAYS)
@pytest.mark.parametrize("number, schedule", enumerate(SCHEDULES))
def test_equals_the_oracle(models, recorded, kind, layout, visibility, number, schedule):
    settings = settings_of(layout, visibility, **schedule)
    prompts = prompts_of(number, [1, 17, 33, 5, 12], schemas=1 + number, document_block=(1, 8, 1)[number])
    _, counts = check(models(kind), prompts, settings)
    assert counts.decode_rows == counts.slot_steps > 0


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("layout, visibility", WAYS)
@pytest.mark.parametrize("drafts", [0, 3])
def test_closed_values_and_drafts_equal_the_oracle(models, recorded, kind, layout, visibility, drafts):
    if drafts and visibility == "causal":
        pytest.skip("drafts are for isolated slots")
    settings = settings_of(layout, visibility, max_value_tokens=8, draft_tokens=drafts, max_slots=9)
    for seed in range(2):
        check(models(kind), bounded(seed, (9, 33, 5, 21)), settings, assert_same)


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("layout, visibility", WAYS)
def test_taught_values_equal_the_oracle(models, kind, layout, visibility):
    prompts = prompts_of(9, [12, 26, 7], prefix=40)
    for length in (1, 5):
        check(models(kind), prompts, settings_of(layout, visibility), forced=_forced(prompts, 2, length))


def test_a_margin_and_prompts_without_a_prefix_equal_the_oracle(models):
    settings = settings_of(*WAYS[2], absent_margin=3.0)
    check(models("llama"), prompts_of(4, [8, 12, 3], prefix=0), settings)
    mixed = [*prompts_of(4, [8, 12], prefix=0), *prompts_of(5, [9], prefix=20)]
    check(models("gemma3"), mixed, settings_of(*WAYS[0]))


@pytest.mark.parametrize("shown", [True, False], ids=["one key shown", "one key hidden"])
@pytest.mark.parametrize("way", WAYS)
def test_a_wrong_mask_shows(models, monkeypatch, way, shown):
    prompts, settings = prompts_of(10, [14, 9]), settings_of(*way)
    forced = _forced(prompts, 3, length=5)
    expected = decode_serial(models("gemma3"), prompts[0], settings, STOP_IDS, forced[0])
    rule = mask.visible

    def mutated(q, x, layout, visibility, window=None):
        sees = rule(q, x, layout, visibility, window)
        queries, keys = q.expand_queries(), x.expand_keys()
        value = queries.value_index > 0  # those of a step without prefill
        if shown:
            return sees | ((keys.stub == queries.stub + 1) & (keys.value_index == 0) & value)
        own_end = keys.position == queries.position - queries.value_index
        return sees & ~((keys.value_index == 0) & (keys.stub == queries.stub) & own_end & value)

    def difference():
        return worst(decoder_of(models("gemma3"), settings).decode(prompts, Counts(), forced)[0], expected)

    assert difference() < 1e-10
    monkeypatch.setattr(mask, "visible", mutated)
    assert difference() > 1e-3


@pytest.mark.parametrize("sink, reaches", [(1, False), (0, True)], ids=["as it is", "one cell for void and sink"])
def test_padding_of_a_poisoned_row_reaches_nobody(monkeypatch, sink, reaches):
    """Padding rows are copies of the first row, NaN and all: they go where nobody reads."""
    monkeypatch.setattr("hpd_core.buffers.SINK", sink)
    model, settings = tiny_model("llama"), settings_of(*WAYS[0], max_slots=100)
    prompts = prompts_of(13, [30, 9], attributes=5)  # the longer one comes first
    forced = [[list(values) for values in document] for document in _forced(prompts, 5)]
    fed = {i for p in prompts for i in (*p.memory_ids, *p.shared.prefix)} | {i for d in forced for v in d for i in v}
    token = next(i for i in range(64) if i not in fed and i not in STOP_IDS)
    with torch.no_grad():
        model.hf.get_input_embeddings().weight[token] = float("nan")
    alone = decoder_of(model, settings).decode(prompts[1:], Counts(), forced[1:])[0]
    forced[0][0][1] = token
    poisoned, clean = decoder_of(model, settings).decode(prompts, Counts(), forced)
    assert not poisoned[0].is_finite
    assert all(s.is_finite for s in clean) is not reaches
    if not reaches:
        assert_equal(clean, alone)


def test_buffers_and_keys_stay_where_they_are(models):
    decoder = decoder_of(models("llama"), settings_of(*WAYS[0]))
    prompts = prompts_of(0, [1, 17, 9], schemas=2)

    def addresses():
        runner = decoder._graphs
        tensors = [runner._latest, runner.arena.position, *(t for pair in runner.arena.layers.values() for t in pair)]
        tensors += [t for b in runner._buffers.values() for t in (b.whole, b.prefix_grid, *b.parts.values())]
        return [t.data_ptr() for t in tensors] + [t.data_ptr() for o in runner._outputs.values() for t in o]

    first = decoder.decode(prompts, Counts())
    before = addresses()
    for again, slots in zip(decoder.decode(prompts, Counts()), first, strict=True):
        assert_equal(again, slots)
    assert addresses() == before and len(set(before)) > 40


@pytest.mark.parametrize("cells, most", [(64, 64), (16384, 2)], ids=["the arena moves", "too many shapes"])
def test_what_was_recorded_is_forgotten_where_it_must_be(models, recorded, monkeypatch, cells, most):
    monkeypatch.setattr(decoding, "_CELLS", cells)
    monkeypatch.setattr(decoding.SlabPool, "_documents", lambda *_: 2)
    monkeypatch.setattr(graphs, "_MOST_SHAPES", most)
    monkeypatch.setattr(graphs, "_ROWS", 4)
    prompts = prompts_of(3, [5, 30, 90, 150, 70, 3, 8], schemas=3)
    decoder, _ = check(models("qwen3"), prompts, settings_of(*WAYS[1], tokens_per_step=16, max_slots=12))
    assert decoder._graphs.arena.version > 0 if cells == 64 else len(decoder._graphs._buffers) <= 2


def test_a_step_that_fails_leaves_nothing_behind(models, monkeypatch):
    decoder = decoder_of(models("llama"), settings_of(*WAYS[2]))
    prompts = prompts_of(14, [9, 5])
    expected = decoder.decode(prompts, Counts())
    calls, step = iter(range(100)), GraphRunner.step

    def failing(*arguments):
        if next(calls) == 1:
            raise MemoryError("out of memory")
        return step(*arguments)

    monkeypatch.setattr(GraphRunner, "step", failing)
    with pytest.raises(MemoryError):
        decoder.decode(prompts, Counts())
    assert not decoder._pool.slabs and decoder._flight is None
    for a, b in zip(decoder.decode(prompts, Counts()), expected, strict=True):
        assert_equal(a, b)


class TestWhatCannotBeRecorded:
    @pytest.mark.parametrize("kind", CONFIGS)
    def test_none_of_it_is_in_these_models(self, models, kind):
        decoder = decoder_of(models(kind), settings_of(*WAYS[0]))
        decoder._graphs.records = None  # as on a GPU before the first step
        prompts = prompts_of(0, [9])
        decoder._graphs._recorded = lambda buffers: lambda: decoder._graphs._run(buffers)
        decoder.decode(prompts, Counts())
        assert decoder._graphs.records is True

    @pytest.mark.parametrize(
        "asks",
        [
            lambda x: x.sum().item(),
            lambda x: bool((x > 0).any()),
            lambda x: x[x > 0],
            lambda x: x.nonzero(),
            lambda x: torch.where(x > 0),
            lambda x: torch.tensor([1.0]) + x,
            lambda x: x.repeat_interleave(torch.ones(x.shape[-1], dtype=torch.int64), -1),
            lambda x: x.masked_fill_(x > 1e9, 0.0).unique(),
        ],
    )
    def test_a_model_that_holds_it_runs_unrecorded(self, models, asks, caplog):
        model = models("llama")
        hook = model.hf.lm_head.register_forward_pre_hook(lambda _, arguments: (asks(arguments[0]), None)[1])
        prompts = prompts_of(0, [9, 4])
        try:
            decoder = decoder_of(model, settings_of(*WAYS[0]))
            decoder._graphs.records = None
            with caplog.at_level("INFO"):
                got = decoder.decode(prompts, Counts())
        finally:
            hook.remove()
        assert decoder._graphs.records is False and "not recorded as CUDA graphs, as they hold aten::" in caplog.text
        for a, b in zip(got, decoder_of(model, settings_of(*WAYS[0])).decode(prompts, Counts()), strict=True):
            assert_equal(a, b)

    def test_a_recording_that_fails_is_said_and_changes_nothing(self, models, caplog):
        """There is no CUDA here, so that every recording fails."""
        decoder = decoder_of(models("llama"), settings_of(*WAYS[0]))
        decoder._graphs.records = True
        prompts = prompts_of(0, [9, 4])
        if torch.cuda.is_available():
            pytest.skip("there is a CUDA device")
        for prompt, slots in zip(prompts, decoder.decode(prompts, Counts()), strict=True):
            assert_equal(slots, decode_serial(models("llama"), prompt, decoder.settings, STOP_IDS))
        assert decoder._graphs.records is False and "not recorded as CUDA graphs: " in caplog.text


class TestFlights:
    def test_the_host_reads_a_step_while_the_next_one_runs(self, models, monkeypatch):
        launched, late = [], []
        step, read = GraphRunner.step, Reading.read
        monkeypatch.setattr(GraphRunner, "step", lambda *a: (launched.append(1), step(*a))[1])
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
        decoder._graphs.step = lambda feeds, *rest: (
            fed.append(sum(len(f.ids) for f in feeds)),
            step(decoder._graphs, feeds, *rest),
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


def test_buckets():
    sizes = sorted({bucket(n) for n in range(1, 200)})
    assert sizes == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256]
    assert all(n <= bucket(n) <= max(n, 1.5 * n - 0.5) for n in range(1, 2000))
    assert [bucket(n, 64) for n in (0, 1, 64, 65, 96, 97, 129, 300)] == [64, 64, 64, 96, 96, 128, 192, 384]


def test_a_bucket_is_padded_with_copies_that_go_to_the_sink(models, monkeypatch):
    seen, fill = [], Buffers.fill

    def watched(self, feeds, *rest):
        fill(self, feeds, *rest)
        seen.append((sum(len(f.ids) for f in feeds), {name: t.tolist() for name, t in self.parts.items()}))

    monkeypatch.setattr(Buffers, "fill", watched)
    prompts = prompts_of(1, [9, 12, 5, 30, 2], attributes=7)
    decoder_of(models("llama"), settings_of(*WAYS[2], tokens_per_step=512)).decode(prompts, Counts())
    padded = [(rows, parts) for rows, parts in seen if rows < len(parts["ids"])]
    assert padded
    for rows, parts in padded:
        assert set(parts["cells"][rows:]) == {1} and min(parts["cells"][:rows]) > 1
        assert len(set(parts["cells"][:rows])) == rows
        for name in ("ids", "source", "positions", "stubs", "indices", "at"):
            assert set(parts[name][rows:]) == {parts[name][0]}


def test_parts_merge_to_the_whole_whatever_a_blind_part_holds():
    torch.manual_seed(0)
    scores, values = torch.randn(5, 2, 9, dtype=torch.float64), torch.randn(9, 3, dtype=torch.float64)
    scores[1, :, :4] = scores[2, :, 4:] = float("-inf")
    parts, sums = [], []
    for keys in (slice(0, 4), slice(4, 9)):
        parts.append(torch.softmax(scores[..., keys], -1) @ values[keys])  # NaN where all is -inf
        sums.append(torch.logsumexp(scores[..., keys], -1))
    whole = torch.softmax(scores, -1) @ values
    assert torch.isnan(parts[0][1]).all() and torch.allclose(merged(torch.stack(parts), torch.stack(sums)), whole)
    parts[1][3], sums[1][3] = float("nan"), float("nan")
    assert torch.isnan(merged(torch.stack(parts), torch.stack(sums))[3]).all()


def test_off_on_a_cpu_unless_asked_for_and_where_the_settings_say_so(models, monkeypatch):
    settings = settings_of(*WAYS[0])
    assert Decoder(models("llama"), settings, STOP_IDS)._graphs is None
    with pytest.raises(ValueError, match="cuda_graphs is 'no': must be true or false"):
        replace(settings, cuda_graphs="no")
    model = Model(models("llama").hf)
    monkeypatch.setattr(decoding, "Arena", lambda *_: None)
    monkeypatch.setattr(decoding, "GraphRunner", lambda *_: "graphs")
    model.device = torch.device("cuda")
    assert Decoder(model, settings, STOP_IDS)._graphs is None
    settings = replace(settings, cuda_graphs=True)
    assert Decoder(model, settings, STOP_IDS)._graphs == "graphs"
    assert Decoder(model, settings, STOP_IDS, fast=False)._graphs is None
    model.is_spread = True
    assert Decoder(model, settings, STOP_IDS)._graphs is None


def test_void_is_the_cell_of_places_without_a_range():
    read = gathered.Ranges(torch.tensor([5, 0, 9]), torch.tensor([2, 0, 3]), 3, torch.zeros(3), torch.zeros(3))
    assert read.cells().tolist() == [[5, 6, 0], [0, 0, 0], [9, 10, 11]]
