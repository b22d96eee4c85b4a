"""`hpd submit`: what is packaged, the verdict, interrupts, addresses, and clusters that are not there."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import pipeline.drive
from jobs.cli import app
from jobs.cluster.address import chosen
from jobs.cluster.package import LIMIT_BYTES, build, located, measured
from jobs.cluster.ray_jobs import RayJobs
from jobs.cluster.submission import (
    ClusterError,
    ClusterUnavailableError,
    RemoteJob,
    State,
    Submission,
    follow,
)
from jobs.cluster.verdict import Finished, finished, judge
from jobs.console import Exit, TerminatedError, output, terminable
from jobs.submit import environment, run
from pipeline.compose import compose
from pipeline.config import LimitsConfig, config_tree, load_config
from pipeline.job import JobError, JobSpec
from pipeline.manifest import OutputFolder
from pipeline.run import run as run_job
from pipeline.storage import Storage
from tests.jobs.fake_cluster import FakeCluster
from tests.pipeline.helpers import inline, job, shards

JOB_FILE = """
text: {template: '{{ title }}'}
schemas: {file: ../schemas/mine.yaml, default: lamps}
input: {path: [catalog, 's3://b/x']}
output: {path: out, storage: {key: someone, secret: s3cr3t-in-the-file}}
limits: {max_error_rate: 0.1}
"""


@pytest.fixture(autouse=True)
def no_cluster_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "jobs-of-mine").mkdir()
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas/mine.yaml").write_text("lamps: {attributes: [Brand, Socket]}\n")
    path = tmp_path / "jobs-of-mine/lamps.yaml"
    path.write_text(JOB_FILE)
    monkeypatch.chdir(tmp_path)
    return path


def test_the_package_is_the_same_job_in_another_folder(
    job_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = ["input.storage={secret: s3cr3t-of-the-command}", "pool.cpus=2"]
    settings = load_config(job_file, overrides)
    mine = located(compose(settings, job_file, limit=7))
    package = build(tmp_path / "package", config_tree(job_file, overrides), settings, mine, job_file)
    assert 100 < package.files < 1000 and package.bytes < 40 * 2**20 < LIMIT_BYTES
    names = {path.relative_to(package.folder).as_posix() for path in package.folder.rglob("*")}
    assert {path.split("/")[0] for path in names} == {"hpd_core", "pipeline", "jobs", "conf", "job"}
    assert not [name for name in names if "__pycache__" in name or "/." in name or name.endswith(".pyc")]
    assert {"jobs/extract.py", "conf/models.yaml", "jobs/templates"} <= names
    assert "conf/adapters/smollm2-135m-ave/adapter_model.safetensors" in names

    monkeypatch.chdir(package.folder)
    there = compose(load_config("job/job.yaml"), "job/job.yaml")
    assert there.inputs == (str(tmp_path / "catalog"), "s3://b/x") and there.output == str(tmp_path / "out")
    assert (there.limit, there.pool.cpus, there.ray_address) == (7, 2, "auto")
    assert there.input_storage == {"secret": "s3cr3t-of-the-command"} and there.output_storage["key"] == "someone"
    assert (there.reader.facts(), there.decoder) == (mine.reader.facts(), mine.decoder)


@pytest.mark.parametrize(
    ("adapter", "kept"),
    [
        ("resource:conf/adapters/a", {"a"}),
        ("resource:conf/adapters/b/", {"b"}),
        ("resource:conf/adapters/b/epoch-3", {"b"}),
        ("resource:elsewhere/adapters/a", set()),
        ("/models/adapters/a", set()),
        ("", set()),
    ],
)
def test_of_the_adapters_only_the_one_that_the_job_names_travels(
    job_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adapter: str, kept: set[str]
) -> None:
    settings = load_config(job_file)
    mine = located(compose(settings, job_file))
    settings = settings.model_copy(update={"model": replace(settings.model, adapter=adapter)})
    for name in ("a", "b"):
        (tmp_path / "conf/adapters" / name).mkdir(parents=True)
        (tmp_path / "conf/adapters" / name / "weights").write_bytes(b"x")
    for name in ("__init__.py", "models.yaml"):
        (tmp_path / "conf" / name).touch()
    monkeypatch.setattr("conf.__file__", str(tmp_path / "conf/__init__.py"))
    package = build(tmp_path / "package", config_tree(job_file), settings, mine, job_file)
    assert {path.parent.name for path in package.folder.rglob("weights")} == kept
    assert (package.folder / "conf/models.yaml").exists()


def test_python_of_the_package_runs_the_packaged_code(job_file: Path, tmp_path: Path) -> None:
    settings = load_config(job_file)
    mine = located(compose(settings, job_file))
    build(tmp_path / "package", config_tree(job_file), settings, mine, job_file)
    script = "import jobs.extract as e; print(e.__file__)"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path / "package", capture_output=True, text=True)
    assert done.stdout.strip() == str(tmp_path / "package/jobs/extract.py"), done.stderr


def test_a_calibration_travels_and_a_model_below_the_current_folder_is_refused(job_file: Path, tmp_path: Path) -> None:
    (tmp_path / "models/mine").mkdir(parents=True)
    settings = load_config(job_file, ["model=models/mine"])
    mine = located(compose(settings, job_file))
    with pytest.raises(JobError, match=r"lamps.yaml: model.source: models/mine lies below"):
        build(tmp_path / "package", {}, settings, mine, job_file)
    settings = load_config(job_file, [f"model={tmp_path / 'models/mine'}"])
    (tmp_path / "c.json").write_text("{}")
    settings = settings.model_copy(update={"confidence": replace(settings.confidence, calibrated=True, file="c.json")})
    package = build(tmp_path / "package", config_tree(job_file), settings, mine, job_file)
    assert (package.folder / "job/calibration.json").read_text() == "{}"
    assert "file: job/calibration.json" in (package.folder / "job/job.yaml").read_text()


def test_a_package_that_ray_would_refuse_is_refused_with_its_largest_files(tmp_path: Path) -> None:
    for name, size in (("a.bin", 600), ("b.bin", 300), ("c.bin", 100)):
        (tmp_path / name).write_bytes(bytes(size * 1024))
    assert measured(tmp_path, 2**20).bytes == 1000 * 1024
    with pytest.raises(JobError, match=r"has 1.0 MiB, and Ray takes less than 1; the largest files: a.bin \(0.6 MiB\)"):
        measured(tmp_path, 1000 * 1024)


@pytest.mark.parametrize(
    ("given", "variables", "address", "notice"),
    [
        ("http://h:1/", {}, "http://h:1", ""),
        (
            "http://h:1",
            {"RAY_ADDRESS": "http://other:2"},
            "http://other:2",
            "RAY_ADDRESS=http://other:2 is set and wins",
        ),
        ("http://h:1", {"RAY_ADDRESS": "http://h:1/"}, "http://h:1", ""),
        (None, {"RAY_ADDRESS": "https://h"}, "https://h", ""),
        (
            "http://h:1",
            {"RAY_ADDRESS": "x", "RAY_API_SERVER_ADDRESS": "http://s"},
            "http://s",
            "RAY_API_SERVER_ADDRESS=",
        ),
    ],
)
def test_which_cluster_is_meant(given: str | None, variables: dict[str, str], address: str, notice: str) -> None:
    found, said = chosen(given, variables)
    assert found == address and said.startswith(notice) and bool(said) == bool(notice)


@pytest.mark.parametrize(
    ("given", "variables", "message"),
    [
        (None, {}, "give --address http://HEAD:8265"),
        ("ray://h:10001", {}, "--address ray://h:10001: "),
        ("head:8265", {}, "--address head:8265: "),
        ("http://", {}, "--address http://: "),
        ("http://h:8265", {"RAY_ADDRESS": "10.0.0.1:6379"}, "RAY_ADDRESS 10.0.0.1:6379: "),
    ],
)
def test_addresses_of_other_doors_are_refused_by_name(given: str | None, variables: dict, message: str) -> None:
    with pytest.raises(JobError) as caught:
        chosen(given, variables)
    assert message in str(caught.value)


def test_environment_variables_are_named_where_they_are_none() -> None:
    assert environment(["A=b=c", "D="]) == {"A": "b=c", "D": ""}
    with pytest.raises(JobError, match="--env A-B: must be written NAME=VALUE"):
        environment(["A-B=s3cr3t"])


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    return located(job(tmp_path, shards(tmp_path / "in", 1)))


def test_the_manifest_decides_and_not_ray(spec: JobSpec) -> None:
    def ended(state: State, code: int | None = None) -> RemoteJob:
        return RemoteJob("hpd-1-1", state, exit_code=code)

    def exit_of(before: Finished | None, after: Finished | None, end: RemoteJob | None, limit: float = 0.5) -> Exit:
        return judge(spec, LimitsConfig(max_error_rate=limit), before, after, end).exit

    listing = {"limit": None, "rows_in": 100, "rows_error": 10, "objects": []}
    done = Finished(listing, spec.inputs)
    succeeded, failed, stopped = ended(State.SUCCEEDED, 0), ended(State.FAILED, 1), ended(State.STOPPED)
    assert exit_of(None, done, succeeded) == Exit.COMPLETE
    assert exit_of(None, done, failed) == Exit.COMPLETE  # lost after its last write
    assert exit_of(None, done, stopped) == Exit.COMPLETE  # stopped too late
    assert exit_of(None, done, None) == Exit.COMPLETE
    assert exit_of(None, done, ended(State.FAILED, 3), limit=0.05) == Exit.TOO_MANY_ERRORS
    assert exit_of(None, None, stopped) == Exit.INCOMPLETE  # which Ray's client ends with 0
    assert exit_of(None, None, succeeded) == Exit.INCOMPLETE
    assert exit_of(None, None, None) == Exit.INCOMPLETE
    assert exit_of(None, None, ended(State.FAILED, 4)) == Exit.INCOMPLETE
    assert exit_of(None, None, ended(State.FAILED, 2)) == Exit.INPUT
    # An older success says nothing of this run, unless this run looked.
    assert exit_of(done, done, succeeded) == Exit.COMPLETE
    assert exit_of(done, done, ended(State.FAILED, 3), limit=0.05) == Exit.TOO_MANY_ERRORS  # as its driver found
    assert exit_of(done, done, failed) == exit_of(done, done, stopped) == exit_of(done, done, None) == Exit.INCOMPLETE
    assert exit_of(done, done, ended(State.FAILED, 2)) == Exit.INPUT
    # Nor does that of another job.
    assert exit_of(None, Finished(listing | {"limit": 5}, spec.inputs), succeeded) == Exit.INCOMPLETE
    assert exit_of(None, Finished(listing, ("s3://b/other",)), succeeded) == Exit.INCOMPLETE
    told = judge(spec, LimitsConfig(), None, None, succeeded).reason
    assert "has no _SUCCESS (Ray says SUCCEEDED; a local folder must be shared" in told


def test_what_a_complete_output_says(spec: JobSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline.drive, "drive", inline)
    folder = OutputFolder(spec.output, Storage())
    assert finished(folder) is None
    assert run_job(spec).complete
    found = finished(folder)
    assert found is not None and found.inputs == spec.inputs and found.listing["rows_in"] == 40
    assert judge(spec, LimitsConfig(), None, found, None).exit is Exit.COMPLETE
    (Path(spec.output) / "_SUCCESS").unlink()
    assert finished(folder) is None


def submit_to(
    cluster: FakeCluster,
    spec: JobSpec,
    job_file: Path,
    watch: bool = True,
    stop_too: bool = False,
    attach: str | None = None,
) -> dict:
    submission = Submission("feed", spec.output, "5e77", "/nowhere")
    settings = load_config(job_file)
    with output(False) as out:
        objects: list[dict] = []
        out.finish = objects.append  # type: ignore[method-assign, assignment]
        try:
            run(cluster, submission, spec, settings, out, watch=watch, stop_too=stop_too, every=0.01, attach=attach)
        except typer.Exit as ended:
            return {**objects[0], "exit": ended.exit_code}
        return {**objects[0], "exit": 0}


def test_following_ends_as_the_job_does(
    spec: JobSpec, job_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pipeline.drive, "drive", inline)
    work = {3: lambda: run_job(spec)}
    cluster = FakeCluster(
        script=(State.PENDING, State.RUNNING, State.RUNNING, State.RUNNING, State.FAILED),
        logs=("", "", "[40/40] rows\n"),
        at_look=lambda look: work.pop(look, lambda: None)(),
    )
    facts = submit_to(cluster, spec, job_file)
    assert facts["exit"] == 0 and facts["complete"] and facts["state"] == "FAILED" and facts["rows_in"] == 40
    shown = capsys.readouterr()
    assert shown.out == "[40/40] rows\n"  # whatever looks like rich's markup
    assert "submitted job hpd-feed-1 at http://head:8265" in shown.err and "complete: 40 rows, 0 in error" in shown.err

    stopped = submit_to(FakeCluster(script=(State.STOPPED,)), spec, job_file)
    assert stopped["exit"] == 4 and not stopped["complete"] and "was complete before" in stopped["reason"]
    only = submit_to(FakeCluster(script=()), spec, job_file, watch=False)
    assert only["exit"] == 0 and only["state"] == "PENDING" and capsys.readouterr().out == "hpd-feed-1\n"


def test_attaching_says_so_and_that_settings_differ(
    spec: JobSpec, job_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = FakeCluster(script=())
    cluster.add("hpd-feed-4", State.RUNNING, {"hpd_output": spec.output, "hpd_settings": "other"})
    facts = submit_to(cluster, spec, job_file, watch=False)
    said = capsys.readouterr().err
    assert (facts["submission_id"], facts["attempt"], facts["attached"]) == ("hpd-feed-4", 4, True)
    assert "attached to job hpd-feed-4" in said and "submitted with other settings of pool" in said
    assert "or --env, and keeps them" in said


def test_a_job_that_was_submitted_before_is_followed_and_judged_and_nothing_is_submitted(
    spec: JobSpec, job_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pipeline.drive, "drive", inline)
    cluster = FakeCluster(script=(State.SUCCEEDED,), logs=("done\n",))
    cluster.add("hpd-feed-3", State.SUCCEEDED)
    facts = submit_to(cluster, spec, job_file, attach="hpd-feed-3")
    assert facts["exit"] == 4 and "has no _SUCCESS (Ray says SUCCEEDED" in facts["reason"]
    run_job(spec)
    facts = submit_to(cluster, spec, job_file, attach="hpd-feed-3")
    assert facts["exit"] == 0 and (facts["attempt"], facts["rows_in"]) == (3, 40)
    assert capsys.readouterr().out == "done\n" * 2 and cluster.submitted == []
    gone = submit_to(cluster, spec, job_file, attach="hpd-feed-2")
    assert gone["exit"] == 4 and "the cluster has forgotten the job" in gone["reason"]


@pytest.fixture
def heeds_interrupts() -> Iterator[None]:
    """A program that a shell started in the background ignores Ctrl-C, and so do its tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_interrupts")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("stop_too", [True, False])
