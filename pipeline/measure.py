"""Decides `auto` decode settings where an actor could run: a driver may have no GPU, or another machine's memory."""

from __future__ import annotations

import os
from collections.abc import Callable

import ray

from hpd_core import sizing
from hpd_core.checkpoint import ModelUnavailableError
from hpd_core.sizing import Measured
from hpd_core.spec import DecoderSpec
from pipeline.actor import measure
from pipeline.block import explain
from pipeline.job import JobError, JobSpec, Pool, Prober
from pipeline.prepare import Prepared, with_settings

#: Importing torch, finding the model and measuring take seconds; a cluster may have to grow first.
_SECONDS = 900.0


def measured_settings(prepared: Prepared, say: Callable[[str], None]) -> Prepared:
    """`prepared` without `auto`. Needs a running Ray; tells people what was measured and what was decided.

    Raises `JobError` where it cannot be measured, ModelUnavailableError where the model's store did not answer.
    """
    found = _ask(prepared.job)
    settings = sizing.decided(prepared.job.decoder.settings, found)
    say(f"measured: {found}")
    say(f"decided: {sizing.shown(settings)}; reruns of this output keep it")
    return with_settings(prepared, settings, found.as_dict())


def sharers(pool: Pool, cpus: int) -> float:
    """Decoders that share the memory of a machine with so many CPUs, or of its GPU."""
    if pool.gpus:
        return max(1.0, 1 / pool.gpus)
    return float(min(pool.max_size, max(1, int(cpus // pool.cpus))))


def _ask(job: JobSpec) -> Measured:
    pool = job.pool
    # Its process ends with the call: one that stays would hold memory of the GPU.
    task = ray.remote(num_cpus=pool.cpus, num_gpus=pool.gpus or None, max_calls=1)(_probe)
    try:
        found: Measured = ray.get(task.remote(job.prober or measure, job.decoder, pool), timeout=_SECONDS)
    except Exception as error:
        cause = getattr(error, "cause", None) or error
        if isinstance(cause, ModelUnavailableError):
            raise ModelUnavailableError(str(cause)) from error
        names = " and ".join(f"decode.{name}" for name in sizing.SIZES)
        raise JobError(f"`auto` cannot be measured: {explain(cause)}. Set {names} to numbers") from error
    return found


def _probe(prober: Prober, spec: DecoderSpec, pool: Pool) -> Measured:
    return prober(spec, pool.model_device, pool.threads, sharers(pool, os.cpu_count() or 1))
