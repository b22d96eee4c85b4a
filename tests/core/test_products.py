"""Attention in half precision: scores are kept in float32, as transformers' fused kernels keep them."""

from __future__ import annotations

import pytest
import torch

from hpd_core.products import Scoring, attend_blocks, masked_attention, scored

HEADS, KEYS, WIDTH = 4, 40, 64


def inputs(dtype: torch.dtype, size: float) -> tuple[torch.Tensor, ...]:
    """query [Q, heads, d], key and value [kv_heads, K, d]."""
    torch.manual_seed(0)
    query, key, value = torch.randn(5, HEADS, WIDTH), torch.randn(2, KEYS, WIDTH), torch.randn(2, KEYS, WIDTH)
    return (query * size).to(dtype), (key * size).to(dtype), value.to(dtype)


def both(query, key, value, scoring):
    """By the book, and in blocks by plain products as on a GPU: [Q, heads, d] each."""
    sees = torch.ones(len(query), KEYS, dtype=torch.bool)
    blocks, _ = attend_blocks(query[None], key[None], value[None], None, scoring, products=True)
    return masked_attention(query, key, value, sees, scoring), blocks[0]


@pytest.mark.parametrize("softcap", [None, 50.0])
def test_scores_are_not_rounded_to_bfloat16(softcap):
    query, key, value = inputs(torch.bfloat16, size=2.0)
    scoring = Scoring(WIDTH**-0.5, softcap=softcap)
    (right, _) = both(query.double(), key.double(), value.double(), scoring)
    assert float(scored(query.transpose(0, 1), key.repeat_interleave(2, 0)).abs().max() * scoring.scale) > 12
    for got in both(query, key, value, scoring):
        assert got.dtype == torch.bfloat16
        # 8 bits of weights and of what comes of them remain; rounded scores are off by 0.03 and more.
        assert float((got.double() - right).abs().max()) < 0.012


def test_products_beyond_what_float16_holds_are_finite():
    query, key, value = inputs(torch.float16, size=60.0)
    scoring = Scoring(WIDTH**-0.5 / 100)
    (right, _) = both(query.double(), key.double(), value.double(), scoring)
    assert float((query.float().transpose(0, 1) @ key.repeat_interleave(2, 0).float().mT).abs().max()) > 65_504
    for got in both(query, key, value, scoring):
        assert float((got.double() - right).abs().max()) < 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whole_precision_stays_as_it_is(dtype):
    query, key, _ = inputs(dtype, size=1.0)
    assert scored(query.transpose(0, 1), key.repeat_interleave(2, 0)).dtype == dtype
