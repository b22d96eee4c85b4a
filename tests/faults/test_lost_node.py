"""A machine that is taken away with all that runs on it, as spot machines are: the driver, on another one, goes on with
the next machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from pipeline.events import Event, Progress
from pipeline.job import Pool
from pipeline.manifest import OutputFolder
from pipeline.run import run
from pipeline.storage import Storage
from pipeline.verify import verify
from tests.pipeline.fakes import HashDecoders
from tests.pipeline.helpers import assert_exact, input_table, job, shards

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
NODE = {"num_cpus": 3, "object_store_memory": 100_000_000}


@pytest.fixture
def machines() -> Iterator[Cluster]:
    """The driver's, where nothing else may run."""
    made = Cluster(initialize_head=True, head_node_args=NODE | {"num_cpus": 0, "include_dashboard": False})
    yield made
    ray.shutdown()
    made.shutdown()


def test_a_node_that_goes_costs_what_was_under_way_and_no_row(tmp_path: Path, machines: Cluster) -> None:
    source = shards(tmp_path / "in", 3, rows=80, row_group_size=20)
    spot, done = machines.add_node(**NODE), 0
    pool = Pool(cpus=1.0, min_size=1, max_size=2)
    decoders = HashDecoders(tmp_path / "calls.log", delay=0.5)
    spec = job(tmp_path, source, decoder_factory=decoders, pool=pool, ray_address=machines.address)

    def watch(progress: Progress) -> None:
        nonlocal done
        done += progress.event is Event.COMMITTED
        if done == 2 and spot in machines.list_all_nodes():
            machines.add_node(**NODE)
            machines.remove_node(spot, allow_graceful=False)

    summary = run(spec, progress=watch)

    assert spot not in machines.list_all_nodes() and summary.complete and summary.rows_in == summary.rows_ok == 240
    assert_exact(tmp_path / "out", input_table(source))
    assert 240 <= sum(decoders.calls()) <= 240 + 2 * 20 * pool.max_size
    assert summary.metrics["run"]["rounds"] <= 2


def test_a_node_that_goes_for_good_ends_the_run_with_the_numbers_and_the_next_one_completes_it(
    tmp_path: Path, machines: Cluster
) -> None:
    """The actors that it held start again on the other one, and leave no CPU there to read and commit with."""
    source = shards(tmp_path / "in", 3, rows=80, row_group_size=20)
    stays, goes = (machines.add_node(**NODE) for _ in range(2))
    pool = Pool(cpus=1.0, min_size=4, max_size=4, stall_seconds=40.0)  # Ray takes half of them to miss a node
    decoders = HashDecoders(tmp_path / "calls.log", delay=2.0)
    spec = job(tmp_path, source, decoder_factory=decoders, pool=pool, ray_address=machines.address)
    spec = replace(spec, pack_deadline_seconds=20.0)

    def watch(progress: Progress) -> None:
        if progress.event is Event.COMMITTED and goes in machines.list_all_nodes():
            machines.remove_node(goes, allow_graceful=False)

    stalled = run(spec, progress=watch)

    assert stays in machines.list_all_nodes() and not stalled.complete and 0 < stalled.rows_in < 240
    assert "ask for 4.75 CPUs; the cluster has 3 CPUs, 0 of them free" in stalled.failures[0]
    ray.shutdown()  # as the end of the first driver's process would: tasks that it left queued end with it
    assert run(replace(spec, pool=Pool(cpus=1.0, max_size=2))).complete
    assert verify(OutputFolder(spec.output, Storage()), Storage()).findings == ()
    assert_exact(tmp_path / "out", input_table(source))
