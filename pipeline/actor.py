"""The stateful actor, and the pipeline's only door to torch: loads the decoder once, decodes unit after unit."""

from __future__ import annotations

import faulthandler
import logging
import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import ray

from hpd_core.prompt import EncodedDocument
from hpd_core.rows import Extraction
from hpd_core.sizing import Measured
from hpd_core.spec import DecoderSpec
from pipeline.block import (
    METRICS,
    FailureKind,
    checked,
    constant,
    explain,
    failed,
    failure,
    first_text,
    not_loaded,
    unit_of,
)
from pipeline.device import commit_of, device_name, own_device
from pipeline.exports import ActorExports
from pipeline.job import Decoder, DecoderFactory
from pipeline.ledger import Rows
from pipeline.metrics import count, device_key, model_key
from pipeline.output import OutputColumns
from pipeline.pack import decode_items, prompt_tokens
from pipeline.peak import forget_peak, peak_memory
from pipeline.tokenize import ENCODED_COLUMNS, FAULT, SECONDS, from_columns
from pipeline.units import Unit

_LEDGER_SECONDS = 5.0
_DEAD_DEVICE = 13  # exit code of an actor whose CUDA context is lost

#: Words of torch's allocators, the CUDA runtime and its libraries, which come in exceptions of several types.
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DecodeStage:
    """What an actor needs to know.

    threads: torch threads. deadline_seconds: of one call of the decoder; loading has none. revision: of the model, see
    `pipeline.resume.revision_of`. price_per_hour: of one actor, in dollars.
    """

    decoder: DecoderSpec
    columns: OutputColumns
    device: str
    threads: int
    pack_documents: int
    deadline_seconds: float
    revision: str = ""
    price_per_hour: float = 0.0
    factory: DecoderFactory | None = None


