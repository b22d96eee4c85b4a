"""The commands as people start them: exit codes, what goes to stdout, and what a command does without."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import pipeline.run
from hpd_core.checkpoint import ModelUnavailableError
from hpd_core.prompt import PromptError
from hpd_core.schema import SchemaError
from hpd_core.settings import SettingsError
from hpd_core.source import ModelNotFoundError
from jobs.cli import app
from pipeline.compose import compose
from pipeline.config import load_config
from pipeline.events import Event, Progress
from pipeline.job import JobError, JobSpec
from pipeline.lease import OutputHeldError
from pipeline.metrics import Metrics
from pipeline.prepare import prepare
from pipeline.record import UnitRecord
from pipeline.resume import open_run
from pipeline.storage import Storage, StorageError, StoreUnavailableError
from pipeline.summary import RunSummary

JOB = """
text: {template: "{{ title }}"}
schemas:
  define:
    shoes: {attributes: [Brand, Size]}
  default: shoes
limits: {max_error_rate: 0.25}
price: {dollars_per_hour: 3.6}
"""


@pytest.fixture
def job(tmp_path: Path) -> list[str]:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"title": ["a", "", "c", None]}), tmp_path / "in" / "x.parquet")
    return ["--config", str(tmp_path / "job.yaml"), "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]


def summary(job: JobSpec, **changes: object) -> RunSummary:
    (Path(job.output) / "data").mkdir(parents=True, exist_ok=True)
    columns = {"title": ["a"], "brand": ["Fila"], "size": pa.nulls(1, pa.string()), "hpd_status": ["ok"]}
    pq.write_table(pa.table(columns), Path(job.output) / "data" / "x.parquet")
    facts = {
        "complete": True,
        "output": job.output,
        "rows_in": 4,
        "rows_ok": 3,
        "rows_error": 1,
        "values": {"brand": 2, "size": 1},
    }
    facts |= {"model_calls": 7, "docs_per_second": 2.5, "tokens_per_step": 9.5, "slots_per_step": 8.0}
    return RunSummary(**facts | {"dollars_per_1000": 0.4, "units": 1, "seconds": 2.0} | changes)  # type: ignore[arg-type]


def test_an_interrupted_run_says_how_to_go_on(job: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(spec: JobSpec, progress: object, say: object) -> RunSummary:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline.run, "run", interrupted)
    result = CliRunner().invoke(app, ["extract", *job])
    assert result.exit_code == 130
    assert "run the same command again" in result.stderr


def test_a_terminated_run_ends_with_exit_code_4_and_cleans_up_once(
    job: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaned: list[str] = []

    def terminated(spec: JobSpec, progress: object, say: object) -> RunSummary:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
            pytest.fail("SIGTERM changes nothing")
        except Exception:  # which it is not
            cleaned.append("mistaken for an error")
            raise
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # impatient: the cleaning goes on
            cleaned.append("done")

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(pipeline.run, "run", terminated)
    result = CliRunner().invoke(app, ["extract", *job])
    assert result.exit_code == 4 and "terminated: what is committed stays; run the same command" in result.stderr
    assert cleaned == ["done"] and signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("options", [["--json"], []])
def test_a_closed_stdout_costs_no_result(job: list[str], options: list[str]) -> None:
    command = [sys.executable, "-m", "jobs.validate", *job, *options]
    done = subprocess.run(
        ["bash", "-c", 'exec "$@" >&-', "bash", *command], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({}, 0, ""),
        ({"rows_ok": 2, "rows_error": 2}, 3, "2 of 4 rows in error, more than limits.max_error_rate (0.25) allows"),
        ({"complete": False, "failures": ("x.parquet: gone",)}, 4, "failed: x.parquet: gone"),
        ({"complete": False, "rows_ok": 0, "rows_error": 4}, 4, "run the same command again"),
        ({"complete": False, "unloadable": "no tokenizer.json"}, 2, "error: no tokenizer.json"),
    ],
)
def test_extract_says_how_it_ended(
    job: list[str], monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], code: int, message: str
) -> None:
    monkeypatch.setattr(pipeline.run, "run", lambda spec, **_: summary(spec, **changes))
    result = CliRunner().invoke(app, ["extract", *job])
    assert result.exit_code == code
    assert message in result.stderr
    for shown in ("Fila", "rows in", "0.4000", "3.60 dollars an hour, an assumption", "tokens per step"):
        assert shown in result.stdout


@pytest.mark.parametrize(
    "error",
    [
        JobError("no such column"),
        StorageError("s3://x: refused"),
        FileNotFoundError("gone"),
        PromptError("no chat template"),
        SettingsError("trained otherwise"),
        SchemaError("no attribute"),
        ModelNotFoundError("no GGUF file"),
    ],
)
def test_what_the_user_must_mend_is_exit_code_2(
    job: list[str], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(spec: JobSpec, progress: object, say: object) -> RunSummary:
        raise error

    monkeypatch.setattr(pipeline.run, "run", refuse)
    result = CliRunner().invoke(app, ["extract", *job])
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (2, f"error: {error}")


@pytest.mark.parametrize(
    "error",
    [
        StoreUnavailableError("s3://x/run.json: SlowDown"),
        ModelUnavailableError("model s3://x/m: SlowDown"),
        OutputHeldError("s3://x is being written by a"),
    ],
)
def test_what_may_pass_by_itself_is_exit_code_4(
    job: list[str], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(spec: JobSpec, progress: object, say: object) -> RunSummary:
        raise error

    monkeypatch.setattr(pipeline.run, "run", fail)
    result = CliRunner().invoke(app, ["extract", *job])
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (4, f"error: {error}")


def test_a_model_that_is_not_supported_is_the_users_to_mend_too(
    job: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpd_core.model import UnsupportedModelError  # brings torch

    test_what_the_user_must_mend_is_exit_code_2(job, monkeypatch, UnsupportedModelError("no such architecture"))


def test_a_bug_is_not_passed_off_as_a_wrong_configuration(job: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(spec: JobSpec, progress: object, say: object) -> RunSummary:
        raise RuntimeError("bug")

    monkeypatch.setattr(pipeline.run, "run", fail)
    assert CliRunner().invoke(app, ["extract", *job]).exit_code == 1


def test_what_python_cannot_hold_or_rich_would_read_as_markup_is_printed(
    job: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(spec: JobSpec, progress: object, say: object) -> RunSummary:
        made = summary(spec, values={"brand": 2, "size": 1}, rows_dropped=3)
        broken = pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\3\0\0\0\6\0\0\0"), pa.py_buffer(b"a\xffba b"))
        columns = {
            "title": broken,
            "brand": ["[/bold]Fila", "Puma"],
            "hpd_status": ["ok", "ok"],
            "seen": pa.array([2**59] * 2, pa.timestamp("us")),  # beyond the year 9999
            "hpd_extra": pa.array([[("Sole", "rubber")], None], pa.map_(pa.string(), pa.string())),
        }
        pq.write_table(pa.table(columns), Path(spec.output) / "data" / "x.parquet")
        return made

    monkeypatch.setattr(pipeline.run, "run", run)
    result = CliRunner().invoke(app, ["extract", *job])
    assert result.exit_code == 0, result.output
    for shown in (
        "[/bold]Fila",
        "Puma",
        "Sole: rubber (extra)",
        "codec can't decode",
        "a b",
        "3 of inputs that are gone",
    ):
        assert shown in result.stdout
    result = CliRunner().invoke(app, ["extract", *job, "--set", "text.template={{ seen }}"])
    assert result.exit_code == 0 and "out of range" in result.stdout


def test_the_json_object_is_out_before_anything_that_can_fail(
    job: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a terminal nobody tried")

    monkeypatch.setattr(pipeline.run, "run", lambda spec, **_: summary(spec))
    monkeypatch.setattr("jobs.extract.print_summary", fail)
    assert CliRunner().invoke(app, ["extract", *job, "--json"]).exit_code == 1
    assert json.loads(capfd.readouterr().out.splitlines()[-1])["rows_in"] == 4


def test_progress_goes_to_stderr(job: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline.run, "run", told)
    result = CliRunner().invoke(app, ["extract", *job])
    assert "3/4 rows, 1/2 units, 0.75 rows/s, $0.0050, 33.3% in error, 5 s so far, 1 s left" in result.stderr
    assert "4/4 rows, 2/2 units" in result.stderr


def told(spec: JobSpec, progress: Callable[[Progress], None], say: object) -> RunSummary:
    """A run that has something to tell."""
    state = Progress(
        Event.COMMITTED,
        units_done=1,
        units_total=2,
        rows_done=3,
        rows_total=4,
        rows_new=3,
        rows_error=1,
        seconds=5.0,
        stream_seconds=4.0,
        dollars=0.005,
        round=1,
        unit="rows 0..3 of x.parquet",
    )
    progress(state)
    progress(replace(state, units_done=2, rows_done=4, rows_new=4, seconds=6.0))
    return summary(spec)


def test_every_event_of_a_run_is_an_object_in_its_log(
    job: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log.jsonl"
    monkeypatch.setattr(pipeline.run, "run", told)
    assert CliRunner().invoke(app, ["extract", *job, "--log-file", str(log)]).exit_code == 0
    result = CliRunner().invoke(app, ["extract", *job, "--log-file", str(log), "--log-format", "json"])
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [event["event"] for event in events] == ["start", "unit_committed", "unit_committed", "end"] * 2
    assert [json.loads(line) for line in result.stderr.splitlines()] == events[4:]
    assert events[1]["unit"] == "rows 0..3 of x.parquet" and events[1]["rows_per_second"] == 0.75
    assert (events[3]["exit_code"], events[3]["rows_in"]) == (0, 4)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", event["time"]) for event in events)


def test_the_log_ends_with_the_error_that_ended_the_run(
    job: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(spec: JobSpec, progress: object, say: object) -> RunSummary:
        raise JobError("no such column")

    log = tmp_path / "log.jsonl"
    monkeypatch.setattr(pipeline.run, "run", refuse)
    assert CliRunner().invoke(app, ["extract", *job, "--log-file", str(log)]).exit_code == 2
    last = json.loads(log.read_text().splitlines()[-1])
    assert (last["event"], last["exit_code"], last["reason"]) == ("error", 2, "no such column")
    result = CliRunner().invoke(app, ["extract", *job, "--log-file", str(tmp_path / "no" / "log")])
    assert (result.exit_code, "--log-file" in result.stderr) == (2, True)


NOISY = """
import os, sys
import pipeline.run
from jobs.cli import app
from tests.jobs.test_commands import summary
def run(spec, progress, say):
    print("a library prints")
    os.system("echo a child prints")
    return summary(spec)
