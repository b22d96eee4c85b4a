"""Whether `decode.closed_values: listed` could write every value of the schemas: told before the first unit, and not
row by row. Only a tokenizer knows."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hpd_core.schema import Schema
from hpd_core.settings import ClosedValues
from hpd_core.spec import DecoderSpec
from pipeline.job import JobError, JobSpec

if TYPE_CHECKING:
    from hpd_core.prompt import PromptEncoder

#: Values that a message lists.
_SHOWN = 10
#: Starting a process and finding the tokenizer take seconds; a cluster may have to grow first.
_SECONDS = 900.0

log = logging.getLogger(__name__)


def has_lists(job: JobSpec) -> bool:
    """Whether there is anything to check: lists, and a decoder that may write nothing else."""
    is_listed = job.decoder.settings.closed_values is ClosedValues.LISTED
    return is_listed and any(attribute.values for schema in job.schemas for attribute in schema)


def check_lists(encoder: PromptEncoder, schemas: Iterable[Schema]) -> None:
    """Raises `JobError` naming schema, attribute, value and its tokens where a value can never be written whole."""
    most = encoder.settings.max_value_tokens
    found = [(schema.name, long) for schema in schemas for long in encoder.long_values(schema)]
    if not found:
        return
    lines = [
        f"schema {schema!r}: the value {long.value!r} of {long.attribute!r} takes {long.tokens} tokens, its end "
        f"counted, and decode.max_value_tokens is {most}: under decode.closed_values: listed it could never be written"
        for schema, long in found[:_SHOWN]
    ]
    if len(found) > _SHOWN:
        lines.append(f"… and {len(found) - _SHOWN} more")
    lines.append(f"set decode.max_value_tokens to {max(long.tokens for _, long in found)}, or list shorter values")
    raise JobError("\n".join(lines))


def load_and_check(spec: DecoderSpec, schemas: Sequence[Schema]) -> None:
    """`check_lists` with the tokenizer of `spec`, which is loaded; raises what that raises."""
    from hpd_core.prompt import PromptEncoder  # transformers: seconds

    check_lists(PromptEncoder.from_spec(spec), schemas)


def check_where_it_runs(job: JobSpec) -> None:
    """`check_lists` in a task of the Ray that runs: a driver may have no such model. A tokenizer that cannot be loaded
    is no matter here, the first unit will say so better."""
    if job.encoder_factory is not None or not has_lists(job):
        return
    import ray

    # The request of tokenisation, in whose process the imports stay of use.
    task = ray.remote(num_cpus=job.pool.read_cpus, max_retries=1)(_problem)
    try:
        problem = ray.get(task.remote(job.decoder, job.schemas), timeout=_SECONDS)
    except Exception:
        log.warning("nobody has looked whether the closed lists fit decode.max_value_tokens", exc_info=True)
        return
    if problem:
        raise JobError(problem)


def _problem(spec: DecoderSpec, schemas: Sequence[Schema]) -> str:
    try:
        load_and_check(spec, schemas)
    except JobError as e:
        return str(e)
    except Exception:  # told by the first unit
        return ""
    return ""