class DecodeActor:
    """Encoded block -> the same rows with the output columns. `ledger` is a Ray handle of `pipeline.ledger.Ledger`."""

    def __init__(self, stage: DecodeStage, ledger: Any = None) -> None:
        self._stage = stage
        self._ledger = ledger
        self._deaf = False  # whether the ledger did not answer
        self._born = time.monotonic()
        # Loaded with the first unit: an actor that dies in its constructor would be restarted without end.
        self._decoder: Decoder | None = None
        self._exports = ActorExports()
        self._device = self._revision = ""
        self._where = ""  # as torch names it
        self._load_seconds = 0.0
        self._ended: float | None = None  # when the last unit was done

    def __call__(self, block: pa.Table) -> pa.Table:
        if failure(block):
            return block
        unit, most = unit_of(block), self._stage.deadline_seconds
        # This process began when the one before had ended: a pack that was begun a deadline earlier still had hung.
        if not unit.poison and self._tell("hung", unit.name, most + time.monotonic() - self._born):
            return failed(unit, FailureKind.WORKER, f"a pack took longer than run.pack_deadline_seconds ({most:g})")
        try:
            if self._decoder is None and block.column(FAULT).null_count:
                started = time.perf_counter()
                self._decoder = self._loaded()
                self._load_seconds = time.perf_counter() - started
                self._device = device_name(self._decoder, self._stage.device, self._stage.threads)
                self._where = own_device(self._decoder, self._stage.device)
                commit = commit_of(self._decoder)
                self._revision = self._stage.revision + (f", commit {commit}" if commit else "")
                model = self._stage.decoder.model
                self._exports.loaded(self._device, model.dtype, model.name, self._revision)
        except Exception as e:
            log.exception("the decoder cannot be loaded")
            return not_loaded(unit, "decoder", e)
        out = checked(FailureKind.DECODE, unit, block, self._run)
        if failure(out):
            self._ended = time.perf_counter()  # what it took was no waiting for the next unit
        return out

    def _loaded(self) -> Decoder:
        make = self._stage.factory or load
        self._tell("load")
        try:
            return make(self._stage.decoder, self._stage.device, self._stage.threads)
        finally:
            self._tell("loaded")

    def _run(self, unit: Unit, block: pa.Table) -> pa.Table:
        started, attempt = time.perf_counter(), secrets.token_hex(4)
        forget_peak(self._where)
        items = from_columns(block)
        places = {id(item): n for n, item in enumerate(items, unit.start)}

        def decode(documents: Sequence[EncodedDocument]) -> Extraction:
            numbers = [places[id(document)] for document in documents]
            pack = Rows(min(numbers), max(numbers) + 1)
            self._tell("spend", unit.name, attempt, prompt_tokens(self._decoder, documents), pack)
            assert self._decoder is not None
            with deadline(self._stage.deadline_seconds), living_device():
                return self._decoder.extract_encoded(documents)

        self._tell("spend", unit.name, attempt, 0)
        try:
            rows, counts = decode_items(self._exports.watched(decode), items, self._stage.pack_documents)
        except Exception:
            self._tell("fail", unit.name, attempt)
            raise
        tries = self._tell("finish", unit.name, attempt)
        metrics = count(rows, counts, self._stage.columns)
        metrics.seconds["tokenize"] = float(first_text(block.column(SECONDS)))
        if self._load_seconds:
            metrics.seconds["load"], self._load_seconds = self._load_seconds, 0.0
        elif self._ended is not None:
            metrics.seconds["idle"] = started - self._ended
        if self._device:
            model = self._stage.decoder.model
            metrics.devices[device_key(self._device, model.dtype)] = unit.rows
            metrics.models[model_key(model.name, self._revision)] = unit.rows
            metrics.peak_memory = peak_memory(self._where)
            self._exports.held(metrics.peak_memory)
        self._ended = time.perf_counter()
        metrics.seconds["decode"] = self._ended - started
        metrics.spent = self._spent(metrics.seconds, *(tries or (0, 0)))
        out = block.drop_columns([*ENCODED_COLUMNS, SECONDS])
        for name, column in zip(self._stage.columns.fields(), self._stage.columns.build(rows), strict=True):
            out = out.append_column(name, column)
        return out.append_column(METRICS, constant(metrics.to_json(), unit.rows))

    def _spent(self, seconds: Mapping[str, float], retries: int, wasted_tokens: int) -> Counter[str]:
        """`Metrics.spent`."""
        paid = sum(seconds.get(stage, 0.0) for stage in ("decode", "idle", "load"))
        dollars = round(paid / 3600 * self._stage.price_per_hour, 9)
        spent = {"retries": retries, "wasted_tokens": wasted_tokens, "dollars": dollars}
        return Counter({name: number for name, number in spent.items() if number})

    def _tell(self, method: str, *arguments: Any) -> Any:
        """What the ledger answers, None where it does not. Waits for it, so that what is told just before this process
        dies is not lost with it. One that does not answer is told all the same: from who is silent it concludes that
        nobody is at work."""
        if self._ledger is None:
            return None
        try:
            return ray.get(getattr(self._ledger, method).remote(*arguments), timeout=_LEDGER_SECONDS)
        except Exception:
            if not self._deaf:
                log.warning("the ledger of attempts does not answer", exc_info=True)
            self._deaf = True
            return None


def load(spec: DecoderSpec, device: str, threads: int) -> Decoder:
    """The real decoder."""
    # OpenMP threads that wait by spinning starve the tokenisation tasks of the same machine, and these them. A short
    # spin costs nothing on an idle machine (never to spin costs 40 %). Read once, when torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    from hpd_core.extractor import HyperParallelDecoder

    return HyperParallelDecoder.from_spec(spec, device=device, threads=threads)


def measure(spec: DecoderSpec, device: str, threads: int, sharing: float) -> Measured:
    """The real prober."""
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as `load` does
    from hpd_core import probe

    return probe.measure(spec, device=device, threads=threads, sharing=sharing)


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Ends this process when the body takes longer: a C thread does it, which a stuck interpreter cannot stop."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or sys.stderr)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextmanager
def living_device() -> Iterator[None]:
    """Ends this process, so that Ray replaces the actor, when an error has made its CUDA context useless. Memory that
    ran out, on the CPU or a device, leaves all usable: it is raised as `MemoryError`, whatever said so."""
    try:
        yield
    except Exception as e:
        torch = sys.modules.get("torch")
        if _is_out_of_memory(e):
            if torch is not None:
                torch.cuda.empty_cache()
            raise MemoryError(explain(e)) from None
        if "CUDA error" in str(e) or (torch is not None and isinstance(e, torch.AcceleratorError)):
            log.exception("the device is lost; ending the actor")
            logging.shutdown()
            os._exit(_DEAD_DEVICE)
        raise


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY)
    )
