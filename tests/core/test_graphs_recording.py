"""What is recorded and when it is forgotten, what cannot be, and what becomes of memory."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
import torch

from hpd_core import decode as decoding
from hpd_core import graphs
from hpd_core.arena import SINK
from hpd_core.decode import Decoder
from hpd_core.graphs import GraphRunner
from hpd_core.model import Model
from hpd_core.rows import Counts
from hpd_core.serial import decode_serial
from hpd_core.settings import SettingsError
from tests.core.graphed import check, decoder_of
from tests.core.test_exactness import WAYS, assert_equal, settings_of
from tests.core.test_trie import assert_same, bounded
from tests.core.tiny import CONFIGS, STOP_IDS, prompts_of


class TestWhatIsForgotten:
    def test_everything_where_the_arena_moves(self, models, recorded, monkeypatch):
        monkeypatch.setattr(decoding, "_CELLS", 64)
        monkeypatch.setattr(decoding.SlabPool, "_documents", lambda *_: 2)
        monkeypatch.setattr(graphs, "_ROWS", 4)
        prompts = prompts_of(3, [5, 30, 90, 150, 70, 3, 8], schemas=3)
        decoder, _ = check(models("qwen3"), prompts, settings_of(*WAYS[1], tokens_per_step=16, max_slots=12))
        assert decoder._graphs.arena.version > 0 and recorded.total() > 0

    def test_one_shape_after_another_where_there_are_too_many(self, models, recorded, monkeypatch):
        monkeypatch.setattr(graphs, "_MOST_SHAPES", 2)
        monkeypatch.setattr(GraphRunner, "_forget", lambda _: pytest.fail("nothing has moved"))
        prompts = prompts_of(3, [5, 30, 90, 150, 70, 3, 8], schemas=3)
        decoder, _ = check(models("qwen3"), prompts, settings_of(*WAYS[1], tokens_per_step=16, max_slots=12))
        runner = decoder._graphs
        assert len(runner._buffers) == 2 and set(runner._replays) <= set(runner._buffers) and recorded.total() > 0

    def test_the_shape_that_was_not_used_for_longest(self, models, recorded, monkeypatch):
        """One, two and three documents by turns; three shapes fit, and what the second call leaves is the first's."""
        made = []
        monkeypatch.setattr(graphs, "_MOST_SHAPES", 3)
        monkeypatch.setattr(
            graphs, "Buffers", lambda shape, *a, new=graphs.Buffers: (made.append(shape), new(shape, *a))[1]
        )
        settings = settings_of(*WAYS[2], tokens_per_step=512)
        prompts = prompts_of(3, [9] * 4)
        forced = [[[1, 2, 3]] * 4] * 4
        decoder = decoder_of(models("llama"), settings)
        for documents in (1, 2, 3, 1, 4, 1, 3, 2):
            decoder.decode(prompts[:documents], Counts(), forced[:documents])
        assert [shape.documents for shape in made] == [1, 2, 3, 4, 2]


