"""Processes that train one model together: each takes its share of a step's documents, all take the same step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, distributed


class Peers(Protocol):
    """rank: number of this process; number 0 validates, saves and logs. size: how many there are."""

    rank: int
    size: int

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Puts the sum over all processes in the place of each tensor. Every process must call it."""
        ...

    def from_first(self, number: float) -> float:
        """What process 0 calls it with. Every process must call it; the others wait for process 0, no longer than their
        process group allows, and fail after that."""
        ...


class Alone:
    """One process."""

    rank, size = 0, 1

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        pass

    def from_first(self, number: float) -> float:
        return number


class Group:
    """The processes of torch's default process group, which must be set up with a timeout longer than any validation
    takes: torch's own is half an hour."""

    def __init__(self, device: torch.device) -> None:
        self.rank, self.size, self._device = distributed.get_rank(), distributed.get_world_size(), device

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])  # one message in place of hundreds
        distributed.all_reduce(flat)
        for tensor, summed in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(summed.view_as(tensor))

    def from_first(self, number: float) -> float:
        held = torch.tensor(number, dtype=torch.float64, device=self._device)
        distributed.broadcast(held, 0)
        return float(held)
