from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hpd_core.model import Model
from tests.core.tiny import tiny_model

# Tiny models gain nothing from a second thread, and spinning threads of two test processes starve each other.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def models() -> Callable[[str], Model]:
    made: dict[str, Model] = {}

    def get(kind: str) -> Model:
        if kind not in made:
            made[kind] = tiny_model(kind)
        return made[kind]

    return get
