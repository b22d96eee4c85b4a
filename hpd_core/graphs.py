"""Steps without prefill over buffers that stay where they are: recorded as CUDA graphs, replayed without launches.

A step of few rows is over on a GPU before Python has launched its kernels. So its inputs are written into buffers of a
few bucketed shapes, padded; what follows (facts, masks, forward pass, choice of the next id) is one function of those
buffers that allocates by shape only and never asks the device for a number. A shape that is seen for the second time
is recorded, and replayed from then on. On a CPU the same function is called over the same buffers.

The chosen ids stay on the device: the next step may feed them before the host has read them.

Unverified on a GPU; `tests/core/test_graphs*.py` hold everything but the recording itself.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hpd_core.arena import Arena
from hpd_core.batch import Feed
from hpd_core.buffers import Buffers, StepShape
from hpd_core.choice import settled, widened
from hpd_core.gathered import GatheredPlan, Ranges
from hpd_core.mask import Tokens
from hpd_core.model import Model
from hpd_core.settings import Layout, Visibility

log = logging.getLogger(__name__)

#: Most shapes whose buffers and recordings are kept.
_MOST_SHAPES = 64
#: Rows whose choices are kept to be fed, at first.
_ROWS = 1024
#: What a CUDA graph cannot hold: the device would have to tell the host a number or a shape.
_ASKS = frozenset(
    f"aten::{name}"
    for name in (
        "_local_scalar_dense", "_unique2", "allclose", "argwhere", "bincount", "equal", "is_nonzero", "item",
        "masked_select", "nonzero", "one_hot", "repeat_interleave.Tensor", "repeat_interleave.self_Tensor",
        "unique_consecutive", "unique_dim", "where",
    )
)  # fmt: skip
#: The same where an index is a mask, whose True's are counted first, or where tensors go from device to device.
_INDEXED = frozenset({"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"})
_COPIES = frozenset({"aten::copy_", "aten::_to_copy", "aten::to"})


class Outputs(NamedTuple):
    """Of the choices of a step: ids that were chosen [n], their log-probabilities [n], logits [n, vocabulary], or
    [n, 0] where nobody asked for them. Overwritten by a later step."""

    chosen: Tensor
    logprobs: Tensor
    logits: Tensor


class Unrecordable(TorchDispatchMode):
    """Notes the `names` of operations that a CUDA graph cannot hold, those that are known."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name, base = function.name(), function.name().split(".")[0]
        tensors = [t for t in tree_leaves((args, kwargs, result)) if isinstance(t, Tensor)]
        if (
            name in _ASKS
            or (base in _INDEXED and any(t.dtype == torch.bool for t in args[1] if t is not None))
            or (base in _COPIES and len({t.device for t in tensors}) > 1)
            # Made of numbers of Python's; one number that stays on the host is an argument of a kernel.
            or (base == "aten::lift_fresh" and (result.is_cuda or result.dim()))
        ):
            self.names.add(name)
        return result


