"""Command-line options of the commands that ask an endpoint, and what they make: endpoint, limits, price."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from jobs.remote.endpoint import Endpoint, key_of
from pipeline.job import JobError

#: Sent with every request unless `--request` says otherwise.
REQUEST: dict[str, Any] = {"temperature": 0}
KEY_VARIABLE = "OPENAI_API_KEY"
#: What the commands decide themselves.
_OWN = ("model", "messages", "response_format", "stream", "n")

EndpointUrl = Annotated[str, typer.Option("--endpoint", help="Base URL, as http://localhost:8000/v1.")]
HostedModel = Annotated[str, typer.Option("--model", "-m", help="Name of the model, as the endpoint knows it.")]
KeyVariable = Annotated[
    str | None, typer.Option(help=f"Environment variable of the key; {KEY_VARIABLE}, which may be unset, otherwise.")
]
Concurrency = Annotated[int, typer.Option(min=1, help="Requests in flight.")]
Retries = Annotated[int, typer.Option(min=0, help="Further tries of a question: busy, broken, silent endpoint.")]
Timeout = Annotated[float, typer.Option(min=0.001, help="Seconds of one request.")]
Attempts = Annotated[int, typer.Option(min=1, help="Times that a question is asked while its answer is none.")]
MaxFailures = Annotated[int, typer.Option(min=1, help="Questions in a row without an answer that end the run.")]
AnswerFormat = Annotated[str, typer.Option(help="How JSON is asked for: schema | object | text (the prompt alone).")]
Request = Annotated[
    list[str] | None,
    typer.Option("--request", metavar="KEY=VALUE", help="Field of every request, JSON; null leaves it out."),
]
InputPrice = Annotated[float | None, typer.Option(min=0, help="Dollars per million prompt tokens.")]
OutputPrice = Annotated[float | None, typer.Option(min=0, help="Dollars per million answer tokens.")]


def endpoint_of(
    url: str,
    model: str,
    key_variable: str | None,
    timeout: float,
    retries: int,
    answer_format: str,
    request: list[str] | None,
) -> Endpoint:
    """The endpoint of command-line words. Raises JobError naming the option at fault."""
    variable = key_variable or KEY_VARIABLE
    key = key_of(variable, needed=key_variable is not None)
    return Endpoint(url, model, key, variable, timeout, retries, REQUEST | _fields(request or []), answer_format)


def _fields(given: list[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise JobError(f"--request {word}: must be written KEY=VALUE")
        if name in _OWN:
            raise JobError(f"--request {name}: is set by the command itself")
        try:
            fields[name] = json.loads(value)
        except ValueError:
            fields[name] = value
    return fields
