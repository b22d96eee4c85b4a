"""`hpd label`: pseudo-labels of a catalog by a larger model behind an endpoint, as a benchmark file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from hpd_core.schema import Document
from jobs.console import Exit, command, output, run_alone, say
from jobs.labels.command import BenchmarkFile, Sample, SampleSeed, check_choice, exit_of_too_many
from jobs.labels.run import LabelRun, shown
from jobs.options import AsJson, ConfigFile, Inputs, Limit, Overrides
from jobs.remote.asking import Answers, Limits, ask_all
from jobs.remote.costs import cost, price_of, spoken
from jobs.remote.endpoint import Endpoint
from jobs.remote.endpoint_options import (
    AnswerFormat,
    Attempts,
    Concurrency,
    EndpointUrl,
    HostedModel,
    InputPrice,
    KeyVariable,
    MaxFailures,
    OutputPrice,
    Request,
    Retries,
    Timeout,
    endpoint_of,
)
from jobs.remote.journal import Journal
from jobs.remote.labels import label_question, labels_of
from pipeline.catalog import Product, read_catalog
from pipeline.compose import catalog_reader, compose
from pipeline.config import load_config
from pipeline.job import JobError, RowFault


@command
def label(
    config: ConfigFile,
    endpoint: EndpointUrl,
    model: HostedModel,
    output_file: BenchmarkFile,
    input: Inputs = None,
    limit: Limit = None,
    sample: Sample = None,
    seed: SampleSeed = 0,
    key_variable: KeyVariable = None,
    concurrency: Concurrency = 8,
    timeout: Timeout = 120.0,
    retries: Retries = 5,
    attempts: Attempts = 2,
    max_failures: MaxFailures = 20,
    answer_format: AnswerFormat = "schema",
    request: Request = None,
    input_price: InputPrice = None,
    output_price: OutputPrice = None,
    set_: Overrides = None,
    json_: AsJson = False,
) -> None:
    """Label a catalog through any OpenAI-compatible endpoint; `hpd finetune` and `hpd evaluate` take what it writes.

    Beside OUTPUT.jsonl it writes OUTPUT.rejected.jsonl (rows without labels, and why), OUTPUT.summary.json and
    OUTPUT.answers.jsonl, from which the same command goes on. Exit codes: 0 complete, 2 configuration, input or an
    endpoint that refuses, 3 more rows rejected than limits.max_error_rate, 4 stopped before every row was asked.
    """
    check_choice(limit, sample, output_file)
    door = endpoint_of(endpoint, model, key_variable, timeout, retries, answer_format, request)
    price = price_of(model, input_price, output_price)
    settings = load_config(config, set_ or ())
    job = compose(settings, config, inputs=input or (), output=str(output_file), limit=limit)
    products = list(read_catalog(job, catalog_reader(settings, config), sample, seed))
    if not products:
        raise JobError(f"{', '.join(job.inputs)}: no row to label")
    with output(json_) as out, Journal(output_file.with_suffix(".answers.jsonl")) as journal:
        documents = dict.fromkeys(p.item for p in products if isinstance(p.item, Document))
        questions = {document: label_question(document) for document in documents}
        answers = ask_all(door, questions.values(), journal, Limits(concurrency, attempts, max_failures), say)
        keys = {document: question.key(door) for document, question in questions.items()}
        labelled = gather(products, keys, answers)
        facts = {
            "run": run_facts(door, config, job.inputs, limit, sample, seed),
            **labelled.facts(),
            "asked": answers.asked,
            "stopped": answers.stopped,
            "price": None if price is None else {"input": price.input, "output": price.output, "source": price.source},
            "spent": cost(answers.spent, price),
            "spent_in_all_runs": cost(journal.spent, price),
        }
        labelled.write(output_file, facts)
        for line in shown(facts):
            out.console.print(line, highlight=False, markup=False, soft_wrap=True)
        out.console.print(f"this run: {spoken(answers.spent, price)}", highlight=False)
        out.console.print(f"written to {output_file}", highlight=False)
        out.finish(facts | {"output": str(output_file)})
    if answers.stopped:
        say(f"stopped: {answers.stopped}; the same command goes on")
        raise typer.Exit(Exit.INCOMPLETE)
    exit_of_too_many(settings.limits, len(labelled.rejected), len(products))


def gather(products: Sequence[Product], keys: Mapping[Document, str], answers: Answers) -> LabelRun:
    """Lines and rejections of all products, in order. keys: of their questions."""
    found = LabelRun()
    for product in products:
        document = product.item
        if isinstance(document, RowFault):
            found.reject(product, document.status.value, document.reason)
            continue
        key = keys[document]
        if key in answers.texts:
            found.add(product, document, labels_of(document, answers.texts[key]))
        elif key in answers.failures:
            found.reject(product, "no_answer", answers.failures[key])
        else:
            found.reject(product, "not_asked", f"not asked: {answers.stopped}")
    return found


def run_facts(
    endpoint: Endpoint, config: Path, inputs: Sequence[str], limit: int | None, sample: int | None, seed: int
) -> dict[str, Any]:
    """Where the labels come from."""
    return {
        "config": config.name,
        "inputs": list(inputs),
        "limit": limit,
        "sample": sample,
        "seed": seed,
        "endpoint": endpoint.url,
        "model": endpoint.model,
        "request": dict(endpoint.request),
        "answer_format": endpoint.answer_format,
    }


if __name__ == "__main__":
    run_alone(label)
