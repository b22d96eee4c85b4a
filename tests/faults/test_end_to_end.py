"""Whole runs from S3 to S3 with the fake decoder: undisturbed, refused, killed, throttled."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import ray
from typer.testing import CliRunner

from jobs.cli import app
from pipeline.run import run
from pipeline.storage import StorageError
from tests.faults.jobs import assert_exact_in_store, catalog, s3_job, stored
from tests.faults.proxy import Fault, Kind, Proxy
from tests.faults.server import INPUT, OUTPUT, READER, SECRETS, WRITER, Server, options
from tests.pipeline.fakes import HashDecoders
from tests.pipeline.helpers import inline, input_table, write


@pytest.mark.slow
def test_a_killed_driver_loses_and_doubles_nothing(
    server: Server, tmp_path: Path, repository: Path, request: pytest.FixtureRequest
) -> None:
    source = catalog(server, tmp_path, "killed", rows=80)
    command = [sys.executable, "-m", "tests.faults.jobs", str(tmp_path), server.endpoint, "killed"]
    driver = subprocess.Popen(command, cwd=repository, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    records, client = f"{OUTPUT}/killed/_manifest/units", server.client()
    try:
        deadline = time.monotonic() + 150
        while driver.poll() is None and time.monotonic() < deadline:
            if len(client.find(records)) >= 2:
                break
            time.sleep(0.05)
        assert driver.poll() is None, "the driver ended before it could be killed"
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    committed = len(client.find(records))
    assert 2 <= committed < 12 and "_SUCCESS" not in stored(server, "killed")

    request.getfixturevalue("cluster")  # only now: two Rays would share two CPUs
    summary = run(s3_job(tmp_path, server.endpoint, "killed", "second.log"))
    assert summary.complete and summary.rows_in == 240
    assert_exact_in_store(server, "killed", source, tmp_path)
    decoded = sum(HashDecoders(tmp_path / "second.log").calls())
    assert 0 < decoded <= 240 - 20 * committed  # what was committed is not computed again


@pytest.mark.parametrize(
    ("place", "bucket", "secret", "reason"),
    [
        ("input", INPUT, "wS3cr3t-wrong-3f3f3f3f", "signature"),
        ("output", OUTPUT, "wS3cr3t-wrong-3f3f3f3f", "signature"),
        ("input", "no-such-bucket", WRITER[1], "bucket does not exist"),
        ("output", "no-such-bucket", WRITER[1], "bucket does not exist"),
    ],
)
def test_a_store_that_refuses_ends_the_command_at_once(
    server: Server, tmp_path: Path, repository: Path, place: str, bucket: str, secret: str, reason: str
) -> None:
    places = {
        "input": str(repository / "samples/catalog"),
        "output": str(tmp_path / "out"),
        place: f"s3://{bucket}/a b",
    }
    storage = json.dumps(options(server.endpoint, (WRITER[0], secret)))
    command = ["extract", "--config", str(repository / "conf/quickstart.yaml"), "--set", f"{place}.storage={storage}"]
    command += ["--input", places["input"], "--output", places["output"]]
    started = time.monotonic()
    ended = CliRunner().invoke(app, command)
    assert time.monotonic() - started < 30
    assert ended.exit_code == 2 and not (tmp_path / "out").exists()
    assert f"error: s3://{bucket}/a b" in ended.output and reason in ended.output
    assert secret not in ended.output


def test_an_output_that_may_not_be_written_is_refused_before_anything_starts(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog(server, tmp_path, "readonly", count=1)
    monkeypatch.setattr("pipeline.stream.cluster", None)
    spec = s3_job(tmp_path, server.endpoint, "readonly", storage=options(server.endpoint, READER))
    with pytest.raises(
        StorageError, match=f"s3://{OUTPUT}/readonly/_manifest/lease.json: PermissionError: Access Denied"
    ):
        run(spec)


def test_a_file_that_cannot_be_reached_is_named_and_all_others_are_committed(
    server: Server, proxy: Proxy, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = catalog(server, tmp_path, "unreached")
    monkeypatch.setattr("pipeline.drive.drive", inline)
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    retries = {"mode": "legacy", "total_max_attempts": 2}
    spec = s3_job(tmp_path, proxy.endpoint, "unreached", storage=options(proxy.endpoint, retries=retries))
    monkeypatch.setattr("jobs.extract.compose", lambda *_, **__: spec)
    command = ["extract", "--config", str(repository / "conf/quickstart.yaml")]
    fault = proxy.add(Fault(Kind.ERROR, "GetObject", f"{INPUT}/unreached/part-0001*"))
    started = time.monotonic()

    ended = CliRunner().invoke(app, command)

    assert ended.exit_code == 4 and time.monotonic() - started < 60, ended.output
    assert fault.struck == 2
    [line] = [line for line in ended.output.splitlines() if line.startswith("failed:")]
    assert f"s3://{INPUT}/unreached/part-0001.parquet: not reached: " in line and "internal error" in line
    there = stored(server, "unreached")
    assert len([path for path in there if path.startswith("_manifest/units/")]) == 4 and "_SUCCESS" not in there

    proxy.forget()
    done = sum(HashDecoders(tmp_path / "calls.log").calls())
    ended = CliRunner().invoke(app, command)
    assert ended.exit_code == 0, ended.output
    assert sum(HashDecoders(tmp_path / "calls.log").calls()) - done == 40
    assert_exact_in_store(server, "unreached", source, tmp_path)


def test_inputs_replaced_removed_and_added_in_the_store_are_done_alone_and_told(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.drive.drive", inline)
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    catalog(server, tmp_path, "changed")
    spec = s3_job(tmp_path, server.endpoint, "changed")
    assert run(spec).complete
    done, before = sum(HashDecoders(tmp_path / "calls.log").calls()), stored(server, "changed")

    folder, client = tmp_path / "in", server.client()
    write(folder / "part-0000.parquet", {"id": list(range(40)), "title": [f"new {i}" for i in range(40)]})
    (folder / "part-0001.parquet").unlink()
    write(folder / "part-0003.parquet", {"id": [7], "title": ["added"]})
    client.rm_file(f"{INPUT}/changed/part-0001.parquet")
    client.put(f"{folder}/", f"{INPUT}/changed/", recursive=True)  # the third again, as it was: its tag stays

    summary = run(spec)
    assert summary.complete and (summary.rows_in, summary.rows_dropped) == (81, 80)
    assert sum(HashDecoders(tmp_path / "calls.log").calls()) - done == 41
    there = assert_exact_in_store(server, "changed", input_table(folder), tmp_path)
    kept = [path for path in before if path.startswith("data/part-0002-")]
    assert len(kept) == 2 and all(there[path] == before[path] for path in kept)
    assert not any("part-0001" in path for path in there)
    [change] = json.loads(there["_manifest/job.json"])["changes"]
    uris = [f"s3://{INPUT}/changed/part-000{number}.parquet" for number in (0, 1, 3)]
    assert [change[kind] for kind in ("replaced", "removed", "added")] == [[uri] for uri in uris]
    assert change["redone"] == [f"rows {rows} of {uris[0]}" for rows in ("0..20", "20..40")]


@pytest.mark.usefixtures("cluster")
def test_a_run_over_s3_is_exact_repeats_nothing_and_keeps_its_secrets(
    server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    name = "a b/größe=1"
    source = catalog(server, tmp_path, name)
    spec = s3_job(tmp_path, server.endpoint, name)
    summary = run(spec)
    assert summary.complete and (summary.rows_in, summary.rows_ok) == (120, 120)
    before = assert_exact_in_store(server, name, source, tmp_path)
    listed = {o["data"] for o in json.loads(before["_manifest/job.json"])["objects"]}
    assert listed == {path for path in before if path.startswith("data/")} and len(listed) == 6
    etags = {path: info["ETag"] for path, info in server.client().find(f"{OUTPUT}/{name}", detail=True).items()}

    again = run(spec)
    assert again.complete and again.model_calls == 0
    assert etags == {p: info["ETag"] for p, info in server.client().find(f"{OUTPUT}/{name}", detail=True).items()}

    logs = Path(ray._private.worker._global_node.get_logs_dir_path())
    written = [*before.values(), *(path.read_bytes() for path in logs.rglob("*") if path.is_file())]
    written += [text.encode() for text in (*capfd.readouterr(), caplog.text, repr(spec.config), str(summary))]
    assert len(written) > 20
    assert not any(secret.encode() in content for secret in SECRETS for content in written)


@pytest.mark.usefixtures("cluster")
def test_a_unit_that_cannot_be_written_is_named_and_done_once_it_can(
    server: Server, proxy: Proxy, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = catalog(server, tmp_path, "refused")
    retries = {"mode": "legacy", "total_max_attempts": 2}
    spec = s3_job(tmp_path, proxy.endpoint, "refused", storage=options(proxy.endpoint, retries=retries))
    monkeypatch.setattr("jobs.extract.compose", lambda *_, **__: spec)
    command = ["extract", "--config", str(repository / "conf/quickstart.yaml")]
    fault = proxy.add(Fault(Kind.ERROR, "PutObject", f"{OUTPUT}/refused/data/part-0001-*-000000000020-000000000040-*"))
    started = time.monotonic()

    ended = CliRunner().invoke(app, command)

    assert ended.exit_code == 4, ended.output
    assert time.monotonic() - started < 120 and fault.struck == 2 * spec.max_rounds
    [line] = [line for line in ended.output.splitlines() if line.startswith("failed:")]
    assert f"s3://{INPUT}/refused/part-0001.parquet: 1 unit(s), rows 20 to 40: commit:" in line
    assert f"s3://{OUTPUT}/refused/data/part-0001-" in line and "internal error" in line
    there = stored(server, "refused")
    assert len([path for path in there if path.startswith("_manifest/units/")]) == 5
    assert len([path for path in there if path.startswith("data/")]) == 5 and "_SUCCESS" not in there

    proxy.forget()
    done = sum(HashDecoders(tmp_path / "calls.log").calls())
    ended = CliRunner().invoke(app, command)
    assert ended.exit_code == 0, ended.output
    assert sum(HashDecoders(tmp_path / "calls.log").calls()) - done == 20
    assert_exact_in_store(server, "refused", source, tmp_path)
    assert server.client().list_multipart_uploads(OUTPUT) == []


@pytest.mark.usefixtures("cluster")
def test_a_store_that_throttles_and_loses_answers_delays_a_run_and_no_more(
    server: Server, proxy: Proxy, tmp_path: Path
) -> None:
    source = catalog(server, tmp_path, "throttled", count=2)
    throttle = proxy.add(Fault(Kind.SLOW_DOWN, every=3))
    # Written, and nobody hears of it: the next try finds the object there and has to see that it is its own.
    lost = proxy.add(Fault(Kind.LOST, "PutObject", f"{OUTPUT}/throttled/*", every=3))
    spec = s3_job(tmp_path, proxy.endpoint, "throttled")
    summary = run(replace(spec, max_rounds=6))
    assert summary.complete and (summary.rows_in, summary.rows_ok) == (80, 80)
    assert throttle.struck > 10 and lost.struck > 1
    proxy.forget()
    assert_exact_in_store(server, "throttled", source, tmp_path)
    assert summary.metrics["run"]["rounds"] <= 2
