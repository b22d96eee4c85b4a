"""What Prometheus finds at Ray's endpoint during and after a real run."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
import ray

from hpd_core.prompt import EncodedDocument
from hpd_core.rows import Counts, Extraction
from hpd_core.spec import DecoderSpec
from pipeline import metric_names as names
from pipeline.job import UnitCaps
from pipeline.metric_names import ALL, COUNTS, MetricKind
from pipeline.run import run
from tests.pipeline.fakes import RAISE, SHORT, HashDecoder, HashDecoders
from tests.pipeline.helpers import job, write

SAMPLE = re.compile(r"(ray_hpd_\w+)\{(.*)\} ([0-9.e+-]+)")


@dataclass(frozen=True)
class CountedDecoders(HashDecoders):
    """As `HashDecoders`, with something in every count."""

    def __call__(self, spec: DecoderSpec, device: str, threads: int) -> CountedDecoder:
        return CountedDecoder(self)


class CountedDecoder(HashDecoder):
    def extract_encoded(self, documents: Sequence[EncodedDocument]) -> Extraction:
        extraction = super().extract_encoded(documents)
        for number, field in enumerate(fields(Counts), 2):
            if not getattr(extraction.counts, field.name):
                setattr(extraction.counts, field.name, number)
        return extraction


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A small Ray that exports every second; the address of its metrics."""
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=200_000_000,
        _system_config={"metrics_report_interval_ms": 1000},
    )
    [node] = ray.nodes()
    yield f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    ray.shutdown()


def scrape(endpoint: str) -> dict[str, float]:
    """{"name" or "name label=value": sum over all workers} of what HPD exports; the labels are those of the metric."""
    with urllib.request.urlopen(endpoint, timeout=10) as answer:
        text = answer.read().decode()
    found: defaultdict[str, float] = defaultdict(float)
    for name, labels, number in SAMPLE.findall(text):
        assert re.search(rf'\b{names.JOB}="\w+"', labels), labels
        own = [
            label for label in re.findall(r'\w+="[^"]*"', labels) if label.startswith(("status=", "stage=", "column="))
        ]
        for key in {name, " ".join([name, *own])}:
            found[key] += float(number)
    return dict(found)


@pytest.mark.slow
def test_a_run_is_found_at_the_endpoint_with_the_numbers_of_metrics_json(endpoint: str, tmp_path: Path) -> None:
    titles = [f"title {number}" for number in range(12)]
    titles[3], titles[9] = f"a {RAISE}", f"a {SHORT}"  # a row in error, and a unit that fails for good
    write(tmp_path / "in/a.parquet", {"title": titles})
    decoders = CountedDecoders(tmp_path / "calls.log", delay=0.7)
    spec = job(
        tmp_path, tmp_path / "in", decoder_factory=decoders, units=UnitCaps(rows=2), max_rounds=2, price_per_hour=3600.0
    )
    seen: dict[str, float] = {}
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            seen.update(scrape(endpoint))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        summary = run(spec)
        facts = json.loads((tmp_path / "out/metrics.json").read_text())
        wanted = {COUNTS[name].scraped: float(number) for name, number in facts["decode"].items()}
        wanted |= {f'{names.ROWS.scraped} status="{s}"': float(n) for s, n in facts["rows"].items() if n}
        wanted |= {f'{names.VALUES.scraped} column="{c}"': float(n) for c, n in facts["values"].items()}
        wanted |= {names.UNITS.scraped: 5.0, names.FAILED.scraped + ' stage="decode"': 2.0}
        wanted |= {names.RETRIES.scraped: 1.0, names.WASTED.scraped: float(facts["run"]["wasted_tokens"])}
        deadline = time.monotonic() + 60
        least = facts["run"]["stream_seconds"]  # what came before it is paid for, too
        while time.monotonic() < deadline and (
            any(seen.get(n) != pytest.approx(v) for n, v in wanted.items())
            or seen.get(names.DOLLARS.scraped, 0.0) < least
        ):
            time.sleep(0.5)
    finally:
        over.set()
        watcher.join()
    assert not summary.complete and (summary.rows_in, summary.rows_error) == (10, 1)
    assert {name: seen.get(name) for name in wanted} == pytest.approx(wanted)
    assert (seen[names.ROWS_PLANNED.scraped], seen[names.ROWS_DONE.scraped]) == (12, 10)
    assert least <= seen[names.DOLLARS.scraped] <= facts["run"]["seconds"]
    assert seen[f'{names.STAGE_SECONDS.scraped} stage="decode"'] == pytest.approx(facts["seconds"]["decode"], rel=0.01)
    found = {m.scraped: f"{m.scraped}_count" if m.kind is MetricKind.HISTOGRAM else m.scraped for m in ALL}
    assert [name for name, sample in found.items() if sample not in seen] == []
