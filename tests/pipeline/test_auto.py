"""`auto` decode settings: measured once, where an actor could run; kept in run.json, reused, part of what a job is."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpd_core.checkpoint import ModelUnavailableError
from hpd_core.settings import DecodeSettings
from hpd_core.sizing import Measured
from hpd_core.spec import DecoderSpec
from pipeline.job import JobError, JobSpec, Pool
from pipeline.measure import measured_settings, sharers
from pipeline.prepare import Prepared, prepare, with_settings
from pipeline.resume import open_run
from pipeline.run import run
from tests.pipeline.fakes import SPEC
from tests.pipeline.helpers import inline, job, shards, write

AUTO = DecodeSettings(tokens_per_step="auto", max_slots="auto", kv_mib="auto")
RATES = {64: 1e9, 128: 9.5e9, 256: 10e9}


@dataclass(frozen=True)
class Prober:
    """Measures by decree; every call leaves a line in `log`: its process, and how many share the memory."""

    log: Path
    rates: tuple[tuple[int, float], ...] = tuple(RATES.items())

    def __call__(self, spec: DecoderSpec, device: str, threads: int, sharing: float) -> Measured:
        if not self.rates:
            raise FileNotFoundError("no such model")
        with self.log.open("a") as log:
            log.write(f"{os.getpid()} {sharing}\n")
        return Measured(dict(self.rates), 2**32, "cpu", "float32", threads)

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    shards(tmp_path / "in", count=1)
    return job(tmp_path, tmp_path / "in", decoder=replace(SPEC, settings=AUTO), prober=Prober(tmp_path / "probes.log"))


def set_to(spec: JobSpec, **sizes: int | None) -> JobSpec:
    return replace(spec, decoder=replace(spec.decoder, settings=replace(AUTO, **sizes)))  # type: ignore[arg-type]


def sizes(settings: DecodeSettings) -> tuple[object, object, object]:
    return settings.tokens_per_step, settings.max_slots, settings.kv_mib


@pytest.mark.usefixtures("cluster")
class TestOnRay:
    def test_a_job_measures_once_in_a_worker_and_keeps_what_it_decided(self, spec: JobSpec, tmp_path: Path) -> None:
        said: list[str] = []
        partial = replace(spec, limit=20)
        assert run(partial, say=said.append).complete
        [call] = spec.prober.calls()  # type: ignore[union-attr]
        process, sharing = call.split()
        assert int(process) != os.getpid() and float(sharing) == 1
        assert said[0].startswith("measured: cpu, float32, 1 thread(s): 10 GFLOP/s") and "128 95 %" in said[0]
        assert said[1].startswith("decided: 128 tokens per step, 256 slots, 2,048 MiB of KV")
        first = json.loads((tmp_path / "out/run.json").read_text())
        assert sizes(DecodeSettings(**first["facts"]["decoder"]["settings"])) == (128, 256, 2048)
        assert first["measured"]["gflops_by_rows"] == {"64": 1.0, "128": 9.5, "256": 10.0}

        # More rows, then nothing to do, then numbers in place of `auto`: the same job, and nobody measures again.
        again: list[str] = []
        assert run(spec, say=again.append).rows_in == 40
        assert again == ["as decided before: 128 tokens per step, 256 slots, 2,048 MiB of KV"]
        assert run(spec).model_calls == 0
        assert run(set_to(spec, tokens_per_step=128, max_slots=256, kv_mib=2048)).model_calls == 0
        assert len(spec.prober.calls()) == 1  # type: ignore[union-attr]
        assert json.loads((tmp_path / "out/run.json").read_text()) == first | {"config": {}}
        with pytest.raises(JobError, match=r"begun by another job[\s\S]*settings.tokens_per_step: 128 -> 64"):
            run(set_to(spec, tokens_per_step=64))

    def test_what_cannot_be_measured_is_refused_and_leaves_no_file(self, spec: JobSpec, tmp_path: Path) -> None:
        broken = replace(spec, prober=Prober(tmp_path / "none", rates=()))
        with pytest.raises(JobError, match=r"FileNotFoundError: no such model. Set decode.tokens_per_step and"):
            run(broken)
        assert not [file for file in (tmp_path / "out").rglob("*") if file.is_file()]


def test_a_store_of_models_that_does_not_answer_a_measurement_may_answer_the_next(
    spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(*_: object, **__: object) -> None:
        error = RuntimeError("a traceback of a worker")
        error.cause = ModelUnavailableError("model s3://x/m: SlowDown")  # type: ignore[attr-defined]  # as Ray does
        raise error

    monkeypatch.setattr("ray.get", get)
    monkeypatch.setattr("ray.remote", lambda **_: lambda probe: SimpleNamespace(remote=lambda *rest: None))
    with pytest.raises(ModelUnavailableError, match=r"^model s3://x/m: SlowDown$"):
        measured_settings(prepare(spec), print)


def decided(spec: JobSpec, settings: DecodeSettings) -> Prepared:
    return with_settings(prepare(spec), settings, {"free_mib": 7})


def test_a_start_that_committed_nothing_is_taken_up_with_its_numbers_and_binds_nobody_else(spec: JobSpec) -> None:
    numbers = replace(AUTO, tokens_per_step=64, max_slots=8, kv_mib=3)
    begun = decided(spec, numbers)
    open_run(begun.output, begun.facts, None)
    same = prepare(spec)
    assert sizes(same.job.decoder.settings) == (64, 8, 3) and same.facts == begun.facts
    assert prepare(set_to(spec, tokens_per_step=65)).job.decoder.settings.is_auto  # another job measures for itself
    assert prepare(set_to(spec, tokens_per_step=64)).facts == begun.facts


def test_nothing_to_decode_starts_no_ray_and_measures_nothing(
    tmp_path: Path, spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.stream.cluster", None)
    monkeypatch.setattr("pipeline.drive.drive", inline)
    write(tmp_path / "empty/a.parquet", {"title": []})
    assert run(replace(spec, inputs=(str(tmp_path / "empty"),))).complete
    facts = json.loads((tmp_path / "out/run.json").read_text())["facts"]
    assert sizes(DecodeSettings(**facts["decoder"]["settings"])) == sizes(DecodeSettings())


def test_nothing_is_measured_on_a_ray_that_does_not_hold_the_units(
    spec: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 8.0, "object_store_memory": 1000.0})
    monkeypatch.setattr("pipeline.measure._ask", lambda job: pytest.fail("measured"))
    with pytest.raises(JobError, match="object store is too small"):
        run(spec)
    assert not (tmp_path / "out/run.json").exists()


@pytest.mark.parametrize(
    ("pool", "cpus", "beside"),
    [
        (Pool(cpus=1.0), 16, 1),
        (Pool(max_size=4, cpus=2.0), 16, 4),
        (Pool(max_size=40, cpus=2.0), 16, 8),  # the others run on other machines
        (Pool(max_size=40, cpus=20.0), 16, 1),
        (Pool(max_size=8, gpus=1.0), 16, 1),
        (Pool(max_size=8, gpus=0.25), 16, 4),
    ],
)
def test_actors_share_the_memory_of_one_machine_or_gpu(pool: Pool, cpus: int, beside: float) -> None:
    assert sharers(pool, cpus) == beside


def test_measuring_asks_only_for_what_is_auto(spec: JobSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.measure._ask", lambda job: Measured(RATES, 2**31, "cpu", "float32", 1))
    made = measured_settings(prepare(set_to(spec, tokens_per_step=77)), print)
    assert sizes(made.job.decoder.settings) == (77, 154, 1024)
    assert made.facts["facts"]["decoder"]["settings"]["tokens_per_step"] == 77
    assert made.facts["fingerprint"] == decided(spec, made.job.decoder.settings).facts["fingerprint"]
