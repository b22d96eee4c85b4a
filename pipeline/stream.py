"""One Ray Data stream over units: read and tokenize -> decode -> commit. Ray schedules, streams and retries; a unit is
one block from end to end, and what comes out is one receipt per unit that did not take its worker down."""

from __future__ import annotations

import logging
import secrets
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.data import ActorPoolStrategy, DataContext, Dataset, read_datasource
from ray.data._internal.execution.execution_callback import ExecutionCallback
from ray.util.annotations import RayDeprecationWarning

from pipeline.actor import DecodeActor, DecodeStage
from pipeline.commit import CommitStage, Receipt
from pipeline.fit import check_fit, check_store
from pipeline.job import JobError, Pool, RayNotStartedError
from pipeline.ledger import Attempt, Ledger, Pulse
from pipeline.read import UnitSource
from pipeline.storage import Storage
from pipeline.tokenize import TokenizeStage
from pipeline.units import Unit

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stages:
    """What each task and actor of a job's stream needs to know, and what all may take.

    source: of the units. columns: that are read of them, None for all.
    """

    source: Storage
    columns: tuple[str, ...] | None
    tokenize: TokenizeStage
    decode: DecodeStage
    commit: CommitStage
    pool: Pool


@contextmanager
def cluster(address: str | None, num_cpus: int | None, pool: Pool, unit_bytes: int = 0) -> Iterator[None]:
    """A Ray to run in: the one this process is connected to, the one at `address`, or a new one with `num_cpus`.

    unit_bytes: of the largest unit. Whoever starts it ends it. Raises `JobError` where there is none, it cannot be
    started, or pool and units do not fit; `RayNotStartedError` where it did not start this time.
    """
    owned = not ray.is_initialized()
    # What Ray would say to people (advice on its own settings) is not about their job; what fails is raised or counted.
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    if owned:
        try:
            with _own_sigterm():
                if address:
                    ray.init(address=address, **quiet)
                else:
                    ray.init(address="local", num_cpus=num_cpus, include_dashboard=False, **quiet)
        except OSError as e:  # ConnectionError is one
            if address:
                raise JobError(f"Ray at {address} cannot be reached: {e}") from e
            raise JobError(
                f"Ray cannot be started here: {e}. It writes below HOME and RAY_TMPDIR (/tmp without it): set them to "
                "folders that can be written"
            ) from e
        except Exception as e:  # some are bare: Ray waits 30 seconds for its processes, busy or not
            if address:
                raise JobError(f"Ray at {address} cannot be used: {e}") from e
            raise RayNotStartedError(f"Ray did not come up here, too busy a machine perhaps: {e}") from e
    try:
        resources = ray.cluster_resources()
        check_fit(pool, resources.get("CPU", 0.0), resources.get("GPU", 0.0))
        check_store(pool, unit_bytes, resources.get("object_store_memory", 0.0))
        yield
    finally:
        if owned:
            ray.shutdown()


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """The program's handler of SIGTERM, where it has one, during and after the body: Ray puts its own in its place,
    which exits with a code of Ray's."""
    ours = signal.getsignal(signal.SIGTERM)
    if not callable(ours) or threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        yield
    except SystemExit:  # Ray's handler, while it starts
        ours(signal.SIGTERM, None)
        raise
    finally:
        signal.signal(signal.SIGTERM, ours)


def start_ledger() -> Any:
    """The actor that counts attempts; restarted empty where it is lost."""
    return ray.remote(num_cpus=0, max_restarts=1)(_LedgerActor).remote()


class _LedgerActor(Ledger):
    def __init__(self) -> None:
        super().__init__(restarted=bool(ray.get_runtime_context().was_current_actor_reconstructed))


def read_ledger(ledger: Any) -> dict[str, dict[str, Attempt]] | None:
    """{unit name: {attempt id: attempt}}, None where the ledger is lost."""
    try:
        return dict(ray.get(ledger.report.remote(), timeout=30))
    except Exception:
        log.warning("the ledger of attempts is lost; attempts and waste of this run are not known", exc_info=True)
        return None


def read_pulse(ledger: Any, deadline: float) -> Pulse | None:
    """`Ledger.pulse`, None where the ledger does not answer."""
    try:
        pulse: Pulse = ray.get(ledger.pulse.remote(deadline), timeout=2)
    except Exception:
        log.debug("the ledger of attempts does not answer", exc_info=True)
        return None
    return pulse


