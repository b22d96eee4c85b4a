"""A chat-completions endpoint that speaks OpenAI's protocol: one question, one answer, waits and retries.

What one question suffers is an `EndpointError`; what every question would suffer is `EndpointRefused`, which ends the
command. Neither ever holds the key: an endpoint may well repeat it in its own message.
"""

from __future__ import annotations

import logging
import os
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2
import stamina
from pydantic import BaseModel, Field, ValidationError

from pipeline.job import JobError

#: Seconds before the first retry of a question; they double up to the last. An endpoint's own Retry-After wins.
FIRST_WAIT, LAST_WAIT = 1.0, 60.0
#: Longest Retry-After in seconds that is waited out. Beyond it, it is a quota that ran out and no busy minute.
LONGEST_RETRY_AFTER = 600.0
#: Statuses that say the same to every question: wrong key, no money, not allowed, no such path or model.
_REFUSED = {401: "wrong key", 402: "payment required", 403: "not allowed", 404: "no such path or model"}
_BUSY = {408, 409, 425, 429}
_SHOWN = 300
# Without a handler Python prints each retry as a bare word on stderr. Whoever sets up logging still gets all of it.
logging.getLogger("stamina").addHandler(logging.NullHandler())


class EndpointError(Exception):
    """One question that got no answer, after every retry that was worth one."""


class EndpointRefused(JobError):
    """The endpoint will answer no question of this run. Names the endpoint."""


