from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch

from hpd_core.buffers import Buffers, StepShape
from hpd_core.graphs import GraphRunner, Unrecordable
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


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runners find out, as on a GPU, whether steps can be recorded, and run none over buffers where they cannot."""
    begin = GraphRunner.__init__

    def begun(self: GraphRunner, *arguments: object) -> None:
        begin(self, *arguments)  # type: ignore[arg-type]
        self._rehearses, self.records = False, None

    monkeypatch.setattr(GraphRunner, "__init__", begun)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)


@pytest.fixture
def recorded(as_on_a_gpu: None, monkeypatch: pytest.MonkeyPatch) -> Counter[StepShape]:
    """Shapes run as they are, then are recorded, then replayed, which here is the same function over the same buffers,
    watched. How often each shape was replayed."""
    replays: Counter[StepShape] = Counter()

    def captured(self: GraphRunner, buffers: Buffers) -> Callable[[], None]:
        assert (buffers.shape.rows, buffers.shape.logits) in self._outputs  # made by the first step of the shape

        def replay() -> None:
            replays[buffers.shape] += 1
            with Unrecordable() as found:
                self._run(buffers)
            assert not found.names

        return replay

    monkeypatch.setattr(GraphRunner, "_captured", captured)
    return replays