def resources() -> tuple[Mapping[str, float], Mapping[str, float]]:
    """What the cluster has now, and what of it nobody has taken, by Ray's names."""
    return ray.cluster_resources(), ray.available_resources()


def receipts(units: Sequence[Unit], stages: Stages, ledger: Any, look: Callable[[], None]) -> Iterator[Receipt]:
    """Runs `units` through the stages; yields receipts as units end. A unit whose worker died too often has none.

    look: is called several times a second, whether anything happens or not, from a thread of Ray's. What it raises
    ends the stream and is raised here.
    """
    names = _ActorNames(f"hpd-{secrets.token_hex(6)}")
    steps = _Steps(look)
    try:
        with DataContext.current(stream_context(DataContext.get_current(), steps)):
            stream = dataset(units, stages, ledger, names)
            for block in stream.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
                yield from Receipt.from_block(block)
    except Exception:
        if steps.raised is not None:
            raise steps.raised from None  # not as Ray may have wrapped it
        raise
    finally:
        # Ray Data lets go of its actors and leaves the rest to reference counting. One that is being restarted at that
        # moment, or that a traceback still refers to, stays, and its CPUs are missing in the next round for ever.
        for name in ray.util.list_named_actors():
            if name.startswith(names.prefix):
                _end(name)


class _Steps(ExecutionCallback):
    """Looks at each step of a stream's execution. Who waits for the next block waits for ever where none comes, and
    Ray 2.60 has no other way to end that than an error in here.

    Ray is given this object in place of a class, and copies the context that holds it: every copy is this very one.
    """

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self.raised: Exception | None = None

    def __call__(self) -> _Steps:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> _Steps:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type, (ExecutionCallback(),)  # what workers get of the context: a class that does nothing

    def on_execution_step(self, executor: object) -> None:
        try:
            self._look()
        except Exception as e:
            self.raised = e
            raise


def dataset(units: Sequence[Unit], stages: Stages, ledger: Any, names: _ActorNames) -> Dataset:
    pool = stages.pool
    whole = {"batch_size": None, "batch_format": "pyarrow", "zero_copy_batch": True}
    source = UnitSource(units, stages.source, stages.columns)
    read = read_datasource(source, num_cpus=pool.read_cpus, override_num_blocks=len(units))
    with warnings.catch_warnings():
        # What Ray 2.60 has no other way to say: restarts, retries and names of the actors of a pool.
        warnings.simplefilter("ignore", RayDeprecationWarning)
        return (
            # The same request as the read, so that Ray fuses both into one task.
            read.map_batches(stages.tokenize.__call__, num_cpus=pool.read_cpus, **whole)
            .map_batches(
                DecodeActor,
                fn_constructor_args=(stages.decode, ledger),
                compute=ActorPoolStrategy(
                    min_size=pool.min_size, max_size=pool.max_size, max_tasks_in_flight_per_actor=1
                ),
                num_cpus=pool.cpus,
                num_gpus=pool.gpus or None,
                max_restarts=-1,
                max_task_retries=pool.max_retries,
                ray_remote_args_fn=names,
                **whole,
            )
            .map_batches(stages.commit.__call__, num_cpus=pool.commit_cpus, **whole)
        )


@dataclass(frozen=True, slots=True)
class _ActorNames:
    """Gives every actor of a stream a name under `prefix`, by which it can be found and ended."""

    prefix: str

    def __call__(self) -> dict[str, Any]:
        return {"name": f"{self.prefix}-{secrets.token_hex(6)}"}


def _end(name: str) -> None:
    try:
        ray.kill(ray.get_actor(name))
    except ValueError:
        log.debug("actor %s has ended by itself", name)


def stream_context(context: DataContext, steps: _Steps) -> DataContext:
    """A copy of `context` under which a block stays a unit, a lost block stays one lost block, and `steps` looks on."""
    context = context.copy()
    context.custom_execution_callback_classes = [*context.custom_execution_callback_classes, steps]
    context.target_max_block_size = None  # or blocks are cut after each stage
    context.max_errored_blocks = -1
    context.execution_no_progress_timeout_s = -1
    context.max_tasks_in_flight_per_actor = 1
    # With one task in flight a pool is never used above 100 %, where Ray's default would start to grow it.
    context.autoscaling_config.actor_pool_util_upscaling_threshold = 0.99
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.issue_detectors_config = replace(context.issue_detectors_config, detectors=[])
    return context