pipeline.run.run = run
app(sys.argv[1:])
"""


def test_json_is_all_there_is_on_stdout_whatever_prints_meanwhile(job: list[str], repository: Path) -> None:
    command = [sys.executable, "-c", NOISY, "extract", *job, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=repository, check=True)

    facts = json.loads(done.stdout)

    assert len(done.stdout.splitlines()) == 1
    assert "a library prints" in done.stderr and "a child prints" in done.stderr and "rows in" in done.stderr
    wanted = "rows_in rows_ok rows_error values docs_per_second tokens_per_step dollars_per_1000 model_calls output"
    assert set(wanted.split()) <= set(facts)
    assert (facts["rows_in"], facts["values"], facts["values_per_attribute"]) == (4, 3, {"brand": 2, "size": 1})


def test_validate_needs_neither_torch_nor_ray(job: list[str], repository: Path) -> None:
    script = (
        "import sys\nfrom jobs.cli import app\n"
        "app(sys.argv[1:], standalone_mode=False)\n"
        "assert not {'torch', 'transformers', 'ray'} & set(sys.modules), sorted(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "validate", *job, "--json"], capture_output=True, text=True, cwd=repository
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["files"], facts["rows"], facts["probed_without_text"], facts["first_text"]) == (1, 4, 2, "a")
    assert facts["attribute_columns"] == ["brand", "size"]


def test_validate_probes_under_the_schema_that_all_files_share(job: list[str], tmp_path: Path) -> None:
    schema = pa.schema([("title", pa.string()), ("colour", pa.string())])
    pq.write_table(schema.empty_table(), tmp_path / "in" / "a.parquet")  # no row in the first file
    pq.write_table(pa.table({"title": ["d"], "colour": ["red"]}), tmp_path / "in" / "z.parquet")  # x has no colour
    template = ["--set", "text.template={{ title }} {{ colour }}"]
    result = CliRunner().invoke(app, ["validate", *job, *template])
    assert result.exit_code == 0, result.output
    assert "rows looked at  5: 3 with text, 2 without text\n" in result.stdout
    assert result.stdout.endswith("the first text that the model would read:\n\na\n")


def in_json(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> tuple[int, dict[str, object]]:
    code = CliRunner().invoke(app, ["validate", *arguments, "--json"]).exit_code
    return code, json.loads(capfd.readouterr().out)


def test_validate_looks_at_rows_all_over_the_input(
    job: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A catalog sorted by what its rows lack, as one file and as many: what the first rows lack the last ones have."""
    table = pa.table({"title": [None] * 900 + ["late"] * 100})
    (tmp_path / "in" / "x.parquet").unlink()
    for number in range(10):
        pq.write_table(table.slice(number * 100, 100), tmp_path / "in" / f"{number}.parquet")
    many = in_json(job, capfd)
    pq.write_table(table, tmp_path / "one.parquet", row_group_size=200)
    one = in_json([*job[:2], "--input", str(tmp_path / "one.parquet"), *job[4:]], capfd)
    assert (one[0], one[1]["probed_rows"], one[1]["probed_without_text"]) == (2, 200, 200)  # no row group begins there
    pq.write_table(table.slice(100), tmp_path / "one.parquet", row_group_size=200)
    one = in_json([*job[:2], "--input", str(tmp_path / "one.parquet"), *job[4:]], capfd)
    assert (one[0], one[1]["probed_rows"], one[1]["first_text"]) == (0, 200, "late")
    assert (many[0], many[1]["probed_rows"], many[1]["probed_without_text"]) == (2, 200, 200)


