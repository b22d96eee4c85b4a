"""Lines of progress where stderr is no terminal."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from jobs.progress import LINE_EVERY, LogFormat, RunLog, lines, note, shown
from pipeline.events import Event, Progress
from pipeline.job import JobError

STATE = Progress(
    Event.COMMITTED,
    units_done=1,
    units_total=4,
    rows_done=150,
    rows_total=400,
    rows_new=50,
    rows_error=5,
    seconds=30.0,
    stream_seconds=20.0,
    dollars=0.25,
    round=1,
)


def test_a_note_says_rate_price_errors_and_what_is_left() -> None:
    assert note(STATE) == "1/4 units, 2.50 rows/s, $0.2500, 10.0% in error, 30 s so far, 100 s left"
    later = replace(STATE, rows_new=0, rows_error=0, dollars=0.0, round=2, seconds=7300.0)
    assert note(later) == "1/4 units, 0.00 rows/s, 0.0% in error, round 2, 2.0 h so far"


def test_lines_are_ten_seconds_apart_but_for_the_last_one_and_no_failure_is_left_out() -> None:
    said: list[str] = []
    clock = iter([0.0, 1.0, 2.0, LINE_EVERY, LINE_EVERY + 1, LINE_EVERY + 2])
    show = lines(said.append, lambda: next(clock))
    failed = replace(STATE, event=Event.FAILED, unit="rows 0..50 of x", reason="read: it is gone")
    states = [STATE, failed, replace(failed, reason="read: again"), STATE, STATE, replace(STATE, rows_done=400)]
    for state in states:
        show(state)
    assert [line.partition(" rows,")[0] for line in said] == ["150/400", "150/400", "400/400"]
    assert said[1].endswith("left; 2 failed, the last: rows 0..50 of x: read: again")
    assert "failed" not in said[0] + said[2]


def test_what_is_waited_for_is_said_at_once() -> None:
    said: list[str] = []
    show = lines(said.append, lambda: 0.0)
    show(STATE)
    show(replace(STATE, event=Event.WAITING, reason="waiting up to 30 s for another driver"))
    assert said[1:] == ["waiting up to 30 s for another driver"]


def test_a_terminal_gets_a_bar_and_every_failure_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr("jobs.progress.Console", lambda stderr: Console(file=screen, force_terminal=True, width=200))
    with shown(RunLog(None, on_stderr=False), LogFormat.TEXT) as show:
        show(STATE)
        show(replace(STATE, event=Event.FAILED, unit="rows 0..50 of x", reason="read: [red]it is gone"))
    said = screen.getvalue()
    assert "150/400" in said and note(STATE) in said and "rows 0..50 of x: read: [red]it is gone" in said


def test_a_log_that_cannot_be_written_any_more_is_told_once_and_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = RunLog(Path("/dev/full"), on_stderr=False)
    log.progress(STATE)
    log.progress(STATE)
    assert capsys.readouterr().err == "--log-file /dev/full: No space left on device: nothing more is logged there\n"
    with pytest.raises(JobError, match="--log-file"):
        RunLog(tmp_path, on_stderr=False)
    assert LogFormat("json") is LogFormat.JSON
