"""Engines in processes of their own, which wait for their turn without a thread that spins."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from hpd_core.model_spec import ModelSpec
from hpd_core.prompt import PromptError
from hpd_core.schema import Document
from hpd_core.settings import SettingsError
from hpd_core.sizing import free_memory
from hpd_core.spec import DecoderSpec
from hpd_core.supported import UnsupportedModelError
from jobs.timing.engines import Engine
from jobs.timing.work import Order
from pipeline.job import JobError

#: Share of the free memory that engines may take which are kept between their turns.
KEPT_SHARE = 0.6
_MENDABLE = (SettingsError, PromptError, UnsupportedModelError, FileNotFoundError)


class EngineFailed(RuntimeError):
    """An engine could not be started or ended before its time; the message says why, in one line."""


@dataclass(frozen=True, slots=True)
class Roof:
    """The order of the process that measures the machine's matrix rate, see `roof.gemm_rate`."""

    hidden: int
    intermediate: int
    dtype: str
    threads: int
    seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Probe:
    """The order of the process that measures the machine for a decoder's `auto` settings, see `hpd_core.probe`."""

    spec: DecoderSpec
    threads: int | None


@dataclass(frozen=True, slots=True)
class ExportWeights:
    """The order of the process that writes the weights for peers, see `peers.weights`."""

    model: ModelSpec


@dataclass(frozen=True, slots=True)
class Loop:
    """The order of the process that decodes units of documents one after another, see `bare.BareLoop`.

    units: by the name that they are asked for with. pack_documents: as in a JobSpec.
    """

    spec: DecoderSpec
    threads: int | None
    pack_documents: int
    units: Mapping[str, Sequence[Sequence[Document]]]


@dataclass(frozen=True, slots=True)
class TryWeights:
    """The order of the process that decodes documents with weights of one kind, see `quantised.tried`.

    seconds: of decoding, about.
    """

    spec: DecoderSpec
    threads: int | None
    documents: Sequence[Document]
    seconds: float


_Order = Order | Roof | Probe | ExportWeights | Loop | TryWeights


class Worker:
    """A process that holds one engine. `ready` is what it said when it was warm."""

    def __init__(self, order: _Order) -> None:
        # libgomp's threads spin for a while after their work: here the next engine has its turn. Read with torch.
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, order), daemon=True)
        self._process.start()
        theirs.close()
        self.ready = self._answer()

    def ask(self, what: str, seconds: float | None = None) -> Any:
        """`run` -> Turn, `record` -> answers, `rate` -> FLOP/s, `measure` -> Measured, `export` -> folder,
        a name of a `Loop` -> Pass, `trial` -> Trial.

        Raises EngineFailed or JobError. seconds: after which the process is ended, and failed; None waits for ever.
        """
        self._pipe.send(what)
        return self._answer(seconds)

    def stop(self) -> None:
        self._pipe.close()
        self._process.join(20)
        if self._process.is_alive():
            self._kill()

    def _kill(self) -> None:
        self._process.kill()
        self._process.join()

    def _answer(self, seconds: float | None = None) -> Any:
        if not self._pipe.poll(seconds):
            self._kill()
            raise EngineFailed(f"stopped after {seconds:g} s without an answer")
        try:
            kind, content = self._pipe.recv()
        except EOFError:
            self._process.join(20)
            raise EngineFailed(f"its process ended with code {self._process.exitcode}") from None
        if kind == "mendable":
            raise JobError(content)
        if kind == "failed":
            raise EngineFailed(content)
        return content


def _serve(pipe: Connection, order: _Order) -> None:
    try:
        with ExitStack() as opened:
            asked, first = _prepared(order, opened)
            pipe.send(("done", first))
            while True:
                pipe.send(("done", asked[pipe.recv()]()))
    except (EOFError, ConnectionError, KeyboardInterrupt):
        pass  # whoever asked is gone, and says itself why
    except Exception as error:
        if isinstance(error, _MENDABLE):
            pipe.send(("mendable", str(error)))
            return
        if isinstance(error, EngineFailed):  # a peer's, which has said where
            pipe.send(("failed", str(error)))
            return
        traceback.print_exc()
        pipe.send(("failed", f"{type(error).__name__}: {error}".splitlines()[0]))


def _prepared(order: _Order, opened: ExitStack) -> tuple[dict[str, Callable[[], Any]], Any]:
    """What the process can be asked for, and its first word. opened: what is to be closed at its end."""
    if isinstance(order, Roof):
        import torch

        from jobs.timing.roof import gemm_rate

        torch.set_num_threads(order.threads)
        dtype = getattr(torch, order.dtype)
        return {"rate": lambda: gemm_rate(order.hidden, order.intermediate, dtype, order.seconds)}, None
    if isinstance(order, Probe):
        from hpd_core.probe import measure

        return {"measure": lambda: measure(order.spec, threads=order.threads)}, None
    if isinstance(order, ExportWeights):
        from jobs.timing.peers.weights import merged_folder

        return {"export": lambda: str(merged_folder(order.model))}, None
    if isinstance(order, Loop):
        from jobs.timing.bare import BareLoop

        loop = BareLoop(order)
        return {name: partial(loop.run, name) for name in order.units}, None
    if isinstance(order, TryWeights):
        from jobs.timing.quantised import tried

        return {"trial": lambda: tried(order)}, None
    if order.peer is not None:
        from jobs.timing.peers.station import PeerStation

        peer = PeerStation(order)
        opened.callback(peer.close)
        return {"run": peer.run}, peer.ready
    from jobs.timing.station import Station

    station = Station(order)
    return {"run": station.run, "record": station.record}, station.ready


class Fleet:
    """Workers by engine. Kept between turns where memory allows, else started for each turn (loading is not timed)."""

    def __init__(self, order_of: Callable[[Engine], Order], engines: int, free: int | None = None) -> None:
        self._order_of, self._engines = order_of, engines
        self._free = free_memory() if free is None else free
        self._workers: dict[Engine, Worker] = {}
        self.kept = True

    def run(self, engine: Engine) -> Any:
        worker = self._workers.get(engine) or self.start(engine)
        try:
            return worker.ask("run")
        finally:
            if not self.kept:
                self._stop(engine)

    def start(self, engine: Engine) -> Worker:
        worker = self._workers[engine] = Worker(self._order_of(engine))
        if worker.ready.resident * self._engines > KEPT_SHARE * self._free:
            self.kept = False
        return worker

    def ready(self, engine: Engine) -> Any:
        """Starts the engine to see whether it can be; leaves it running only where engines are kept."""
        worker = self._workers.get(engine) or self.start(engine)
        if not self.kept:
            self._stop(engine)
        return worker.ready

    def close(self) -> None:
        for engine in list(self._workers):
            self._stop(engine)

    def _stop(self, engine: Engine) -> None:
        worker = self._workers.pop(engine, None)
        if worker is not None:
            worker.stop()
