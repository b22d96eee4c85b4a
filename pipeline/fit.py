"""Whether a job fits the machines that it is to run on: its pool, its units, and the cache of its model."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping

from hpd_core import quantization
from hpd_core.sizing import free_memory
from hpd_core.source import check_loadable
from pipeline.job import JobError, JobSpec, Pool

#: Of each actor: one that it decodes, one that waits for it, one that is being read and one that is being committed.
_UNITS_IN_STORE = 4


def check_fit(pool: Pool, cpus: float, gpus: float) -> None:
    """Raises `JobError` where the pool at its largest leaves no CPU to read, tokenize and commit with: actors that hold
    all CPUs wait for rows for ever."""
    needed = pool.max_size * pool.cpus + pool.read_cpus + pool.commit_cpus
    if needed > cpus:
        raise JobError(
            f"the pool does not fit: {pool.max_size} actors x {pool.cpus:g} CPUs + {pool.read_cpus:g} to read and "
            f"tokenize + {pool.commit_cpus:g} to commit = {needed:g} CPUs, and there are {cpus:g}"
        )
    if pool.max_size * pool.gpus > gpus:
        raise JobError(
            f"the pool does not fit: {pool.max_size} actors x {pool.gpus:g} GPUs = {pool.max_size * pool.gpus:g} GPUs, "
            f"and there are {gpus:g}"
        )


def room(pool: Pool, has: Mapping[str, float], free: Mapping[str, float]) -> str:
    """What the pool asks, beside what a cluster `has` now and what of it is `free`, by Ray's names: for people."""
    cpus = pool.max_size * pool.cpus + pool.read_cpus + pool.commit_cpus
    needs = {"CPU": cpus} | ({"GPU": pool.max_size * pool.gpus} if pool.gpus else {})
    there = [f"{has.get(name, 0.0):g} {name}s, {free.get(name, 0.0):g} of them free" for name in needs]
    asked = " and ".join(f"{number:g} {name}s" for name, number in needs.items())
    return f"{pool.max_size} actors, reading and committing ask for {asked}; the cluster has {' and '.join(there)}"


def check_store(pool: Pool, unit_bytes: int, store_bytes: float) -> None:
    """Raises `JobError` where Ray's object store does not hold `_UNITS_IN_STORE` of the largest units for each actor: a
    stream that spills its units to disk, or waits for room, is slower than its actors.

    unit_bytes: of the largest unit, uncompressed, as its file's footer has it.
    """
    needed = _UNITS_IN_STORE * pool.max_size * unit_bytes
    if needed > store_bytes:
        raise JobError(
            f"Ray's object store is too small: {pool.max_size} actors x {_UNITS_IN_STORE} units x {_mib(unit_bytes)} "
            f"(the largest) = {_mib(needed)}, and it has {_mib(store_bytes)}. Lower units.bytes or units.rows, start "
            "Ray with a larger object_store_memory, or take fewer actors"
        )


def _mib(size: float) -> str:
    return f"{size / 2**20:,.1f} MiB"


def check_machine(job: JobSpec) -> None:
    """Checks before anything is written whether the model can be quantised as it is asked to, and, where this process
    is going to start a Ray of its own, whether the pool fits and the model can be unpacked here. The GPUs are known
    only once Ray runs.

    Raises `JobError`, ModelNotFoundError or SettingsError.
    """
    model = job.decoder.model
    on_gpu = job.pool.gpus > 0 or job.pool.device == "cuda"
    quantization.check(model, dtype=model.dtype, on_gpu=on_gpu, gpus=job.pool.gpus)
    ray = sys.modules.get("ray")
    if job.ray_address is not None or (ray is not None and ray.is_initialized()):
        return
    check_fit(job.pool, job.num_cpus or os.cpu_count() or 1, math.inf)
    if job.encoder_factory is None:
        quantization.check_installed(model)
        # A GPU's own memory is seen in the actor.
        check_loadable(model, copies=job.pool.max_size, free=free_memory(), to_gpu=on_gpu)
