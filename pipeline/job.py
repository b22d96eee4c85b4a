"""What a job is, as plain frozen data: the one thing `run()` takes. Nothing here knows YAML, Ray, torch or a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from hpd_core.rows import Extraction, RowStatus
from hpd_core.schema import Attribute, Document, Schema
from hpd_core.settings import Grounding
from hpd_core.sizing import Measured
from hpd_core.spec import DecoderSpec
from pipeline.uris import secret_fault


class JobError(ValueError):
    """A job that cannot be started as it is described: configuration, input, schema or a pool that does not fit."""


class RayNotStartedError(RuntimeError):
    """Ray did not come up; the same command may succeed later."""


@dataclass(frozen=True, slots=True)
class RowFault:
    """A row that is not decoded, and why. `status` is `no_text` or `error`."""

    status: RowStatus
    reason: str

    def __post_init__(self) -> None:
        if self.status.is_ok:
            raise ValueError(f"a fault cannot have the status {self.status.value!r}")


class RowReader(Protocol):
    """Turns input rows into documents. Must be picklable; runs inside tokenisation tasks."""

    def documents(self, table: pa.Table) -> Sequence[Document | RowFault]:
        """One `Document` or `RowFault` per row of `table`, in order. May not raise on what a row holds."""
        ...

    def check(self, schema: pa.Schema) -> None:
        """Raises `ValueError` naming the column that the template needs and the unified input `schema` lacks."""
        ...

    def columns(self) -> Sequence[str] | None:
        """Input columns that `documents` looks at, all of which `check` asks for; None where that cannot be told. Of a
        job that keeps few columns no others are read, and `documents` may not find them."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """JSON-able facts that decide which text and schema a row gets; part of the job's fingerprint."""
        ...


class Encoder(Protocol):
    """What tokenisation needs of `hpd_core.prompt.PromptEncoder`. `encode` gives an `EncodedDocument`'s fields."""

    def encode(self, document: Document) -> Any: ...


class Decoder(Protocol):
    """What an actor needs of `hpd_core.extractor.HyperParallelDecoder` and of the baselines."""

    def extract_encoded(self, documents: Sequence[Any]) -> Extraction: ...


EncoderFactory = Callable[[DecoderSpec], Encoder]
#: (spec, device, threads, decoders that share the machine's memory) -> what `auto` settings are decided from. Called at
#: most once in an output's life, where an actor could run.
Prober = Callable[[DecoderSpec, str, int, float], Measured]
#: (spec, device, threads) -> decoder. Called once in each actor's life, inside the actor.
DecoderFactory = Callable[[DecoderSpec, str, int], Decoder]


@dataclass(frozen=True, slots=True)
class UnitCaps:
    """Upper bounds of one unit, the piece of work that is committed whole.

    rows: at most this many rows.
    bytes: uncompressed bytes of those rows, as the Parquet footer gives them.
    seconds: expected time of an actor on it, with `documents_per_second`.
    documents_per_second: expected rate of one actor; only used to turn `seconds` into rows.
    """

    rows: int = 10_000
    bytes: int = 64 * 2**20
    seconds: float = 600.0
    documents_per_second: float = 20.0

    def __post_init__(self) -> None:
        if self.rows < 1 or self.bytes < 1 or self.seconds <= 0 or self.documents_per_second <= 0:
            raise JobError(f"unit caps must be positive: {self}")

    @property
    def max_rows(self) -> int:
        """Rows allowed by the caps in rows and in expected time."""
        return max(1, min(self.rows, int(self.seconds * self.documents_per_second)))