class TestMemory:
    @pytest.mark.parametrize(("cache", "way"), [(0, WAYS[0]), (1, WAYS[1]), (0, WAYS[2])])
    def test_a_bounded_arena_is_made_once_and_holds_prefixes_too(self, models, recorded, cache, way):
        """Widths, schemas and slots come and go; what they need is there from the beginning."""
        model = models("llama")
        settings = settings_of(*way, kv_mib=1, prefix_cache_mib=cache, max_slots=48)
        lengths = [400, 20, 150, 60, 300, 90, 10, 230, 35, 120] * 2
        prompts = prompts_of(1, lengths, schemas=3, prefix=70)
        decoder = decoder_of(model, settings, keep_logits=False)
        plain = Decoder(model, settings, STOP_IDS, graphs=False)
        for _ in range(2):
            found, right = (d.decode(prompts, Counts()) for d in (decoder, plain))
            assert [[s.ids for s in slots] for slots in found] == [[s.ids for s in slots] for slots in right]
        arena = decoder._graphs.arena
        assert arena.version == 0 and recorded.total() > 0
        assert arena.cells - SINK - 1 == (1 + cache) * 2**20 // model.kv_bytes_per_token

    def test_a_document_beyond_the_bound_adds_what_is_missing(self, models):
        settings = settings_of(*WAYS[2], kv_mib=1, prefix_cache_mib=0)
        decoder = decoder_of(models("llama"), settings)
        cells = decoder._graphs.arena.cells
        decoder.decode(prompts_of(0, [1500, 30, 1600, 1500], max_value_tokens=2), Counts())
        assert cells < decoder._graphs.arena.cells < cells + 400 and decoder._graphs.arena.version == 1

    def test_what_a_failure_leaves_goes_at_once(self, models):
        """Without the collector: a second arena has no room beside the first."""
        decoder = decoder_of(models("llama"), settings_of(*WAYS[2]))
        for _ in range(2):
            decoder.decode(prompts_of(14, [9, 5]), Counts())
        arena = weakref.ref(decoder._graphs.arena)
        gc.collect()
        gc.disable()
        try:
            decoder._begin(None)
            assert arena() is None
        finally:
            gc.enable()

    def test_a_step_that_fails_leaves_nothing_behind(self, models, monkeypatch):
        decoder = decoder_of(models("llama"), settings_of(*WAYS[2]))
        prompts = prompts_of(14, [9, 5])
        expected = decoder.decode(prompts, Counts())
        calls, step = iter(range(100)), GraphRunner.step

        def failing(*arguments, **others):
            if next(calls) == 1:
                raise MemoryError("out of memory")
            return step(*arguments, **others)

        monkeypatch.setattr(GraphRunner, "step", failing)
        with pytest.raises(MemoryError):
            decoder.decode(prompts, Counts())
        assert not decoder._pool.slabs and decoder._flight is None
        for a, b in zip(decoder.decode(prompts, Counts()), expected, strict=True):
            assert_equal(a, b)

    def test_logits_are_kept_where_somebody_reads_them(self, models, recorded):
        settings = settings_of(*WAYS[2], max_value_tokens=8)

        def kept(prompts, **others):
            decoder = decoder_of(models("llama"), settings, **others)
            decoder.decode(prompts, Counts())
            return {o.logits.numel() > 0 for o in decoder._graphs._outputs.values()}

        assert kept(prompts_of(0, [9, 4]), keep_logits=False) == {False}
        assert kept(prompts_of(0, [9, 4])) == {True}
        closed = [replace(p, allowed=(*p.allowed[:3], p.allowed[0])) for p in bounded(0)]
        assert kept(closed, keep_logits=False) == {True}  # the host chooses of what is allowed


