"""Ids, attaching, following and stopping, against a fake cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from jobs.cluster.package import located
from jobs.cluster.submission import (
    APPEAR_SECONDS,
    LOG_BYTES_PER_SECOND,
    PATIENCE_SECONDS,
    STOP_SECONDS,
    TROUBLE_SECONDS,
    ClusterError,
    ClusterTroubledError,
    ClusterUnavailableError,
    RemoteJob,
    State,
    Submission,
    follow,
    insist,
    known,
    place,
    stop,
    submission_of,
)
from pipeline.compose import compose
from pipeline.config import load_config
from tests.jobs.fake_cluster import FakeCluster, FakeTime

JOB = Submission("feed", "s3://b/out", "5e77", "/nowhere")
RUNNING, FAILED, STOPPED, SUCCEEDED = State.RUNNING, State.FAILED, State.STOPPED, State.SUCCEEDED


@pytest.fixture
def submitted(repository: Path) -> Callable[..., Submission]:
    def make(*overrides: str, output: str = "s3://b/out", limit: int | None = None, **env: str) -> Submission:
        path = repository / "conf/quickstart.yaml"
        job = compose(load_config(path, overrides), path, inputs=["in"], output=output, limit=limit)
        return submission_of(located(job), "/nowhere", env)

    return make


def test_the_same_job_has_the_same_mark_from_any_folder(
    submitted: Callable[..., Submission], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = submitted(output="out")
    assert first == submitted(output=str(tmp_path / "out"))
    assert first.output == str(tmp_path / "out") and first.id(3) == f"hpd-{first.mark}-3"
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert first.mark != submitted(output="out").mark  # another folder is another output


def test_what_decides_rows_makes_another_job_and_the_rest_does_not(submitted: Callable[..., Submission]) -> None:
    first = submitted()
    others = [
        submitted(output="s3://b/other"),
        submitted(limit=5),
        submitted("decode.max_document_tokens=100"),
        submitted("output.raw=true"),
        submitted("text.template='{{ title }}'"),
        submitted("schemas.define={extra: {attributes: [Brand]}}"),
    ]
    assert len({first.mark, *(other.mark for other in others)}) == 7
    larger = submitted("pool.max_size=4")
    for other in (larger, submitted(OMP_NUM_THREADS="1")):
        assert other.mark == first.mark and other.settings != first.settings
    secret = submitted("output.storage={key: a, secret: b}")
    assert secret == first


def test_attempts_are_counted_by_those_of_this_job() -> None:
    assert [JOB.attempt(id) for id in (JOB.id(1), JOB.id(12), "hpd-beef-3", "hpd-feed-x", "raysubmit_1")] == [
        1,
        12,
        0,
        0,
        0,
    ]


def test_a_job_is_submitted_once_attached_to_while_it_runs_and_continued_when_it_has_ended() -> None:
    cluster = FakeCluster(script=())
    job, attached = place(cluster, JOB)
    assert (job.id, attached, cluster.submitted) == ("hpd-feed-1", False, ["hpd-feed-1"])
    assert cluster.known["hpd-feed-1"].metadata == {"hpd_output": "s3://b/out", "hpd_settings": "5e77"}
    for state in (State.PENDING, RUNNING):
        cluster.add("hpd-feed-1", state)
        job, attached = place(cluster, JOB)
        assert (job.id, job.state, attached) == ("hpd-feed-1", state, True)
    for number, state in enumerate((FAILED, STOPPED, SUCCEEDED), start=1):
        cluster.add(f"hpd-feed-{number}", state)
        assert place(cluster, JOB)[0].id == f"hpd-feed-{number + 1}"
    # By number, not by name.
    cluster.add("hpd-feed-9", FAILED)
    cluster.add("hpd-feed-10", FAILED)
    assert place(cluster, JOB)[0].id == "hpd-feed-11"


def test_who_submitted_at_the_same_moment_is_attached_to() -> None:
    job, attached = place(FakeCluster(script=(), quicker=True), JOB)
    assert (job.id, attached) == ("hpd-feed-1", True)


def test_two_jobs_of_other_settings_do_not_write_one_output() -> None:
    cluster = FakeCluster(script=())
    cluster.add("hpd-beef-1", RUNNING, {"hpd_output": "s3://b/out"})
    with pytest.raises(ClusterError, match=r"hpd-beef-1 \(RUNNING\) writes s3://b/out .*ray job stop --address http"):
        place(cluster, JOB)
    cluster.add("hpd-beef-1", STOPPED, {"hpd_output": "s3://b/out"})
    cluster.add("hpd-beef-2", RUNNING, {"hpd_output": "s3://b/elsewhere"})
    assert place(cluster, JOB) == (RemoteJob("hpd-feed-1", State.PENDING, metadata=JOB.metadata), False)


def followed(cluster: FakeCluster, time: FakeTime, every: float = 5.0) -> tuple[RemoteJob | None, str, list[str]]:
    written: list[str] = []
    said: list[str] = []
    job = follow(cluster, "hpd-feed-1", write=written.append, say=said.append, every=every, clock=time.clock)
    return job, "".join(written), said


def test_the_log_is_shown_as_it_grows_and_each_state_once() -> None:
    cluster = FakeCluster(
        script=(State.PENDING, RUNNING, RUNNING, RUNNING, SUCCEEDED), logs=("", "a\n", "a\n", "a\nb", "a\nbc\n")
    )
    cluster.add("hpd-feed-1", State.PENDING)
    time = FakeTime()
    job, written, said = followed(cluster, time)
    assert job is not None and job.state is SUCCEEDED
    assert written == "a\nbc\n" and time.slept == [5.0] * 4
    assert said == [f"job hpd-feed-1: {state}" for state in ("PENDING", "RUNNING", "SUCCEEDED")]


def test_a_long_log_is_asked_for_less_often_than_the_state_and_once_at_the_end() -> None:
    long = "x" * 30 * LOG_BYTES_PER_SECOND
    cluster = FakeCluster(script=(RUNNING,) * 8 + (SUCCEEDED,), logs=(long,) * 8 + (long + "the end",))
    cluster.add("hpd-feed-1", RUNNING)
    time = FakeTime()
    _, written, _ = followed(cluster, time)
    assert time.slept == [5.0] * 8  # the end is seen at the next look
    assert cluster.read == [1, 7, 9]  # after 0, 30 and 40 seconds
    assert written == long + "the end"


def test_a_cluster_that_forgot_the_job_ends_the_wait() -> None:
    assert followed(FakeCluster(), FakeTime())[0] is None


def test_silence_is_borne_for_a_while_and_said() -> None:
    cluster = FakeCluster(script=(RUNNING,) * 4 + (SUCCEEDED,), silent=range(1, 4))
    cluster.add("hpd-feed-1", RUNNING)
    job, _, said = followed(cluster, FakeTime())
    assert job is not None and job.state is SUCCEEDED
    assert sum("http://head:8265 cannot be reached" in line and "may go on" in line for line in said) == 3

    cluster, time = FakeCluster(silent=range(10**9)), FakeTime()
    with pytest.raises(ClusterUnavailableError):
        followed(cluster, time, every=10)
    assert PATIENCE_SECONDS < time.seconds <= PATIENCE_SECONDS + 10


@dataclass
class NoLog(FakeCluster):
    """Knows each state at once, and has no log before the so many-th question, which takes a minute."""

    answers: int = 10**9
    time: FakeTime = field(default_factory=FakeTime)

    def log(self, id: str) -> str:
        self.read.append(self.looks)
        if len(self.read) < self.answers:
            self.time.seconds += 60
            raise ClusterUnavailableError("no answer in time")
        return "the end\n"


def test_a_log_that_nobody_hands_out_is_no_silence_of_the_cluster() -> None:
    cluster = NoLog(script=(RUNNING,) * 1000 + (SUCCEEDED,))
    cluster.add("hpd-feed-1", RUNNING)
    job, written, said = followed(cluster, cluster.time)
    assert job is not None and job.state is SUCCEEDED and written == ""
    assert cluster.time.seconds > 10 * PATIENCE_SECONDS
    assert said[-1] == "no answer in time; the end of its log is not shown"
    # One question for each minute of the state's answers, not one in front of each.
    late = said.count("no answer in time; its log comes later")
    assert 1000 / 14 < late < 1000 / 11, late


def test_the_log_of_a_job_that_has_ended_is_asked_for_again() -> None:
    cluster = NoLog(script=(SUCCEEDED,), answers=2)
    cluster.add("hpd-feed-1", RUNNING)
    job, written, said = followed(cluster, cluster.time)
    assert job is not None and written == "the end\n" and cluster.read == [1, 1]
    assert said[-1] == "no answer in time; asking again"


def test_stopping_stops_every_attempt_that_runs_and_waits() -> None:
    cluster = FakeCluster(script=())
    cluster.add("hpd-feed-1", FAILED)
    cluster.add("hpd-feed-2", RUNNING)
    cluster.add("hpd-beef-1", RUNNING)
    assert [(job.id, job.state) for job in stop(cluster, JOB, print, FakeTime().clock)] == [("hpd-feed-2", STOPPED)]
    assert cluster.stopped == ["hpd-feed-2"]

    class Deaf(FakeCluster):
        def stop(self, id: str) -> bool:
            return True

    deaf, time = Deaf(script=()), FakeTime()
    deaf.add("hpd-feed-1", RUNNING)
    assert [job.state for job in stop(deaf, JOB, print, time.clock)] == [RUNNING] and 55 < time.seconds < 65


def test_a_job_that_is_listed_before_it_can_be_stopped_is_told_again() -> None:
    cluster, time = FakeCluster(script=(), deaf=3), FakeTime()
    cluster.add("hpd-feed-1", State.PENDING)
    assert [job.state for job in stop(cluster, JOB, print, time.clock)] == [STOPPED]
    assert cluster.stopped == ["hpd-feed-1"] and time.slept == [1.0] * 3


@dataclass
class Late(FakeCluster):
    """Takes a submission only at the so many-th time that it is asked for its jobs."""

    takes: int = 3

    def jobs(self) -> Sequence[RemoteJob]:
        self.takes -= 1
        if self.takes == 0:
            self.add("hpd-feed-1", State.PENDING)
        return super().jobs()


def test_a_submission_that_the_cluster_takes_after_it_was_interrupted_is_stopped() -> None:
    cluster, time = Late(script=()), FakeTime()
    assert [(job.id, job.state) for job in stop(cluster, JOB, print, time.clock, begun=True)] == [
        ("hpd-feed-1", STOPPED)
    ]
    assert time.slept == [1.0] * 2
    nothing = Late(script=(), takes=10**9)
    assert stop(nothing, JOB, print, time.clock, begun=False) == [] and time.seconds == 2
    assert stop(nothing, JOB, print, time.clock, begun=True) == [] and time.seconds == 2 + APPEAR_SECONDS


@dataclass
class Troubled(FakeCluster):
    """Answers each question only when it was asked for the third time, as Ray may while a job of it is stopping."""

    asked: dict[str, int] = field(default_factory=dict)

    def _first(self, question: str) -> None:
        self.asked[question] = self.asked.get(question, 0) + 1
        if self.asked[question] % 3:
            raise ClusterTroubledError("the Ray cluster at http://head:8265 is in trouble: 500")

    def jobs(self) -> Sequence[RemoteJob]:
        self._first("jobs")
        return super().jobs()

    def job(self, id: str) -> RemoteJob | None:
        self._first("job")
        return super().job(id)

    def stop(self, id: str) -> bool:
        self._first("stop")
        return super().stop(id)


def test_trouble_while_a_job_is_stopping_is_borne_for_a_while() -> None:
    cluster, said, time = Troubled(script=()), list[str](), FakeTime()
    cluster.add("hpd-feed-1", RUNNING)
    assert [job.state for job in stop(cluster, JOB, said.append, time.clock)] == [STOPPED]
    assert len(said) == 6 and all("is in trouble: 500; asking again" in line for line in said)

    job, attached = insist(lambda: place(cluster, JOB), said.append, clock=time.clock)
    assert (job.id, attached) == ("hpd-feed-2", False)


def test_trouble_and_silence_that_last_are_told() -> None:
    def ask() -> None:
        raise error

    for error, bound in ((ClusterTroubledError("500"), TROUBLE_SECONDS), (ClusterUnavailableError("nobody"), 0)):
        time = FakeTime()
        with pytest.raises(type(error)):
            insist(ask, print, clock=time.clock)
        assert bound <= time.seconds <= bound + 2

    class Silent(FakeCluster):
        def jobs(self) -> Sequence[RemoteJob]:
            raise ClusterUnavailableError("nobody")

    time = FakeTime()
    with pytest.raises(ClusterUnavailableError):
        stop(Silent(), JOB, print, time.clock)  # what costs money is asked to stop for longer
    assert STOP_SECONDS <= time.seconds <= STOP_SECONDS + 2


def test_a_job_of_another_output_is_not_attached_to() -> None:
    cluster = FakeCluster(script=())
    cluster.add("hpd-beef-1", RUNNING, {"hpd_output": "s3://b/other"})
    with pytest.raises(ClusterError, match=r"hpd-beef-1 is of another job .* it writes s3://b/other"):
        known(cluster, "hpd-beef-1", JOB)
    assert known(cluster, "hpd-feed-9", JOB) is None
