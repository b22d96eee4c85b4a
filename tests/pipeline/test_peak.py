"""The peak of a stretch of work, and not of the process's life."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from pipeline.device import commit_of
from pipeline.peak import DEVICE, RESIDENT, forget_peak, peak_memory, resident_bytes

MIB = 2**20


def _held(size: int) -> None:
    block = bytearray(size)
    block[::4096] = b"x" * len(block[::4096])  # pages count once they are written


def test_the_peak_is_that_of_the_work_since_it_was_forgotten() -> None:
    if not resident_bytes("VmHWM"):
        pytest.skip("no /proc/self/status")
    _held(200 * MIB)
    forget_peak()
    before = resident_bytes("VmRSS")
    _held(60 * MIB)
    # What was let go of counts, and what came before does not.
    assert before + 50 * MIB < peak_memory()[RESIDENT] < before + 150 * MIB
    assert set(peak_memory("cpu")) == {RESIDENT}


def test_of_a_gpu_torch_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    cuda = SimpleNamespace(reset_peak_memory_stats=asked.append, max_memory_allocated=lambda device: 7 * MIB)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    forget_peak("cuda:1")
    assert asked == ["cuda:1"] and peak_memory("cuda:1")[DEVICE] == 7 * MIB


def test_a_model_of_the_hub_has_a_commit() -> None:
    config = SimpleNamespace(_commit_hash="c0ffee")
    assert commit_of(SimpleNamespace(model=SimpleNamespace(hf=SimpleNamespace(config=config)))) == "c0ffee"  # type: ignore[arg-type]
    assert commit_of(SimpleNamespace()) == ""  # type: ignore[arg-type]
