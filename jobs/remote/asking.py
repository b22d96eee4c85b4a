"""Many questions to an endpoint at once, each answer checked and kept before the next is asked in its place."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2

from jobs.remote.endpoint import Endpoint, EndpointError, EndpointRefused
from jobs.remote.journal import Entry, Journal, Spent

#: Seconds between two lines about the progress.
_LINE_EVERY = 5.0
_THINKING = re.compile(r"^\s*<think>.*?</think>", re.DOTALL)
_FENCED = re.compile(r"```(?:json)?\s*\n(.*)\n\s*```", re.DOTALL)


class AnswerError(ValueError):
    """An answer that is not what was asked for. Its message is told to the model when it is asked again."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a model is asked. shape: JSON schema of the answer. check: raises AnswerError for an answer that is none."""

    system: str
    user: str
    shape: Mapping[str, Any]
    check: Callable[[str], object]

    def body(self, endpoint: Endpoint) -> dict[str, Any]:
        messages = [{"role": "system", "content": self.system}, {"role": "user", "content": self.user}]
        return endpoint.body(messages, self.shape)

    def key(self, endpoint: Endpoint) -> str:
        """A digest of all that is sent: model, prompt and request decide, the endpoint's address does not."""
        return hashlib.sha256(json.dumps(self.body(endpoint), sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Limits:
    """concurrency: requests in flight. attempts: times that a question is asked while its answer is none.

    max_failures: so many questions in a row without a usable answer end the run: the rest would fare no better.
    """

    concurrency: int = 8
    attempts: int = 2
    max_failures: int = 20


@dataclass(slots=True)
class Answers:
    """What came of the questions, by their keys.

    texts: accepted answers, those of earlier runs too. failures: why a question has none. stopped: why the rest was not
    asked, "" where all were. asked: questions of this run. spent: by this run.
    """

    texts: dict[str, str]
    failures: dict[str, str] = field(default_factory=dict)
    stopped: str = ""
    asked: int = 0
    spent: Spent = field(default_factory=Spent)


def ask_all(
    endpoint: Endpoint, questions: Iterable[Question], journal: Journal, limits: Limits, say: Callable[[str], None]
) -> Answers:
    """Asks each question whose answer the journal does not have, equal ones once.

    Raises EndpointRefused where the endpoint answers none; what was answered before stays in the journal.
    """
    pending = {key: question for question in questions if (key := question.key(endpoint)) not in journal.accepted}
    asking = _Asking(endpoint, journal, limits, say, len(pending))
    asyncio.run(asking.run(iter(pending.items())))
    if asking.refused is not None:
        raise asking.refused
    return asking.answers


class _Asking:
    """One run of workers over one iterator of questions. All in one thread, so nothing needs a lock."""

    def __init__(
        self, endpoint: Endpoint, journal: Journal, limits: Limits, say: Callable[[str], None], total: int
    ) -> None:
        self.endpoint, self.journal, self.limits, self.say, self.total = endpoint, journal, limits, say, total
        self.answers = Answers(journal.accepted)
        self.refused: EndpointRefused | None = None
        self._failed_in_a_row = 0
        self._last_line = time.monotonic()

    async def run(self, pending: Iterator[tuple[str, Question]]) -> None:
        workers = min(self.limits.concurrency, self.total)
        async with self.endpoint.client(self.limits.concurrency) as client:
            await asyncio.gather(*(self._work(client, pending) for _ in range(workers)))

    async def _work(self, client: httpx2.AsyncClient, pending: Iterator[tuple[str, Question]]) -> None:
        for key, question in pending:
            try:
                reason = await self._answer(client, key, question)
            except EndpointRefused as error:
                self.refused = error
                reason = str(error)
            except EndpointError as error:
                reason = str(error)
            self._count(key, reason)
            if self.refused or self.answers.stopped:
                return

    async def _answer(self, client: httpx2.AsyncClient, key: str, question: Question) -> str:
        """ "" once an answer is accepted, else why the last one was not."""
        body = question.body(self.endpoint)
        reason = ""
        for _ in range(self.limits.attempts):
            answer = await self.endpoint.ask(client, body)
            reason = "" if answer.finished else "the answer was cut at the endpoint's token limit"
            reason = reason or _refused(question, answer.text)
            entry = Entry(key, answer.text, reason, answer.input_tokens, answer.output_tokens)
            self.journal.add(entry)
            self.answers.spent = self.answers.spent.plus(entry)
            if not reason:
                return ""
            again = f"This is not what was asked for: {reason}. Answer again, with the JSON object alone."
            said = [{"role": "assistant", "content": answer.text}, {"role": "user", "content": again}]
            body = question.body(self.endpoint)
            body["messages"] = [*body["messages"], *said]
        return reason

    def _count(self, key: str, reason: str) -> None:
        self.answers.asked += 1
        self._failed_in_a_row = self._failed_in_a_row + 1 if reason else 0
        if reason:
            if not self.answers.failures:  # one is enough to see a dead endpoint; all of them lie beside the output
                self.say(f"a question got no answer: {reason}")
            self.answers.failures[key] = reason
        if self._failed_in_a_row >= self.limits.max_failures:
            self.answers.stopped = (
                f"{self._failed_in_a_row} questions in a row got no usable answer, the last: {reason}"
            )
        now = time.monotonic()
        if now - self._last_line >= _LINE_EVERY or self.answers.asked == self.total:
            self._last_line = now
            self.say(f"{self.answers.asked}/{self.total} questions, {len(self.answers.failures)} without an answer")


def _refused(question: Question, text: str) -> str:
    """Why `text` is no answer, "" where it is one. Never raises, so that a paid answer is always kept."""
    try:
        question.check(text)
    except AnswerError as error:
        return str(error)
    except Exception as error:
        return f"it cannot be read ({type(error).__name__}: {error})"
    return ""


def json_object(text: str) -> dict[str, Any]:
    """The JSON object that an answer is, thoughts before it and a code fence around it aside. Raises AnswerError."""
    bare = _THINKING.sub("", text).strip()
    fenced = _FENCED.fullmatch(bare)
    try:
        found = json.loads(fenced[1] if fenced else bare)
    except ValueError as error:
        raise AnswerError(f"it is no JSON ({error})") from error
    except RecursionError as error:
        raise AnswerError("it is JSON nested too deep") from error
    if not isinstance(found, dict):
        raise AnswerError("it is no JSON object")
    return found


def check_keys(found: Mapping[str, Any], asked: Iterable[str]) -> None:
    """Raises AnswerError naming a key that is missing or was not asked for."""
    asked = list(asked)
    for what, names in (
        ("leaves out", [a for a in asked if a not in found]),
        ("answers what was not asked:", [k for k in found if k not in asked]),
    ):
        if names:
            raise AnswerError(f"it {what} {', '.join(map(repr, names[:5]))}")