@dataclass(frozen=True, slots=True)
class Pool:
    """Actors and what each takes. None of this is in the fingerprint, `threads` apart (see `pipeline.resume.resolve`).

    min_size, max_size: bounds of the actor pool.
    cpus, gpus: Ray resources of one actor. More than one GPU: the layers of its model are spread over them.
    threads: torch threads of one actor; 0 means as many as its CPUs.
    device: `auto` | `cpu` | `cuda`.
    max_retries: further tries of a unit whose actor died, before the unit is cut.
    read_cpus, commit_cpus: Ray CPUs of one read-and-tokenise task and of one commit task.
    stall_seconds: the run ends, to be continued, once no unit has ended and no actor has begun anything for so long:
        the cluster has shrunk, or others fill it. A pack that is decoded counts until its deadline, a load for two
        hours.
    """

    min_size: int = 1
    max_size: int = 1
    cpus: float = 1.0
    gpus: float = 0.0
    threads: int = 0
    device: str = "auto"
    max_retries: int = 2
    read_cpus: float = 0.5
    commit_cpus: float = 0.25
    stall_seconds: float = 1800.0

    def __post_init__(self) -> None:
        if not 1 <= self.min_size <= self.max_size:
            raise JobError(f"pool size {self.min_size}..{self.max_size}: must be 1 <= min_size <= max_size")
        if not 0 < self.cpus < float("inf") or not 0 <= self.gpus < float("inf"):  # NaN is neither
            raise JobError(f"pool: cpus must be positive and gpus not negative, both finite: {self}")
        if self.threads < 0 or self.max_retries < 0:
            raise JobError(f"pool: threads and max_retries must not be negative: {self}")
        if self.read_cpus <= 0 or self.commit_cpus <= 0:
            raise JobError("pool: read_cpus and commit_cpus must be positive")
        if not self.stall_seconds > 0:
            raise JobError(f"pool: stall_seconds must be positive: {self}")
        if self.gpus > 1 and (self.gpus != int(self.gpus) or self.device == "cpu"):
            raise JobError(
                f"pool: gpus {self.gpus:g} of one actor, device {self.device}: a model is spread over a whole number "
                "of GPUs, and not on a CPU"
            )
        if len({self.read_cpus, self.cpus, self.commit_cpus}) < 3:
            raise JobError(
                f"pool: read_cpus {self.read_cpus}, cpus {self.cpus} and commit_cpus {self.commit_cpus} must differ: "
                "Ray fuses stages whose requests agree"
            )

    @property
    def model_device(self) -> str:
        """Where an actor puts its model: `spread` over its GPUs where it has several."""
        return "spread" if self.gpus > 1 else self.device


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Which columns the output has beside the attributes. Part of the fingerprint.

    columns: input columns to keep; None keeps all of them.
    confidence, statuses, raw: add `<column>__confidence`, `<column>__status`, `<column>__raw` for each attribute.
    spans: add `<column>__start`, `<column>__end` for each attribute, and `hpd_text`, the text that they count in, in
        characters (Unicode code points). Needs grounding.
    layout: `flat`, or `hive` to mirror the folders `key=value` of the input.
    profile: `athena` for names and types that Athena and Hive read; empty for those of the input.
    """

    columns: tuple[str, ...] | None = None
    confidence: bool = False
    statuses: bool = False
    raw: bool = False
    spans: bool = False
    layout: str = "flat"
    profile: str = ""

    def __post_init__(self) -> None:
        if self.layout not in ("flat", "hive"):
            raise JobError(f"output.layout {self.layout!r}: must be 'flat' or 'hive'")
        if self.profile not in ("", "athena"):
            raise JobError(f"output.profile {self.profile!r}: must be 'athena', or left out")

    def facts(self) -> dict[str, Any]:
        """JSON-able. What is younger than the first outputs is there only where it is set: their fingerprints stay."""
        younger = {"layout": "flat", "profile": ""}
        return {name: value for name, value in asdict(self).items() if name not in younger or value != younger[name]}


@dataclass(frozen=True, slots=True)
class JobSpec:
    """Everything `run()` needs.

    inputs: URIs or local paths of files, folders or globs (`/data/x.parquet`, `s3://bucket/prefix/`, `x/*.parquet`).
    output: URI or local path of the output folder.
    decoder: model, prompt and decode settings; what is `auto` in it is resolved by `run()`.
    reader: rows -> documents.
    schemas: one per category. Two schemas may share an output column where its type agrees.
    encoder_factory, decoder_factory, prober: None means the real ones, `PromptEncoder`, `HyperParallelDecoder` and
        `hpd_core.probe`.
    decoder_name: name of the decoder in the fingerprint (`hpd`, `ar`, …).
    input_storage, output_storage: fsspec options by argument name (s3: `key`, `secret`, `anon`, `endpoint_url`,
        `client_kwargs`, …). Never written anywhere.
    limit: only the first so many rows of the plan; None means all. Outside the fingerprint: a larger one extends a run.
    sample_units, sample_seed: only so many units of the plan, drawn at random. Outside the fingerprint as well: more
        of the same seed, or all, extend a run.
    pack_documents: different documents handed to the decoder in one call; a pack has one deadline.
    pack_deadline_seconds: an actor whose pack takes longer is ended from a C thread, and its unit tried in parts.
    max_rounds: tries of a unit that failed without killing a worker (a read or write that fails).
    on_bad_file: `fail` (the run ends incomplete) or `skip`; good files are processed in both cases.
    allow_mixed: go on although the output was begun under another fingerprint (same columns needed), and drop committed
        rows of earlier inputs that this job does not have.
    budget_seconds: stop taking new results after so long; the run ends incomplete and can be resumed.
    price_per_hour: of everything that runs, in dollars.
    ray_address: of a running cluster; None starts one in this process.
    num_cpus: CPUs of the cluster that is started; None for all of the machine.
    config: the resolved configuration as JSON-able data without secrets, written to run.json; decides nothing.
    """

    inputs: tuple[str, ...]
    output: str
    decoder: DecoderSpec
    reader: RowReader
    schemas: tuple[Schema, ...]
    encoder_factory: EncoderFactory | None = None
    decoder_factory: DecoderFactory | None = None
    prober: Prober | None = None
    decoder_name: str = "hpd"
    input_storage: Mapping[str, Any] = field(default_factory=dict)
    output_storage: Mapping[str, Any] = field(default_factory=dict)
    units: UnitCaps = UnitCaps()
    pool: Pool = Pool()
    output_options: OutputOptions = OutputOptions()
    limit: int | None = None
    sample_units: int | None = None
    sample_seed: int = 0
    pack_documents: int = 512
    pack_deadline_seconds: float = 1800.0
    max_rounds: int = 3
    on_bad_file: str = "fail"
    allow_mixed: bool = False
    budget_seconds: float | None = None
    price_per_hour: float = 0.0
    ray_address: str | None = None
    num_cpus: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", tuple(self.inputs))
        object.__setattr__(self, "schemas", tuple(self.schemas))
        if not self.inputs or not self.output or not self.schemas:
            raise JobError("a job needs at least one input, an output and at least one schema")
        if fault := next(filter(None, map(secret_fault, (*self.inputs, self.output))), None):
            raise JobError(fault)
        if self.limit is not None and self.limit < 1:
            raise JobError(f"limit {self.limit}: must be at least 1")
        if self.sample_units is not None and (self.sample_units < 1 or self.limit is not None):
            raise JobError(
                f"sample_units {self.sample_units}: must be at least 1, and without a limit ({self.limit}): the first "
                "rows of a catalog are no random sample of it"
            )
        if self.pack_documents < 1 or self.pack_deadline_seconds <= 0 or self.max_rounds < 1:
            raise JobError("pack_documents, pack_deadline_seconds and max_rounds must be positive")
        if self.on_bad_file not in ("fail", "skip"):
            raise JobError(f"on_bad_file {self.on_bad_file!r}: must be 'fail' or 'skip'")
        if self.price_per_hour < 0 or (self.budget_seconds is not None and self.budget_seconds <= 0):
            raise JobError("price_per_hour must not be negative and budget_seconds must be positive")
        if self.output_options.spans and self.decoder.settings.grounding is Grounding.OFF:
            raise JobError("output spans need grounding: nobody looks where a value stands while it is off")
        names = [s.name for s in self.schemas]
        if len(set(names)) != len(names):
            raise JobError(f"schema names repeat: {names}")

    def attributes(self) -> dict[str, Attribute]:
        """{output column: attribute} over all schemas, in order; raises `JobError` where two disagree on the type."""
        found: dict[str, tuple[Attribute, str]] = {}
        for schema in self.schemas:
            for attribute in schema:
                other, where = found.setdefault(attribute.column, (attribute, schema.name))
                first, second = (f"{'many ' * a.many}{a.type.value}" for a in (other, attribute))
                if first != second:
                    raise JobError(
                        f"output column {attribute.column!r}: schema {where!r} declares {first}, "
                        f"schema {schema.name!r} {second}"
                    )
        return {column: attribute for column, (attribute, _) in found.items()}