def test_an_interrupt_stops_the_job_only_where_that_was_asked_for(
    spec: JobSpec, job_file: Path, stop_too: bool, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    def at_look(look: int) -> None:
        if look == 2:
            os.kill(os.getpid(), number)

    cluster = FakeCluster(script=(State.RUNNING,), at_look=at_look)
    with pytest.raises(KeyboardInterrupt if number is signal.SIGINT else TerminatedError), terminable():
        submit_to(cluster, spec, job_file, stop_too=stop_too)
    said = capsys.readouterr().err
    assert cluster.stopped == (["hpd-feed-1"] if stop_too else [])
    assert ("job hpd-feed-1: STOPPED" if stop_too else "the same command attaches to it again") in said


def test_an_interrupt_while_the_job_is_submitted_stops_what_the_cluster_takes_afterwards(
    spec: JobSpec, job_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Slow(FakeCluster):
        listed = 0

        def submit(self, id: str, submission: Submission) -> bool:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)  # the signal ends this
            return True

        def jobs(self) -> Sequence[RemoteJob]:
            self.listed += 1
            if self.listed == 3:  # after `place` and the first look of `stop`
                self.add("hpd-feed-1", State.PENDING)
            return super().jobs()

    cluster = Slow(script=())
    with pytest.raises(TerminatedError), terminable():
        submit_to(cluster, spec, job_file, stop_too=True)
    assert cluster.stopped == ["hpd-feed-1"] and "job hpd-feed-1: STOPPED" in capsys.readouterr().err


@pytest.mark.usefixtures("heeds_interrupts")
@pytest.mark.parametrize(("number", "again", "code"), [(signal.SIGTERM, True, 4), (signal.SIGINT, False, 130)])
def test_a_second_sigterm_does_not_keep_the_job_from_being_stopped(
    job_file: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, again: bool, code: int
) -> None:
    class Impatient(FakeCluster):
        def stop(self, id: str) -> bool:
            if again:
                os.kill(os.getpid(), number)
            return super().stop(id)

    def at_look(look: int) -> None:
        if look == 1:
            os.kill(os.getpid(), number)
            time.sleep(1)  # the signal ends this

    cluster = Impatient(script=(State.RUNNING,), at_look=at_look)
    monkeypatch.setattr("jobs.cluster.ray_jobs.RayJobs", lambda address: cluster)
    arguments = ["submit", "--config", str(job_file), "--set", "output.storage={}", "--address", cluster.address]
    result = CliRunner().invoke(app, [*arguments, "--follow", "--stop-on-interrupt", "--every", "0.5"])
    assert len(cluster.stopped) == 1 and ": STOPPED" in result.stderr, result.output
    assert result.exit_code == code


def test_wrong_options_are_refused_without_ray_or_torch(job_file: Path, repository: Path) -> None:
    script = (
        "import sys\nfrom jobs.cli import app\n"
        "try:\n    app(sys.argv[1:])\nexcept SystemExit as e:\n    code = e.code\n"
        "assert not {'torch', 'transformers', 'ray'} & set(sys.modules), sorted(sys.modules)\nsys.exit(code)\n"
    )

    def refused(*options: str) -> str:
        command = [sys.executable, "-c", script, "submit", "--config", str(job_file), *options]
        done = subprocess.run(command, capture_output=True, text=True, cwd=repository)
        assert done.returncode == 2, done.stderr
        return done.stderr

    assert "decode: unknown key 'layot'" in refused("--address", "http://h:1", "--set", "decode.layot=gaps")
    assert "ray://h:1: jobs are submitted to the dashboard" in refused("--address", "ray://h:1")
    assert "without --follow does nothing" in refused("--address", "http://h:1", "--attach", "hpd-feed-1")


@pytest.fixture
def silent() -> Iterator[int]:
    """Port of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def other_server() -> Iterator[int]:
    """Port of a web server that is no Ray."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503 if "version" in self.path and self.server.busy else 200)  # type: ignore[attr-defined]
            self.end_headers()
            self.wfile.write(b"<html>hello")

        def log_message(self, format: str, *args: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Page)
    server.busy = False  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()


@pytest.fixture
def ray_in_trouble() -> Iterator[int]:
    """Port of a job server that knows one job and answers the second question about it with 500."""
    details = {"type": "SUBMISSION", "submission_id": "hpd-feed-1", "entrypoint": "python", "metadata": {}}
    answers = [(200, "RUNNING"), (500, ""), (200, "RUNNING"), (200, "SUCCEEDED")]

    class JobServer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            version = {"ray_version": "2.60.0", "version": "4"}
            status, told = 200, json.dumps({"logs": "hello\n"} if self.path.endswith("/logs") else version)
            if self.path == "/api/jobs/hpd-feed-1":
                status, state = answers.pop(0)
                told = json.dumps(details | {"status": state})
                if status == 500:
                    told = "Traceback ...\nNo available agent to submit job, please try again later."
            self.send_response(status)
            self.end_headers()
            self.wfile.write(told.encode())

        def log_message(self, format: str, *args: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), JobServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()


def test_an_internal_error_of_ray_while_a_job_runs_passes(ray_in_trouble: int) -> None:
    said: list[str] = []
    written: list[str] = []
    cluster = RayJobs(f"http://127.0.0.1:{ray_in_trouble}")
    ended = follow(cluster, "hpd-feed-1", write=written.append, say=said.append, every=0.01)
    assert ended is not None and ended.state is State.SUCCEEDED and written == ["hello\n"]
    [trouble] = [line for line in said if "asking again" in line]
    assert f"127.0.0.1:{ray_in_trouble} is in trouble: " in trouble and "No available agent" in trouble


def test_clusters_that_are_not_there_are_named_in_bounded_time(
    job_file: Path, silent: int, other_server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray.job_submission  # noqa: F401 (not what is timed here)

    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = f"http://127.0.0.1:{free.getsockname()[1]}"
    started = time.monotonic()
    arguments = ["submit", "--config", str(job_file), "--set", "output.storage={}", "--address", closed, "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 4 and f"error: the Ray cluster at {closed} cannot be reached" in result.stderr
    asked = time.monotonic()
    with pytest.raises(ClusterUnavailableError, match=f"127.0.0.1:{silent} cannot be reached: no answer in time"):
        RayJobs(f"http://127.0.0.1:{silent}", timeouts=(1.0, 1.0))
    assert time.monotonic() - asked < 15
    with pytest.raises(ClusterError, match=f"127.0.0.1:{other_server}: not what a Ray job server answers"):
        RayJobs(f"http://127.0.0.1:{other_server}")
    assert time.monotonic() - started < 60
    result = CliRunner().invoke(app, [*arguments[:-3], "--address", f"http://127.0.0.1:{other_server}"])
    assert result.exit_code == 2 and "not what a Ray job server answers" in result.stderr
    assert "s3cr3t" not in result.output
