"""The chapters that hold a corpus' cost against others: methods, hosted models, training, machines, the paper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobs.costs.told import Chapter, grid, paragraph

#: The content of report.json.
Facts = Mapping[str, Any]


def methods(facts: Facts) -> Chapter:
    same = "" if facts["benchmark"]["same_model"] else " The benchmark ran another model or adapter than the job."
    return Chapter(
        "Beside other ways to run the same model",
        [
            grid(
                facts,
                "methods",
                [
                    ("engine", "name", "text"),
                    ("$ per {per:whole}", "dollars_per_1000", "usd"),
                    ("dollars", "dollars", "usd_whole"),
                    ("HPD saves", "saved", "usd_whole"),
                    ("as slow as HPD", "ratio", "times"),
                    ("documents/s there", "documents_per_second", "figure"),
                ],
            ),
            paragraph(
                facts,
                f"""Speeds are those of a benchmark ({{benchmark.heading:text}}); dollars are HPD's for this corpus
                times how much slower each engine was there, on the same documents and machine.{same}""",
                warning=bool(same),
            ),
        ],
    )


def hosted(facts: Facts) -> Chapter:
    keys = (
        " (of keys {hosted_tokens.key_tokens:figure} each, assumed)" if facts["hosted_tokens"]["keys_assumed"] else ""
    )
    return Chapter(
        "Beside hosted models",
        [
            grid(
                facts,
                "hosted",
                [
                    ("model", "name", "text"),
                    ("$ per {per:whole}", "dollars_per_1000", "usd"),
                    ("dollars", "dollars", "usd_whole"),
                    ("in batches", "batch_dollars", "usd_whole"),
                    ("HPD saves", "saved", "usd_whole"),
                    ("against batches", "batch_saved", "usd_whole"),
                ],
            ),
            paragraph(
                facts,
                f"""A request has the whole instruction and the text, {{hosted_tokens.input_per_document:figure}}
                tokens, and its answer every key with its value, {{hosted_tokens.output_per_document:figure}}{keys}:
                counted with this model's tokenizer, not theirs. Whether the answers are equally good is another
                question (hpd evaluate).""",
            ),
            *(
                paragraph(facts, f"{{hosted.{n}.name:text}}: {{hosted.{n}.note:text}}.", warning=True)
                for n, model in enumerate(facts["hosted"])
                if model["note"]
            ),
            grid(
                facts,
                "hosted",
                [
                    ("prices as read", "name", "text"),
                    ("in, $ per million", "input", "usd"),
                    ("out", "output", "usd"),
                    ("when", "date", "text"),
                    ("where", "source", "text"),
                ],
            ),
        ],
    )


def finetune(facts: Facts) -> Chapter:
    spent = "{finetune.dollars:usd_whole}" + (", an assumption" if facts["finetune"]["assumed"] else "")
    return Chapter(
        "When fine-tuning a small model has paid",
        [
            grid(
                facts,
                "finetune.others",
                [
                    ("instead of", "name", "text"),
                    ("$ per {per:whole}", "dollars_per_1000", "usd"),
                    ("after documents", "documents", "whole"),
                ],
            ),
            paragraph(
                facts,
                f"""Training and labels are taken to cost {spent} (--finetune-dollars): so many documents later they
                have come back. A dash: never, since the hosted model is cheaper.""",
            ),
        ],
    )


def roofline(facts: Facts) -> Chapter:
    return Chapter(
        "Roofline estimates of other machines: nothing was run on them",
        [
            grid(
                facts,
                "roofline",
                [
                    ("machine, roofline estimate", "name", "text"),
                    ("at most rows/s", "rows_per_second", "figure"),
                    ("bound by", "bound", "text"),
                    ("$ per hour", "dollars_per_hour", "usd"),
                    ("at least $ per {per:whole}", "dollars_per_1000", "usd"),
                ],
            ),
            paragraph(
                facts,
                """What data sheets allow for the forward passes that were counted here: products at the peak rate, or
                all weights read once a pass. No program reaches it; launches, attention and the rest of the job are
                left out. It bounds what another machine can bring, and is no price.""",
            ),
        ],
    )


def on_paper(facts: Facts) -> Chapter:
    return Chapter(
        "Larger models on other machines, roofline estimates: nothing was run",
        [
            grid(
                facts,
                "on_paper.rows",
                [
                    ("model", "model", "text"),
                    ("machine, roofline estimate", "machine", "text"),
                    ("documents/s", "expected", "figure"),
                    ("bound by", "bound", "text"),
                    ("$ per hour", "dollars_per_hour", "usd"),
                    ("$ per {per:whole}", "dollars_per_1000", "usd"),
                ],
            ),
            paragraph(
                facts,
                """{on_paper.share:share} of what data sheets allow, an assumption, with weights in half precision. A
                document is {on_paper.work.prompt:figure} prompt tokens after {on_paper.work.prefix:figure} shared ones
                and {on_paper.work.slots:figure} values of {on_paper.work.generated:figure} tokens, counted with this
                model's tokenizer. A dash: it does not fit one such machine. Prices are assumptions. The model that ran
                here stands in a table like this one, as its least seconds, where --compare names a benchmark, which
                counts its weights.""",
            ),
        ],
    )


def paper(facts: Facts) -> Chapter:
    return Chapter(
        "The paper's arithmetic",
        [
            paragraph(
                facts,
                """{paper.source:text} states, for {paper.model:text}, {paper.ar_per_1000:usd} per {per:whole} products
                autoregressively and {paper.hpd_per_1000:usd} with HPD: {paper.ratio:times} less. At
                {paper.documents:whole} documents that saves {paper.saved_by_rates:usd_whole}. It also states savings of
                about {paper.stated_saving_over_ar:usd_whole} over AR and {paper.stated_saving_over_hosted:usd_whole}
                over {paper.hosted:text} at {paper.documents:whole} documents, which are
                {paper.rate_of_saving_over_ar:usd_fine} and {paper.rate_of_saving_over_hosted:usd_fine} per
            {per:whole}.""",
            ),
            paragraph(
                facts,
                """The two do not agree, so they belong to different configurations: neither is taken as a claim about
                the other, and no figure of this report rests on them.""",
                warning=True,
            ),
        ],
    )
