"""Differentiable forward under the mask and the positions that decoding uses.

A batch stacks lessons on one flat axis as decoding stacks documents, each distinct shared prefix once. Positions come
from `layout`, visibility from `mask`: what is trained is what is decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hpd_core import mask
from hpd_core.layout import NO_STUB
from hpd_core.lessons import Lesson
from hpd_core.mask import Tokens
from hpd_core.products import Scoring, softmax_beside
from hpd_core.settings import Layout, Visibility


@dataclass(slots=True)
class TrainingPlan:
    """Attention of one batch: blocks of rows, one per prefix and one per document; a document's keys are its prefix's
    rows and its own.

    facts: Tokens, each [T]. queries: [blocks, W] rows that ask, keys: [blocks, C] rows that are read, both padded with
    the block's first row; real: [blocks, C] which keys are no padding. back: [T] place of each row in [blocks * W].
    """

    layout: Layout
    visibility: Visibility
    facts: Tokens
    queries: Tensor
    keys: Tensor
    real: Tensor
    back: Tensor
    _bias: dict[tuple[int | None, torch.dtype], Tensor] = field(default_factory=dict)

    def bias(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """[blocks, 1, W, C] additive mask, made once per window."""
        if (window, dtype) not in self._bias:
            asked, read = (Tokens(*(t[rows] for t in self.facts)) for rows in (self.queries, self.keys))
            sees = mask.visible(asked, read, self.layout, self.visibility, window) & self.real[:, None, :]
            self._bias[window, dtype] = mask.bias(sees, dtype).unsqueeze(1)
        return self._bias[window, dtype]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, layer: int, scoring: Scoring) -> Tensor:
        """Attention of one layer: query [T, heads, d], key and value [T, kv_heads, d or d_v] -> [T, heads, d_v]."""
        asked = query[self.queries].transpose(1, 2)  # [blocks, heads, W, d]
        keys, values = key[self.keys].transpose(1, 2), value[self.keys].transpose(1, 2)  # [blocks, kv_heads, C, d]
        added = self.bias(scoring.window, query.dtype)
        if scoring.softcap is None and scoring.sinks is None:
            out = functional.scaled_dot_product_attention(
                asked, keys, values, attn_mask=added, scale=scoring.scale, enable_gqa=True
            )
        else:
            group = query.shape[1] // key.shape[1]
            keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
            scores = scoring.scores(asked @ keys.transpose(-1, -2))
            out = softmax_beside(scores + added, scoring.sinks) @ values
        return out.transpose(1, 2).reshape(-1, query.shape[1], value.shape[2])[self.back]


@dataclass(frozen=True, slots=True)
class Batch:
    """Tensors of one forward: ids and positions [T]; rows [n] must predict labels [n], in order of lessons."""

    ids: Tensor
    positions: Tensor
    rows: Tensor
    labels: Tensor
    plan: TrainingPlan


def make_batch(lessons: Sequence[Lesson], layout: Layout, visibility: Visibility, device: torch.device) -> Batch:
    """Lays every distinct prefix and then every lesson one after another on the flat axis."""
    ids: list[int] = []
    facts: list[tuple[int, int, int, int, int]] = []  # as Tokens has them
    prefixes: dict[tuple[int, ...], range] = {}
    blocks: list[tuple[range, range]] = []  # rows that ask, prefix rows that they read beside each other
    for item in lessons:
        if item.prefix and item.prefix not in prefixes:
            rows = range(len(ids), len(ids) + len(item.prefix))
            ids += item.prefix
            facts += [(mask.PREFIX, NO_STUB, p, 0, p) for p in range(len(rows))]
            prefixes[item.prefix] = rows
            blocks.append((rows, range(0)))
    rows_wanted, labels = [], []
    for number, item in enumerate(lessons):
        rows = range(len(ids), len(ids) + len(item.ids))
        ids += item.ids
        owner = [number] * len(rows)
        facts += zip(owner, item.stubs, item.positions, item.indices, item.reaches, strict=True)
        blocks.append((rows, prefixes.get(item.prefix, range(0))))
        rows_wanted += [rows.start + row for row, _ in item.targets]
        labels += [id_ for _, id_ in item.targets]

    def tensor(values: Sequence[Any]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    width = max(len(own) for own, _ in blocks)
    columns = max(len(own) + len(prefix) for own, prefix in blocks)
    back = [0] * len(ids)
    queries, keys, real = [], [], []
    for block, (own, prefix) in enumerate(blocks):
        for k, row in enumerate(own):
            back[row] = block * width + k
        read = [*prefix, *own]
        queries.append([*own, *[own.start] * (width - len(own))])
        keys.append([*read, *[own.start] * (columns - len(read))])
        real.append([c < len(read) for c in range(columns)])
    table = tensor(facts)
    plan = TrainingPlan(
        layout=layout,
        visibility=visibility,
        facts=Tokens(*table.unbind(1)),
        queries=tensor(queries),
        keys=tensor(keys),
        real=torch.tensor(real, device=device),
        back=tensor(back),
    )
    return Batch(tensor(ids), table[:, 2], tensor(rows_wanted), tensor(labels), plan)


def target_logits(hf: Any, batch: Batch) -> Tensor:
    """[n, vocabulary] logits of the rows that must predict something; differentiable. hf: a `Model`'s `hf`."""
    result = hf(
        input_ids=batch.ids[None],
        position_ids=batch.positions[None],
        use_cache=False,
        logits_to_keep=batch.rows,
        plan=batch.plan,
    )
    logits: Tensor = result.logits[0]
    return logits


def summed_loss(hf: Any, batch: Batch) -> Tensor:
    """Cross-entropy over the batch's targets, summed, so that micro-batches add up to their step's loss."""
    logits = target_logits(hf, batch)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return functional.cross_entropy(wide, batch.labels, reduction="sum")