class TestWhatCannotBeRecorded:
    @pytest.mark.parametrize("kind", CONFIGS)
    def test_none_of_it_is_in_these_models(self, models, recorded, kind):
        decoder = decoder_of(models(kind), settings_of(*WAYS[0]))
        decoder.decode(prompts_of(0, [9]), Counts())
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
    @pytest.mark.parametrize("closed", [False, True])
    def test_a_model_that_holds_it_runs_as_if_graphs_were_off(
        self, models, recorded, monkeypatch, asks, closed, caplog
    ):
        """But for the step that shows it: no padding, no copies of keys, no document that waits."""
        model, settings = models("llama"), settings_of(*WAYS[2], max_value_tokens=8, tokens_per_step=40, max_slots=9)
        prompts = bounded(0) if closed else prompts_of(0, [9, 4, 30, 12], max_value_tokens=8)
        over_buffers, step = [], GraphRunner.step
        monkeypatch.setattr(GraphRunner, "step", lambda *a, **k: (over_buffers.append(1), step(*a, **k))[1])
        hook = model.hf.lm_head.register_forward_pre_hook(lambda _, arguments: (asks(arguments[0]), None)[1])
        counts, plain = [Counts(), Counts()], [Counts(), Counts()]
        try:
            decoder, without = decoder_of(model, settings), decoder_of(model, settings, graphs=False)
            with caplog.at_level("INFO"):
                got = [decoder.decode(prompts, c) for c in counts]
            right = [without.decode(prompts, c) for c in plain][1]
        finally:
            hook.remove()
        assert decoder._graphs.records is False and "not recorded as CUDA graphs, as they hold aten::" in caplog.text
        assert len(over_buffers) == 1 and not recorded and decoder.recorded == 0
        assert counts[1].model_calls == plain[1].model_calls
        for again in got:
            for a, b in zip(again, right, strict=True):
                (assert_same if closed else assert_equal)(a, b)

    def test_a_recording_that_fails_is_said_and_changes_nothing(self, models, as_on_a_gpu, caplog):
        """There is no CUDA here, so that every recording fails."""
        if torch.cuda.is_available():
            pytest.skip("there is a CUDA device")
        decoder = decoder_of(models("llama"), settings_of(*WAYS[0]))
        prompts = prompts_of(0, [9, 4])
        for _ in range(2):
            for prompt, slots in zip(prompts, decoder.decode(prompts, Counts()), strict=True):
                assert_equal(slots, decode_serial(models("llama"), prompt, decoder.settings, STOP_IDS))
        assert decoder._graphs.records is False and "not recorded as CUDA graphs: " in caplog.text


class TestWhereItIsOn:
    def test_off_on_a_cpu_unless_asked_for_and_where_the_settings_say_so(self, models, monkeypatch):
        settings = settings_of(*WAYS[0])
        assert Decoder(models("llama"), settings, STOP_IDS)._graphs is None
        with pytest.raises(ValueError, match="cuda_graphs is 'no': must be true or false"):
            replace(settings, cuda_graphs="no")
        model = Model(models("llama").hf)
        monkeypatch.setattr(decoding, "Arena", lambda *_, **__: None)
        monkeypatch.setattr(decoding, "GraphRunner", lambda *_: "graphs")
        model.device = torch.device("cuda")
        assert Decoder(model, settings, STOP_IDS)._graphs is None
        settings = replace(settings, cuda_graphs=True)
        assert Decoder(model, settings, STOP_IDS)._graphs == "graphs"
        assert Decoder(model, settings, STOP_IDS, fast=False)._graphs is None
        model.is_spread = True
        assert Decoder(model, settings, STOP_IDS)._graphs is None

    def test_refused_where_it_is_asked_for_and_cannot_be(self, models):
        with pytest.raises(SettingsError, match="plain twin"):
            decoder_of(models("llama"), settings_of(*WAYS[0]), fast=False)
        model = Model(models("llama").hf)
        model.is_spread = True
        with pytest.raises(SettingsError, match="spread over several GPUs"):
            decoder_of(model, settings_of(*WAYS[0]))

    def test_the_gpu_of_the_model_is_the_current_one_while_it_decodes(self, models, monkeypatch):
        """torch records graphs and notes events on the current device, whatever tensors they are about."""
        model, entered = Model(models("llama").hf), []

        class Current:
            def __init__(self, device):
                self.device = device

            def __enter__(self):
                entered.append(self.device)

            def __exit__(self, *_):
                entered.append(None)

        monkeypatch.setattr(torch.cuda, "device", Current)
        decoder = decoder_of(model, settings_of(*WAYS[0]), graphs=False)
        during, run = [], Decoder._run
        monkeypatch.setattr(Decoder, "_run", lambda *a: (during.append(entered[-1]), run(*a))[1])
        monkeypatch.setattr(Model, "tensor", lambda _, values: torch.tensor(values))
        monkeypatch.setattr(decoding, "make_step", lambda *a, make=decoding.make_step, **k: make(*a[:3], "cpu", **k))
        model.device = torch.device("cuda:1")
        decoder.decode(prompts_of(0, [9]), Counts())
        assert set(during) == {torch.device("cuda:1")} and entered == [torch.device("cuda:1"), None]
