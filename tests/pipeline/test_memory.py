"""What an actor does when its memory runs out, when its device is lost and when a decode never returns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from hpd_core.prompt import EncodedDocument
from hpd_core.rows import Extraction
from hpd_core.spec import DecoderSpec
from pipeline.actor import deadline, living_device
from pipeline.run import run
from tests.pipeline.fakes import HashDecoder, HashDecoders, text_of
from tests.pipeline.helpers import assert_exact, inline, job, write
from tests.pipeline.holding import FORK

BIG = "<needs all the memory there is>"


def cpu() -> None:
    torch.empty(2**50)


def cuda(message: str, kind: type[Exception] = RuntimeError) -> None:
    raise kind(message)


#: Each as it comes: the first is torch's own allocator, the others are made, with the words of the real ones.
OUT_OF_MEMORY = {
    "cpu": cpu,
    "python": partial(cuda, "", MemoryError),
    "cuda": partial(cuda, "CUDA out of memory. Tried to allocate 20.00 GiB.", torch.OutOfMemoryError),
    "cuda runtime": partial(cuda, "CUDA error: out of memory", torch.AcceleratorError),
    "cublas": partial(cuda, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
}
LOST_DEVICE = {
    "illegal access": partial(cuda, "CUDA error: an illegal memory access was encountered", torch.AcceleratorError),
    "assert": partial(cuda, "CUDA error: device-side assert triggered"),
    "cublas": partial(cuda, "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(handle)`"),
}


@dataclass(frozen=True)
class Cramped(HashDecoders):
    """Has room for three documents at a time, and never for a `BIG` one."""

    full: Callable[[], None] = cpu

    def __call__(self, spec: DecoderSpec, device: str, threads: int) -> HashDecoder:
        return CrampedDecoder(self)


class CrampedDecoder(HashDecoder):
    make: Cramped

    def extract_encoded(self, documents: Sequence[EncodedDocument]) -> Extraction:
        if len(documents) > 3 or any(BIG in text_of(d) for d in documents):
            self.make.full()
        return super().extract_encoded(documents)


@pytest.mark.parametrize("kind", OUT_OF_MEMORY)
def test_a_pack_that_does_not_fit_is_halved_and_a_document_that_never_does_is_a_row_in_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("pipeline.drive.drive", inline)
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    titles = [f"title {i}" for i in range(20)]
    titles[13] = f"a {BIG}"
    write(tmp_path / "in/a.parquet", {"title": titles})
    decoders = Cramped(tmp_path / "calls.log", full=OUT_OF_MEMORY[kind])
    summary = run(job(tmp_path, tmp_path / "in", decoder_factory=decoders))
    assert summary.complete and (summary.rows_ok, summary.rows_error) == (19, 1)
    table = assert_exact(tmp_path / "out", pa.table({"title": titles}), errors=[titles[13]])
    reason = table.column("hpd_error")[13].as_py()
    assert reason.startswith("decoding: it does not fit the memory, even alone: MemoryError"), reason
    assert max(decoders.calls()) <= 3 and sum(decoders.calls()) == 19
    if kind == "cpu":
        assert "can't allocate memory: you tried to allocate" in reason


def ends_as(body: Callable[[], None]) -> int | None:
    """Exit code of a process that does this and nothing else."""
    process = FORK.Process(target=body)
    process.start()
    process.join(60)
    return process.exitcode


def guarded(failure: Callable[[], None]) -> None:
    with living_device():
        failure()


@pytest.mark.parametrize("kind", LOST_DEVICE)
def test_a_lost_device_ends_the_actor(kind: str) -> None:
    assert ends_as(partial(guarded, LOST_DEVICE[kind])) == 13


@pytest.mark.parametrize("error", [ValueError("a document is empty"), RuntimeError("shapes do not match")])
def test_any_other_error_is_the_packs(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)), living_device():
        raise error


def test_a_decode_that_never_returns_ends_the_actor_and_one_that_does_leaves_no_alarm() -> None:
    def hang() -> None:
        with deadline(0.3):
            time.sleep(60)

    def return_in_time() -> None:
        with deadline(0.3):
            pass
        time.sleep(0.6)

    started = time.monotonic()
    assert ends_as(hang) == 1 and time.monotonic() - started < 30
    assert ends_as(return_in_time) == 0
