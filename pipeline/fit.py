"""Whether a pool fits the machines it is to run on."""

from __future__ import annotations

import math
import os
import sys

from pipeline.job import JobError, JobSpec, Pool


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


def check_own_ray(job: JobSpec) -> None:
    """`check_fit` before anything is written, where this process is going to start a Ray of its own. Its GPUs are known
    only once it runs."""
    ray = sys.modules.get("ray")
    if job.ray_address is None and not (ray is not None and ray.is_initialized()):
        check_fit(job.pool, job.num_cpus or os.cpu_count() or 1, math.inf)