@pytest.mark.parametrize(
    ("titles", "kinds", "reason"),
    [
        ([None, "", " "], ["shoes"] * 3, "none of the 3 rows .* of 3 the reason is: the text columns of this row are"),
        (["a", "b", None], ["hats", "hats", "shoes"], "of 2 the reason is: no schema for category 'hats'"),
        (["a", "b", "c"], [None] * 3, "of 3 the reason is: no category, and no default schema"),
    ],
)
def test_validate_refuses_an_input_of_which_no_row_can_be_used(
    job: list[str], tmp_path: Path, titles: list[str | None], kinds: list[str | None], reason: str
) -> None:
    options = ["--set", "text.category_column=kind", "--set", "schemas.default=null"]
    path = tmp_path / "in" / "x.parquet"
    columns = pa.schema([("title", pa.string()), ("kind", pa.string())])
    pq.write_table(pa.table({"title": titles, "kind": kinds}, schema=columns), path)
    result = CliRunner().invoke(app, ["validate", *job, *options])
    assert result.exit_code == 2
    assert re.search(reason, result.stderr) and "categories that have a schema: 'shoes'" in result.stderr
    pq.write_table(pa.table({"title": [*titles, "x"], "kind": [*kinds, "shoes"]}, schema=columns), path)
    assert CliRunner().invoke(app, ["validate", *job, *options]).exit_code == 0


