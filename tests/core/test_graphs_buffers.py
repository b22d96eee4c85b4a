"""Buckets, padding and parts of the attention of steps over buffers."""

from __future__ import annotations

import torch

from hpd_core import gathered
from hpd_core.buffers import Buffers, bucket
from hpd_core.products import merged
from hpd_core.rows import Counts
from tests.core.graphed import decoder_of
from tests.core.test_exactness import WAYS, assert_equal, settings_of
from tests.core.tiny import prompts_of


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


def test_void_is_the_cell_of_places_without_a_range():
    read = gathered.Ranges(torch.tensor([5, 0, 9]), torch.tensor([2, 0, 3]), 3, torch.zeros(3), torch.zeros(3))
    assert read.cells().tolist() == [[5, 6, 0], [0, 0, 0], [9, 10, 11]]