class GraphRunner:
    """Runs steps without prefill, of a model on one device whose KV lies in `arena`.

    records: whether shapes are recorded; None as long as no step has shown whether the model's forward pass can be.
    """

    def __init__(self, model: Model, arena: Arena, layout: Layout, visibility: Visibility) -> None:
        self.model, self.arena = model, arena
        self.layout, self.visibility = layout, visibility
        #: On a CPU nothing is ever recorded: whoever asks for graphs there, a test, wants the steps over buffers.
        self._rehearses = model.device.type != "cuda"
        self.records: bool | None = False if self._rehearses else None
        self._version = arena.version
        #: The least recently used shape first.
        self._buffers: OrderedDict[StepShape, Buffers] = OrderedDict()
        #: Of recorded graphs alone: what refers to this runner would keep it, and its arena, after it is let go.
        self._replays: dict[StepShape, Callable[[], None]] = {}
        #: By rows and whether there are logits: few, while shapes are many.
        self._outputs: dict[tuple[int, bool], Outputs] = {}
        #: Ids that the last step has chosen.
        self._latest = torch.zeros(_ROWS, dtype=torch.int64, device=model.device)
        self._aside: tuple[Any, Any] | None = None

    @property
    def replays(self) -> bool:
        """Whether steps are to go over buffers: not where a GPU cannot record them, which would pay padding, copies of
        keys and documents that wait, for nothing."""
        return self._rehearses or self.records is not False

    @property
    def recorded(self) -> int:
        """Shapes of which there is a recording."""
        return len(self._replays)

    def step(
        self, feeds: Sequence[Feed], source: Sequence[int] = (), taught: Sequence[int] = (), *, logits: bool
    ) -> Outputs:
        """One forward pass over feeds none of which is prefill. Outputs: of what they want, in their order.

        source: for each row, the place among the choices of the step before of the id that it feeds; -1: the feed's.
        taught: for each choice the id to make; -1: the likeliest.
        """
        shape = StepShape.of(feeds, logits=logits)
        self._make_room(shape)
        is_new = shape not in self._buffers
        if is_new:
            self._buffers[shape] = Buffers(shape, self.model.device)
        self._buffers.move_to_end(shape)
        buffers = self._buffers[shape]
        buffers.fill(feeds, source, taught)
        if is_new:
            self._first(buffers)
        else:
            if self.records and shape not in self._replays:
                self._record(buffers)
            if shape in self._replays:
                self._replays[shape]()
            else:
                self._run(buffers)
        count = sum(len(f.wanted) for f in feeds)
        return Outputs(*(t[:count] for t in self._outputs[shape.rows, logits]))

    def _make_room(self, shape: StepShape) -> None:
        """Forgets what was recorded, where tensors that it knows have moved, and the shape that was not used for
        longest, where there are too many."""
        rows = len(self._latest)
        if self._version != self.arena.version or shape.rows > rows:
            self._forget()
            self._latest = torch.cat([self._latest, self._latest.new_zeros(max(0, shape.rows - rows))])
            self._version = self.arena.version
        elif shape not in self._buffers and len(self._buffers) >= _MOST_SHAPES:
            self._wait()
            unused, _ = self._buffers.popitem(last=False)
            self._replays.pop(unused, None)

    def _forget(self) -> None:
        self._wait()
        for kept in (self._replays, self._buffers, self._outputs):
            kept.clear()
        self._aside = None

    def _wait(self) -> None:
        if self._replays:
            torch.cuda.synchronize(self.model.device)  # a recording may still run

    def _first(self, buffers: Buffers) -> None:
        """The first step of a shape, which makes what is made once: outputs, a library's workspaces. The very first of
        all tells whether this model's forward pass can be recorded."""
        if self.records is not None:
            self._run(buffers)
            return
        with Unrecordable() as found:
            self._run(buffers)
        self.records = not found.names
        if found.names:
            log.info("steps are not recorded as CUDA graphs, as they hold %s", ", ".join(sorted(found.names)))

    def _record(self, buffers: Buffers) -> None:
        try:
            self._replays[buffers.shape] = self._captured(buffers)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.records = False
            self._forget()
            log.warning("steps are not recorded as CUDA graphs: %s", str(error).split("\n")[0])

    def _captured(self, buffers: Buffers) -> Callable[[], None]:
        """Records the step of these buffers; what replays it. All recordings share memory and a stream: torch's own
        one for that is made once, on whatever device is current then."""
        if self._aside is None:
            self._aside = torch.cuda.graph_pool_handle(), torch.cuda.Stream(self.model.device)
        pool, stream = self._aside
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            self._run(buffers)
        replay: Callable[[], None] = graph.replay
        return replay

    def _run(self, buffers: Buffers) -> None:
        """From buffers to outputs: what is recorded."""
        shape, parts = buffers.shape, buffers.parts
        zeros = torch.zeros_like(parts["stubs"])
        rows = Tokens(zeros, parts["stubs"], parts["positions"], parts["indices"], reach=parts["positions"])
        reads = [Ranges(parts["starts"], parts["used"], shape.columns, parts["grid"], parts["at"])]
        if shape.prefixes:
            starts, used = parts["prefix_starts"], parts["prefix_used"]
            reads.append(Ranges(starts, used, shape.prefix_columns, buffers.prefix_grid, parts["prefix_at"]))
        plan = GatheredPlan(self.arena, self.layout, self.visibility, parts["cells"], rows, tuple(reads))
        source = parts["source"]
        ids = torch.where(source < 0, parts["ids"], self._latest.index_select(0, source.clamp_min(0)))
        logits = self.model.step(ids, parts["positions"], plan, parts["wanted"])
        wide = widened(logits)
        chosen, logprobs = settled(wide, wide.argmax(-1), parts["taught"])
        found = Outputs(chosen, logprobs, logits if shape.logits else logits[:, :0])
        if (shape.rows, shape.logits) not in self._outputs:  # never while recording: the shape's first step was here
            self._outputs[shape.rows, shape.logits] = Outputs(*(torch.empty_like(t) for t in found))
        for kept, new in zip(self._outputs[shape.rows, shape.logits], found, strict=True):
            kept.copy_(new)
        self._latest[: shape.rows].copy_(chosen)