def test_validate_tells_people_the_commonest_reasons_and_programs_all(
    job: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kinds = ["shoes", *"abcdeef"]
    pq.write_table(pa.table({"title": ["x"] * 8, "kind": kinds}), tmp_path / "in" / "x.parquet")
    arguments = [*job, "--set", "text.category_column=kind", "--set", "schemas.default=null"]
    told = CliRunner().invoke(app, ["validate", *arguments]).stdout
    assert "rows looked at  8: 1 with text, 2 in error (no schema for category 'e'), 1 in error" in told
    assert "and 3 more reasons\n" in told and "'f'" not in told
    warned = CliRunner().invoke(app, ["validate", *arguments]).stderr
    assert "7 of the 8 rows that were looked at end in error; beyond limits.max_error_rate (0.25) extract" in warned
    assert "warning" not in CliRunner().invoke(app, ["validate", *job, "--set", "limits.max_error_rate=1"]).stderr
    _, facts = in_json(arguments, capfd)
    assert list(facts["probed_errors"].values()) == [2, 1, 1, 1, 1, 1]  # type: ignore[attr-defined]


def test_validate_of_an_input_without_rows_has_nothing_against_it(job: list[str], tmp_path: Path) -> None:
    pq.write_table(pa.schema([("title", pa.string())]).empty_table(), tmp_path / "in" / "x.parquet")
    assert CliRunner().invoke(app, ["validate", *job]).exit_code == 0


@pytest.mark.parametrize(("length", "cut"), [(2000, False), (2001, True), (2_000_000, True)])
def test_validate_shows_the_beginning_of_a_long_text(
    job: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str], length: int, cut: bool
) -> None:
    pq.write_table(pa.table({"title": ["x" * length]}), tmp_path / "in" / "x.parquet")
    _, facts = in_json(job, capfd)
    text = str(facts["first_text"])
    assert text.startswith("x" * 2000) and len(text) < 2100 and facts["first_text_characters"] == length
    assert (f"[cut here, {length:,} characters in all]" in text) == cut
    shown = CliRunner().invoke(app, ["validate", *job]).stdout
    assert text in shown and len(shown) < 5000


