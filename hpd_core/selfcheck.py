"""A loaded model, run on a dozen tokens: does it mix tokens only where the plan of a step says?

Four facts make Hyper-Parallel Decoding exact, whatever a model is called, and each is one forward pass here:

1. Every layer's attention goes through the function that is registered with transformers, once per layer.
2. Nothing else mixes tokens: where no other token sees one, changing it, or its position, moves none of the others.
3. Positions decide, memory order does not: the same tokens in another order give the same logits.
4. That attention, under the causal mask, is the model's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hpd_core.products import Scoring, masked_attention
from hpd_core.supported import UnsupportedModelError

_TOKENS = 12
_ORDER = (3, 0, 7, 1, 11, 4, 2, 9, 5, 10, 8, 6)
_CHANGED = 2  # early, so that a recurrent state carries the change on
#: Largest relative difference between two ways to the same logits. Rounding stays far below, a wrong model far above.
_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}


@dataclass(slots=True)
class DensePlan:
    """Attention of one forward pass under a mask [T, T]: query row sees key column. Nothing is kept but `layers`, those
    that ran, and `bytes_per_token`, the size of one token's keys and values in all of them."""

    sees: Tensor
    layers: list[int] = field(default_factory=list)
    bytes_per_token: int = 0

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, layer: int, scoring: Scoring) -> Tensor:
        """query [T, heads, d], key and value [T, kv_heads, d or d_v] -> [T, heads, d_v]. No window is as short as T."""
        self.layers.append(layer)
        self.bytes_per_token += key[0].nbytes + value[0].nbytes
        sees = self.sees.to(query.device)  # of a layer on another device, where the model is spread over several
        return masked_attention(query, key.transpose(0, 1), value.transpose(0, 1), sees, scoring)


#: ids [T], positions [T], plan -> logits [T, vocabulary] of every token.
Forward = Callable[[Tensor, Tensor, DensePlan], Tensor]


@torch.inference_mode()
def check(
    kind: str,
    forward: Forward,
    native: Callable[[Tensor], Tensor],
    *,
    vocabulary: int,
    context: int,
    device: torch.device,
    dtype: torch.dtype,
    rounds_activations: bool = False,
) -> None:
    """Raises UnsupportedModelError naming the first of the four facts that does not hold.

    native: ids [T] -> logits [T, vocabulary] of transformers' own attention. context: positions that may be used.
    rounds_activations: whether they are quantised, in which the last two are judged as in half precision.
    """
    where = f"{kind!r} cannot be decoded exactly"
    ids = torch.tensor([(13 + 7919 * n) % vocabulary for n in range(_TOKENS)], device=device)
    line = torch.arange(_TOKENS, device=device)
    causal, others = line[:, None] >= line, line != _CHANGED
    unseen = causal & (others[None, :] | ~others[:, None])  # nobody sees the changed token but itself
    tolerance = _TOLERANCE.get(dtype, 0.1)

    plan = DensePlan(unseen)
    base = forward(ids, line, plan)
    if not base.isfinite().all():
        raise UnsupportedModelError(
            f"{where}: its logits are not finite in {str(dtype).removeprefix('torch.')}: weights that are no numbers, "
            f"or activations beyond what float16 holds (set model.dtype to bfloat16 or float32)"
        )
    if not plan.layers:
        raise UnsupportedModelError(f"{where}: its attention does not go through transformers' AttentionInterface")
    if len(set(plan.layers)) < len(plan.layers):
        twice = next(n for n in plan.layers if plan.layers.count(n) > 1)
        raise UnsupportedModelError(f"{where}: attention layer {twice} runs more than once in a forward pass")
    changed, moved = ids.clone(), line.clone()
    changed[_CHANGED] = (changed[_CHANGED] + 1) % vocabulary
    moved[_CHANGED] = context - 1
    if _worst(forward(changed, line, DensePlan(unseen))[others], base[others]) > tolerance:
        raise UnsupportedModelError(
            f"{where}: a token reaches others by another way than attention (a recurrent state, a convolution), which "
            f"follows memory order and not positions"
        )
    if _worst(forward(ids, moved, DensePlan(unseen))[others], base[others]) > tolerance:
        raise UnsupportedModelError(f"{where}: the position of one token changes what is computed for others")

    is_coarse = rounds_activations or dtype in (torch.bfloat16, torch.float16)
    apart = _typical if is_coarse else _worst  # in half precision one row may cross an edge: another expert, say
    tolerance = max(tolerance, _TOLERANCE[torch.bfloat16]) if is_coarse else tolerance
    spread = line + line // 4 * min(5, context // _TOKENS - 1)  # with gaps, as the layout of that name has
    order = torch.tensor(_ORDER, device=device)
    ordered = forward(ids, spread, DensePlan(causal))
    shuffled = forward(ids[order], spread[order], DensePlan(causal[order][:, order]))
    if apart(shuffled, ordered[order]) > tolerance:
        raise UnsupportedModelError(
            f"{where}: its answers depend on the order of tokens in memory beside their positions"
        )
    if apart(forward(ids, line, DensePlan(causal)), native(ids)) > tolerance:
        raise UnsupportedModelError(
            f"{where}: its own attention is not that which it asks for through transformers' AttentionInterface"
        )


def _apart(got: Tensor, expected: Tensor) -> Tensor:
    """[T] largest difference of each row of logits, relative to the largest logit; infinite where one is NaN."""
    difference = (got.double() - expected.double()).abs().amax(-1) / expected.double().abs().amax().clamp_min(1e-30)
    return difference.nan_to_num(math.inf)


def _worst(got: Tensor, expected: Tensor) -> float:
    return float(_apart(got, expected).max())


def _typical(got: Tensor, expected: Tensor) -> float:
    return float(_apart(got, expected).median())
