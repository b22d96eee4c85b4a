"""One question to an endpoint: retries, waits, refusals; and many, with a journal that outlives a kill."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from jobs.remote import endpoint as module
from jobs.remote.asking import AnswerError, Limits, Question, ask_all, json_object
from jobs.remote.endpoint import Answer, Endpoint, EndpointError, EndpointRefused, retry_after
from jobs.remote.journal import Entry, Journal, Spent
from pipeline.job import JobError
from tests.jobs.fake_endpoint import FakeEndpoint, Reply, asked_text, serving

KEY = "sk-secret-0123456789"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT", 0.01)


@pytest.fixture
def fake() -> Iterator[FakeEndpoint]:
    with serving(lambda body: Reply('{"a": "1"}')) as server:
        yield server


def replies(fake: FakeEndpoint, *given: Reply) -> None:
    """The given replies in turn, the last one for ever."""
    line = itertools.chain(given, itertools.repeat(given[-1]))
    fake.answer = lambda body: next(line)


def ask(fake: FakeEndpoint, **options: Any) -> Answer:
    asked = Endpoint(fake.url, "big", **{"key": KEY, "timeout": 5.0, "retries": 3} | options)

    async def once() -> Answer:
        async with asked.client(1) as client:
            return await asked.ask(client, asked.body([{"role": "user", "content": "?"}], {"type": "object"}))

    return asyncio.run(once())


class TestOneQuestion:
    def test_the_protocol(self, fake: FakeEndpoint) -> None:
        answer = ask(fake, request={"temperature": 0, "seed": None})
        assert answer == Answer('{"a": "1"}', True, 100, 10, 1)
        assert fake.keys == [f"Bearer {KEY}"]
        (body,) = fake.bodies
        assert body.keys() == {"model", "messages", "response_format", "temperature"}
        assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}
        ask(fake, key="", answer_format="text")
        assert fake.keys[1] is None and "response_format" not in fake.bodies[1]

    @pytest.mark.parametrize("status", [408, 429, 500, 503])
    def test_what_passes_is_tried_again(self, fake: FakeEndpoint, status: int) -> None:
        replies(fake, Reply(status=status), Reply(status=status), Reply("done"))
        assert ask(fake).tries == 3

    def test_retry_after_is_waited_out(self, fake: FakeEndpoint) -> None:
        replies(fake, Reply(status=429, headers={"Retry-After": "0.5"}), Reply("done"))
        ask(fake)
        assert 0.5 <= fake.times[1] - fake.times[0] < 2

    def test_a_retry_after_of_an_hour_is_an_error_of_its_question(self, fake: FakeEndpoint) -> None:
        replies(fake, Reply(status=429, headers={"Retry-After": "3600"}))
        with pytest.raises(EndpointError, match="asks to wait 3600 s"):
            ask(fake)
        assert len(fake.bodies) == 1

    def test_retries_end(self, fake: FakeEndpoint) -> None:
        replies(fake, Reply(status=500, message="melted"))
        with pytest.raises(EndpointError, match="status 500: melted, after 4 tries"):
            ask(fake)
        assert len(fake.bodies) == 4

    def test_silence_is_tried_again(self, fake: FakeEndpoint) -> None:
        replies(fake, Reply(delay=1.0), Reply("done"))
        assert ask(fake, timeout=0.2).tries == 2
        replies(fake, Reply(delay=1.0))
        with pytest.raises(EndpointError, match=r"no answer within 0\.2 s, after 2 tries"):
            ask(fake, timeout=0.2, retries=1)

    def test_nobody_there(self) -> None:
        with serving(lambda body: Reply()) as gone:
            pass
        with pytest.raises(EndpointError, match=r"ConnectError.*after 2 tries"):
            ask(gone, retries=1)

    @pytest.mark.parametrize(
        ("reply", "message"),
        [
            (Reply(status=401, message=f"Incorrect API key provided: {KEY}"), "SHOP_KEY holds a key that it does not"),
            (Reply(status=403), "not allowed"),
            (Reply(status=404, message="model 'big' does not exist"), "no such path or model.*does not exist"),
            (Reply(status=429, code="insufficient_quota"), "quota used up"),
        ],
    )
    def test_a_refusal_names_the_endpoint_and_never_the_key(
        self, fake: FakeEndpoint, reply: Reply, message: str
    ) -> None:
        replies(fake, reply)
        with pytest.raises(EndpointRefused, match=message) as caught:
            ask(fake, key_variable="SHOP_KEY")
        assert fake.url in str(caught.value) and KEY not in repr(caught.value)
        assert len(fake.bodies) == 1, "not tried again"

    @pytest.mark.parametrize(
        ("reply", "message"),
        [
            (Reply(status=400, message=f"context too long {KEY}"), "status 400: context too long [*]{3}"),
            (Reply(raw="<html>hello"), "no chat completion: <html>hello"),
            (Reply(raw='{"choices": []}'), "no chat completion"),
            (Reply(raw='{"choices": [{"message": {"refusal": "I will not"}}]}'), "without content: I will not"),
        ],
    )
    def test_what_is_wrong_with_one_question_is_not_tried_again(
        self, fake: FakeEndpoint, reply: Reply, message: str
    ) -> None:
        replies(fake, reply)
        with pytest.raises(EndpointError, match=message) as caught:
            ask(fake)
        assert len(fake.bodies) == 1 and KEY not in str(caught.value)

    def test_retry_after_as_number_date_or_nonsense(self) -> None:
        assert retry_after("7") == 7 and retry_after(" 1.5 ") == 1.5
        assert retry_after(None) is None and retry_after("soon") is None and retry_after("-3") is None
        assert retry_after(formatdate(0, usegmt=True)) == 0
        assert (retry_after("Fri, 31 Dec 2100 23:59:59 GMT") or 0) > 7000

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"url": "localhost:8000/v1"}, "must be like https://host/v1"),
            ({"url": "http://me:secret@host/v1"}, "without user, query and fragment"),
            ({"key": "two words"}, "SHOP_KEY holds a blank"),
            ({"answer_format": "xml"}, "--answer-format xml"),
        ],
    )
    def test_what_is_no_endpoint(self, options: dict[str, str], message: str) -> None:
        with pytest.raises(JobError, match=message) as caught:
            Endpoint(**{"url": "http://host/v1", "model": "big", "key_variable": "SHOP_KEY"} | options)  # type: ignore[arg-type]
        assert "secret" not in str(caught.value) and "two words" not in str(caught.value)

    def test_neither_the_key_nor_a_full_path_are_kept_in_what_is_shown(self) -> None:
        shown = Endpoint("http://host/v1/chat/completions", "big", KEY)
        assert KEY not in repr(shown) and shown.url == "http://host/v1"


def check(text: str) -> None:
    if "a" not in json_object(text):
        raise AnswerError("it leaves out 'a'")


def question(text: str) -> Question:
    return Question("system", text, {"type": "object"}, check)


class TestManyQuestions:
    def ask_all(self, fake: FakeEndpoint, path: Path, texts: list[str], **limits: int) -> tuple[Any, Journal]:
        said: list[str] = []
        with Journal(path) as journal:
            asked = Endpoint(fake.url, "big", KEY, retries=0)
            return ask_all(asked, [question(t) for t in texts], journal, Limits(**limits), said.append), journal

    def test_equal_questions_are_one_and_no_more_than_so_many_are_in_flight(
        self, fake: FakeEndpoint, tmp_path: Path
    ) -> None:
        fake.answer = lambda body: Reply('{"a": 1}', delay=0.05)
        texts = [f"t{n % 10}" for n in range(30)]
        answers, journal = self.ask_all(fake, tmp_path / "j", texts, concurrency=3)
        assert len(answers.texts) == answers.asked == len(fake.bodies) == 10 and fake.most_at_once == 3
        assert journal.spent == answers.spent == Spent(10, 1000, 100, 0)

    def test_a_second_run_asks_what_has_no_answer_yet(self, fake: FakeEndpoint, tmp_path: Path) -> None:
        fake.answer = lambda body: Reply('{"a": 1}') if asked_text(body) == "good" else Reply(status=500)
        first, _ = self.ask_all(fake, tmp_path / "j", ["good", "bad"])
        assert len(first.texts) == 1 and list(first.failures.values()) == ["status 500: no, after one try"]
        fake.answer, fake.bodies = lambda body: Reply('{"a": 2}'), []
        second, journal = self.ask_all(fake, tmp_path / "j", ["good", "bad"])
        assert [asked_text(body) for body in fake.bodies] == ["bad"] and not second.failures
        assert (second.spent.answers, journal.spent.answers) == (1, 2)

    def test_an_answer_that_is_none_is_asked_again_with_the_reason(self, fake: FakeEndpoint, tmp_path: Path) -> None:
        replies(fake, Reply("Sure! Here it is"), Reply('<think>{}</think>\n```json\n{"a": 1}\n```'))
        answers, journal = self.ask_all(fake, tmp_path / "j", ["x"])
        assert len(answers.texts) == 1 and journal.spent.answers == 2, "both are paid for"
        roles = [message["role"] for message in fake.bodies[1]["messages"]]
        assert roles == ["system", "user", "assistant", "user"]
        assert "no JSON" in fake.bodies[1]["messages"][3]["content"]

    @pytest.mark.parametrize(
        ("reply", "reason"),
        [
            (Reply("[1]"), "it is no JSON object"),
            (Reply('{"b": 1}'), "it leaves out 'a'"),
            (Reply('{"a": 1}', finish_reason="length"), "cut at the endpoint's token limit"),
        ],
    )
    def test_a_question_without_a_usable_answer_keeps_its_reason(
        self, fake: FakeEndpoint, tmp_path: Path, reply: Reply, reason: str
    ) -> None:
        replies(fake, reply)
        answers, _ = self.ask_all(fake, tmp_path / "j", ["x"])
        assert not answers.texts and reason in str(answers.failures) and len(fake.bodies) == 2

    @pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 200_000, "1" * 9_999, '{"a": "\\ud83d"} and more', "\0"])
    def test_no_text_ends_the_run_and_every_paid_answer_is_kept(
        self, fake: FakeEndpoint, tmp_path: Path, text: str
    ) -> None:
        fake.answer = lambda body: Reply('{"a": 1}' if asked_text(body) == "good" else text)
        answers, journal = self.ask_all(fake, tmp_path / "j", ["bad", "good"], concurrency=1)
        assert len(answers.texts) == len(answers.failures) == 1 and journal.spent.answers == 3
        assert Journal(tmp_path / "j").spent == journal.spent

    def test_a_check_that_breaks_costs_its_own_question_only(self, fake: FakeEndpoint, tmp_path: Path) -> None:
        def broken(text: str) -> None:
            raise RecursionError("too deep")

        asked = [Question("system", "bad", {}, broken), question("good")]
        with Journal(tmp_path / "j") as journal:
            answers = ask_all(Endpoint(fake.url, "big", KEY), asked, journal, Limits(concurrency=1), lambda line: None)
        assert len(answers.texts) == 1 and "cannot be read (RecursionError: too deep)" in str(answers.failures)
        assert journal.spent.answers == 3

    def test_failures_in_a_row_end_the_run(self, fake: FakeEndpoint, tmp_path: Path) -> None:
        replies(fake, Reply(status=400, message="no such response_format"))
        texts = [f"t{n}" for n in range(30)]
        answers, _ = self.ask_all(fake, tmp_path / "j", texts, concurrency=1, max_failures=4)
        assert len(fake.bodies) == 4 and "4 questions in a row got no usable answer" in answers.stopped
        assert "no such response_format" in answers.stopped

    def test_a_refusal_ends_the_run_and_leaves_what_was_answered(self, fake: FakeEndpoint, tmp_path: Path) -> None:
        replies(fake, Reply('{"a": 1}'), Reply(status=401))
        with pytest.raises(EndpointRefused):
            self.ask_all(fake, tmp_path / "j", ["x", "y", "z"], concurrency=1)
        assert len(fake.bodies) == 2 and len(Journal(tmp_path / "j").accepted) == 1

    def test_another_model_or_prompt_is_another_question_another_address_is_not(self) -> None:
        one = Endpoint("http://a/v1", "big", request={"temperature": 0})
        keys = {
            question("x").key(one),
            question("x").key(Endpoint("http://b/v1", "big", KEY, request={"temperature": 0})),
            question("x").key(Endpoint("http://a/v1", "small", request={"temperature": 0})),
            question("x").key(Endpoint("http://a/v1", "big", request={"temperature": 1})),
            question("y").key(one),
        }
        assert len(keys) == 4


class TestJournal:
    def test_a_half_written_line_is_cut_off(self, tmp_path: Path) -> None:
        with Journal(tmp_path / "j") as journal:
            journal.add(Entry("k1", "\ud83d text", "", 5, None))
        with (tmp_path / "j").open("a") as file:
            file.write('{"key": "k2", "te')
        with Journal(tmp_path / "j") as journal:
            assert journal.accepted == {"k1": "\ud83d text"} and journal.spent == Spent(1, 5, 0, 1)
            journal.add(Entry("k3", "t", "bad", 1, 1))
        assert list(Journal(tmp_path / "j").accepted) == ["k1"]

    def test_one_process_at_a_time(self, tmp_path: Path) -> None:
        with Journal(tmp_path / "j"), pytest.raises(JobError, match="another run writes to it"):
            Journal(tmp_path / "j")

    def test_another_file_is_refused_and_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "j").write_text('{"input": "x"}\n')
        with pytest.raises(JobError, match="line 1: no answer of an endpoint"):
            Journal(tmp_path / "j")
        assert (tmp_path / "j").read_text() == '{"input": "x"}\n'