def content(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {str(p): (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.rglob("*") if p.is_file()}


def begun(job: list[str]) -> None:
    """The output of a run that was killed: half of a unit with its data, and a record whose data is lost."""
    prepared = prepare(compose(load_config(job[1]), job[1], inputs=[job[3]], output=job[5]))
    mark = open_run(prepared.output, prepared.facts, prepared.stored)
    [unit] = prepared.plan.units
    half = replace(unit, stop=2)
    for name in (half.object_name(mark), "lost"):
        record = UnitRecord(half, name, mark, 1, "", Metrics())
        prepared.output.storage.create(prepared.output.record(name), record.to_json().encode())
    prepared.output.storage.create(prepared.output.data(half.object_name(mark)), b"x")


@pytest.mark.parametrize("options", [[], ["--json"], ["--set", "run.allow_mixed=true", "--set", "decode.max_slots=9"]])
def test_validate_writes_nothing(job: list[str], tmp_path: Path, options: list[str]) -> None:
    before = content(tmp_path)
    assert CliRunner().invoke(app, ["validate", *job, *options]).exit_code == 0
    assert content(tmp_path) == before and not (tmp_path / "out").exists()
    begun(job)
    before = content(tmp_path)
    result = CliRunner().invoke(app, ["validate", *job, *options])
    assert result.exit_code == 0, result.output
    assert content(tmp_path) == before
    assert "--json" in options or "2 of them committed already" in result.stdout


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["pool.max_size=99"], "the pool does not fit: 99 actors x 1 CPUs"),
        (["run.num_cpus=1"], "the pool does not fit: .* and there are 1$"),
        (
            ["decode.max_document_tokens=9"],
            r"begun by another job[^\0]*decoder.settings.max_document_tokens: 2048 -> 9$",
        ),
        (["schemas.define.shoes.attributes=[Brand]"], "schemas.shoes.attributes.Size: .* -> .none.$"),
        (["run.allow_mixed=true", "output.raw=true"], r"begun with other output columns[^\0]*brand__raw: .none. -> "),
        (
            ["decode.max_value_tokens=3"],
            "fine-tuned weights give wrong answers decoded otherwise: max_value_tokens is 3",
        ),
        (["model={source: HOLLOW}", "run.allow_mixed=true"], "directory .*hollow has no config.json$"),
        (["model={source: HOLLOW/none}", "run.allow_mixed=true"], "neither a directory, a GGUF file nor a hub id$"),
        (["output.keep=[nope]"], "'nope' is to be kept"),
        (["output.path=FILE/out"], "FILE/out/run.json: .*Not a directory"),
        (["input.path=nowhere"], "input nowhere: does not exist \\(/.*/nowhere\\)$"),
        (["schemas.define.shoes.attributes=[Title]"], "input column 'title' and the attribute 'Title' share"),
    ],
)
def test_validate_refuses_what_extract_refuses_in_the_same_words(
    job: list[str], tmp_path: Path, options: list[str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("pipeline.drive.drive", lambda *_: pytest.fail("extract began"))
    (tmp_path / "hollow").mkdir()
    (tmp_path / "FILE").touch()
    begun(job)
    places = {"HOLLOW": str(tmp_path / "hollow"), "FILE": str(tmp_path / "FILE")}
    words = [re.sub("HOLLOW|FILE", lambda found: places[found[0]], option) for option in options]
    arguments = [word for option in words for word in ("--set", option)]
    given = {key.partition("=")[0] for key in options}
    paths = ([] if "input.path" in given else job[2:4]) + ([] if "output.path" in given else job[4:6])
    before = content(tmp_path)
    said = []
    for name in ("validate", "extract"):
        result = CliRunner().invoke(app, [name, *job[:2], *paths, *arguments])
        assert result.exit_code == 2, result.output
        said.append(result.stderr)
    assert said[0] == said[1] and re.search(reason, said[0].strip())
    assert content(tmp_path) == before


@pytest.mark.parametrize("name", ["validate", "extract"])
@pytest.mark.parametrize(
    ("place", "message"),
    [("cache", "hf/hpd-gguf, which cannot be written .*set HF_HOME"), ("out", "out cannot be written: .*not writable")],
)
def test_what_cannot_be_written_is_named_before_anything_begins(
    job: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: str, message: str
) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("pipeline.drive.drive", lambda *_: pytest.fail("extract began"))
    (tmp_path / place).mkdir()
    if place == "cache":
        monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "cache" / "hf"))
    monkeypatch.setattr("os.access", lambda path, mode: tmp_path / place not in [Path(path), *Path(path).parents])
    result = CliRunner().invoke(app, [name, *job])
    assert result.exit_code == 2 and re.search(message, result.stderr), result.output
    assert not (tmp_path / "out" / "run.json").exists() and not list((tmp_path / place).iterdir())