class _Busy(Exception):
    """Worth another try. wait: seconds that the endpoint asked for, None where it did not say."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model wrote, and what it took.

    finished: False where the endpoint's token limit cut it. input_tokens, output_tokens: as the endpoint reports them,
    None where it does not. tries: requests that were made for it; only the last one's tokens are known.
    """

    text: str
    finished: bool
    input_tokens: int | None
    output_tokens: int | None
    tries: int


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where questions go.

    url: up to and without `/chat/completions`. key: sent as a bearer token, "" sends none; never shown.
    key_variable: environment variable of the key, to name in errors. timeout: seconds of one request.
    retries: further tries of a question when the endpoint is busy, broken or silent.
    request: further fields of every request body (`temperature`, `max_tokens`, …).
    answer_format: how the JSON is asked for: "schema", "object" or "text" (by the prompt alone).

    Raises JobError for what is no such URL, and for a key that cannot stand in a header.
    """

    url: str
    model: str
    key: str = field(default="", repr=False)
    key_variable: str = "OPENAI_API_KEY"
    timeout: float = 120.0
    retries: int = 5
    request: Mapping[str, Any] = field(default_factory=dict)
    answer_format: str = "schema"

    def __post_init__(self) -> None:
        try:
            url = httpx2.URL(self.url)
        except httpx2.InvalidURL as error:
            raise JobError(f"--endpoint: no URL ({error})") from error
        if url.userinfo or url.query or url.fragment:
            # Never shown: it may be a password.
            raise JobError(f"--endpoint: a URL without user, query and fragment; the key goes into {self.key_variable}")
        if url.scheme not in ("http", "https") or not url.host:
            raise JobError(f"--endpoint {self.url}: must be like https://host/v1")
        if not self.key.isascii() or not self.key.isprintable() or " " in self.key:
            raise JobError(f"the key in {self.key_variable} holds a blank or another character that no header may hold")
        if self.answer_format not in ("schema", "object", "text"):
            raise JobError(f"--answer-format {self.answer_format}: must be one of schema, object, text")
        object.__setattr__(self, "url", self.url.rstrip("/").removesuffix("/chat/completions"))

    def client(self, connections: int) -> httpx2.AsyncClient:
        """A client for `ask`, with so many connections."""
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        limits = httpx2.Limits(max_connections=connections)
        return httpx2.AsyncClient(headers=headers, timeout=self.timeout, limits=limits)

    def body(self, messages: Sequence[Mapping[str, str]], shape: Mapping[str, Any]) -> dict[str, Any]:
        """What is sent for a question. shape: JSON schema of the answer. A field given as None is left out."""
        formats = {
            "schema": {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": dict(shape)}},
            "object": {"type": "json_object"},
            "text": None,
        }
        fields = {"model": self.model, "messages": list(messages), "response_format": formats[self.answer_format]}
        return {name: value for name, value in (fields | dict(self.request)).items() if value is not None}

    async def ask(self, client: httpx2.AsyncClient, body: Mapping[str, Any]) -> Answer:
        """The answer to one body. Raises EndpointError, and EndpointRefused where no question would get one."""
        try:
            async for attempt in stamina.retry_context(
                on=_wait,
                attempts=self.retries + 1,
                timeout=None,
                wait_initial=FIRST_WAIT,
                wait_max=LAST_WAIT,
                wait_jitter=FIRST_WAIT,
            ):
                with attempt:
                    return await self._once(client, body, attempt.num)
        except _Busy as error:
            tries = f"{self.retries + 1} tries" if self.retries else "one try"
            raise EndpointError(f"{error}, after {tries}") from None
        raise AssertionError("the last attempt neither returned nor raised")

    async def _once(self, client: httpx2.AsyncClient, body: Mapping[str, Any], number: int) -> Answer:
        try:
            response = await client.post(f"{self.url}/chat/completions", json=body)
        except httpx2.TimeoutException:
            raise _Busy(f"no answer within {self.timeout:g} s") from None
        except httpx2.TransportError as error:
            raise _Busy(self._shown(f"{type(error).__name__}: {error}")) from None
        if response.status_code != 200:
            raise self._fault(response)
        try:
            said = _Completion.model_validate_json(response.content)
        except ValidationError:
            raise EndpointError(self._shown(f"answered what is no chat completion: {response.text}")) from None
        choice, usage = said.choices[0], said.usage or _Usage()
        if choice.message.content is None:
            raise EndpointError(self._shown(f"answered without content: {choice.message.refusal or choice}"))
        finished = choice.finish_reason != "length"
        return Answer(choice.message.content, finished, usage.prompt_tokens, usage.completion_tokens, number)

    def _fault(self, response: httpx2.Response) -> Exception:
        status = response.status_code
        message, code = _said(response)
        reason = self._shown(f"status {status}: {message}")
        if status in _REFUSED or code == "insufficient_quota":
            why = _REFUSED.get(status, "quota used up")
            if status == 401:
                state = "holds a key that it does not take" if self.key else "is not set"
                why = f"{self.key_variable} {state}"
            return EndpointRefused(f"{self.url} refuses model {self.model!r}: {why} ({reason})")
        if status in _BUSY or status >= 500:
            wait = retry_after(response.headers.get("retry-after"))
            if wait is not None and wait > LONGEST_RETRY_AFTER:
                return EndpointError(f"{reason} (asks to wait {wait:.0f} s, longer than {LONGEST_RETRY_AFTER:.0f} s)")
            return _Busy(reason, wait)
        return EndpointError(reason)

    def _shown(self, text: str) -> str:
        """One short line without the key."""
        if self.key:
            text = text.replace(self.key, "***")
        line = " ".join(text.split())
        return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"


def key_of(variable: str, *, needed: bool) -> str:
    """The key in an environment variable, without edge blanks; raises JobError where it is needed and not set."""
    key = os.environ.get(variable, "").strip()
    if needed and not key:
        raise JobError(f"--key-variable {variable}: the environment variable is not set")
    return key


def retry_after(header: str | None) -> float | None:
    """Seconds that a Retry-After header asks for, as a number or as a date; None where it is neither."""
    if header is None:
        return None
    if re.fullmatch(r"\s*\d+(\.\d+)?\s*", header):
        return float(header)
    try:
        moment = parsedate_to_datetime(header)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.fromtimestamp(time.time(), UTC)).total_seconds())


def _wait(error: Exception) -> bool | float:
    if not isinstance(error, _Busy):
        return False
    # A little longer than asked for, or all waiting questions would come back in the same moment.
    return True if error.wait is None else error.wait * random.uniform(1.0, 1.1) + random.uniform(0, FIRST_WAIT / 10)


def _said(response: httpx2.Response) -> tuple[str, str]:
    """(message, code) of an error, by the protocol or as it stands."""
    try:
        error = response.json()["error"]
        return (str(error["message"]), str(error.get("code"))) if isinstance(error, dict) else (str(error), "")
    except (ValueError, KeyError, TypeError, RecursionError):
        return response.text, ""


class _Message(BaseModel):
    content: str | None = None
    refusal: str | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Usage(BaseModel):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Completion(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: _Usage | None = None
