"""Products of queries with keys and values: what attention is made of, whatever plan says who sees what."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Scoring:
    """How a layer weighs the keys that a row sees.

    scale: of the products. window: a row sees no key so many positions before it, or more; None for no such bound.
    softcap: bound that scores are squashed below, None for none. sinks: [heads] logits that some models (gpt-oss) learn
    beside those of the keys: each takes its share of the softmax and adds nothing.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    def scores(self, products: Tensor) -> Tensor:
        """Of products of queries with keys, whatever their shape."""
        scaled = products * self.scale
        return scaled if self.softcap is None else self.softcap * torch.tanh(scaled / self.softcap)


def masked_attention(query: Tensor, key: Tensor, value: Tensor, sees: Tensor, scoring: Scoring) -> Tensor:
    """By the book: query [Q, heads, d], key and value [kv_heads, K, d or d_v] -> [Q, heads, d_v].

    sees: [Q, K], the window of `scoring` taken into account.
    """
    group = query.shape[1] // key.shape[0]
    key, value = key.repeat_interleave(group, 0), value.repeat_interleave(group, 0)
    scores = scoring.scores(scored(query.transpose(0, 1), key))
    weights = softmax_beside(scores.masked_fill(~sees, float("-inf")), scoring.sinks)
    return torch.einsum("hqk,hkd->qhd", weights.to(value.dtype), value)


def scored(query: Tensor, key: Tensor) -> Tensor:
    """query [.., Q, d] times key [.., K, d] -> [.., Q, K], summed up and kept in float32 at least, as fused kernels do:
    rounded to bfloat16 a score of 30 is off by up to 0.06, and in float16 one beyond 65,504 is infinite, which scaling
    comes too late for."""
    turned = key.transpose(-1, -2)
    if query.dtype not in (torch.bfloat16, torch.float16):
        return torch.matmul(query, turned)
    if query.device.type == "cuda":  # only there a product of halves gives float32
        flat = torch.bmm(query.flatten(0, -3), turned.flatten(0, -3), out_dtype=torch.float32)
        return flat.view(*query.shape[:-1], key.shape[-2])
    return torch.matmul(query.float(), turned.float())


def softmax_beside(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Softmax over the keys of scores [.., heads, Q, K]; where there are sinks, beside that of each head."""
    if sinks is None:
        return torch.softmax(scores, -1)
    beside = sinks.to(scores.dtype).view(-1, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat([scores, beside], -1), -1)[..., :-1]


def attend_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    added: Tensor | None,
    scoring: Scoring,
    *,
    products: bool = False,
) -> tuple[Tensor, Tensor]:
    """query [B, R, heads, d], key/value [B, kv_heads, C, d] -> output [B, R, heads, d_v], log-sum-exp [B, R, heads].

    The query heads of one KV head are folded into rows, so that a block is one matrix product per KV head. added: the
    mask, with the window; sinks are merged by whoever has all parts.
    products: by plain matrix products on a CPU too, as on a GPU.
    """
    batch, width, heads, head_dim = query.shape
    kv_heads = key.shape[1]
    group = heads // kv_heads
    folded = query.view(batch, width, kv_heads, group, head_dim).permute(0, 2, 1, 3, 4)
    folded = folded.reshape(batch, kv_heads, width * group, head_dim)
    if query.device.type == "cpu" and not products and scoring.softcap is None and head_dim == value.shape[-1]:
        # The kernel behind scaled_dot_product_attention on CPU; only the operator itself returns the log-sum-exp.
        out, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            folded, key, value, 0.0, False, attn_mask=added, scale=scoring.scale
        )
    else:
        scores = scoring.scores(scored(folded, key))
        if added is not None:
            scores = scores + added
        log_sum = torch.logsumexp(scores, -1)
        weights = torch.exp(scores - log_sum.unsqueeze(-1)).to(value.dtype)
        out = torch.matmul(weights, value)
    out = out.view(batch, kv_heads, width, group, -1).transpose(1, 2).reshape(batch, width, heads, -1)
    log_sum = log_sum.view(batch, kv_heads, width, group).transpose(1, 2).reshape(batch, width, heads)
    return out, log_sum


def merged(parts: Tensor, log_sums: Tensor) -> Tensor:
    """Softmax over all keys from softmaxes over some each: parts [P, T, heads, d] and log-sum-exps [P, T, heads]
    -> [T, heads, d]. A part in which a row sees nothing weighs nothing, whatever it holds; NaN elsewhere stays."""
    weights = torch.softmax(log_sums, 0).to(parts.dtype).unsqueeze(-1)
    blind = (log_sums == float("-inf")).unsqueeze(-1)
    return (parts.masked_fill(blind, 0.0) * weights).sum(0)