def test_validate_names_a_file_that_cannot_be_read(job: list[str], tmp_path: Path) -> None:
    path = tmp_path / "in" / "x.parquet"
    pq.write_table(pa.table({"title": [f"{i}" * 50 for i in range(1000)]}), path)
    raw = bytearray(path.read_bytes())
    raw[100:4000] = bytes(3900)
    path.write_bytes(raw)
    result = CliRunner().invoke(app, ["validate", *job])
    assert result.exit_code == 2 and str(path) in result.stderr


def test_validate_names_a_file_that_cannot_be_reached(
    job: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = tmp_path / "in" / "y.parquet"
    pq.write_table(pa.table({"title": ["b"]}), lost)
    opened = Storage.open

    def reset(self: Storage, uri: str) -> IO[bytes]:
        if uri == str(lost):
            raise ConnectionResetError("reset")
        return opened(self, uri)

    monkeypatch.setattr(Storage, "open", reset)
    result = CliRunner().invoke(app, ["validate", *job])
    assert result.exit_code == 4 and f"error: not reached: {lost}: ConnectionResetError: reset" in result.stderr
    assert "4 row(s) in 2 file(s)" in result.stdout


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--set", "text.template={{ titel }}"], "column 'titel' is not in the input"),
        (["--set", "schemas.define.shoes.attributes=[Title]"], "'title'"),
        (["--set", "decode.layot=gaps"], "did you mean 'layout'?"),
        (["--input", "nowhere"], "nowhere"),
        (["--config", "nowhere.yaml"], "nowhere.yaml: No such file"),
        (
            ["--set", "model={source: 'package:not-there/x.gguf', install: 'pip install it'}"],
            "install it with: pip install it",
        ),
    ],
)
def test_validate_refuses_with_the_reason(job: list[str], extra: list[str], message: str) -> None:
    job = [*job[:2], *job[4:]] if "--input" in extra else job
    result = CliRunner().invoke(app, ["validate", *job, *extra])
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize("name", ["extract", "validate", "evaluate", "compare", "review build", "benchmark"])
def test_a_command_is_also_a_module(name: str, repository: Path) -> None:
    command = [sys.executable, "-m", *f"jobs.{name}".split(), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=repository, check=True)
    assert "--output" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layout", "branch"], "--layout branch: must be one of gaps, branches"),
        (["--visibility", "causal"], "visibility 'causal' needs layout 'gaps'"),
        (["--grounding", "on"], "--grounding on: must be one of off, mark, enforce"),
        (["--model", "smolm2-135m"], "did you mean 'smollm2-135m'?"),
        (["--decoder", "nope"], "--decoder nope: must be one of hpd, ar, ar-lookup, per-attribute"),
        (["--dataset", "nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_evaluate_refuses_unknown_words(tmp_path: Path, arguments: list[str], message: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"input": "x", "category": "c", "target_scores": {"A": {"b": 1}}}\n')
    result = CliRunner().invoke(app, ["evaluate", "--dataset", str(path), "--output", str(tmp_path / "o"), *arguments])
    assert result.exit_code == 2
    assert message in result.stderr
