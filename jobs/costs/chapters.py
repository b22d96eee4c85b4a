"""The story of a cost report, told over its facts: what was measured, what a corpus costs, beside what, how sure."""

from __future__ import annotations

from typing import Any

from jobs.costs import beside, doubts
from jobs.costs.beside import Facts
from jobs.costs.drawing import bars, curve, scatter
from jobs.costs.told import Chapter, Grid, Paragraph, grid, paragraph

_CURVE = "Dollars over corpus size, both axes in powers of ten"


def chapters(facts: Facts) -> list[Chapter]:
    """facts: the content of report.json."""
    return [
        _summary(facts),
        _measured(facts),
        _time(facts),
        _corpus(facts),
        doubts.sure(facts),
        _actors(facts),
        *([beside.methods(facts)] if facts["methods"] else []),
        *([beside.hosted(facts), beside.finetune(facts)] if facts["hosted"] else []),
        *([beside.roofline(facts)] if facts["roofline"] else []),
        *([beside.on_paper(facts)] if facts["on_paper"] and facts["on_paper"]["rows"] else []),
        beside.paper(facts),
        _runs(facts),
    ]


def _summary(facts: Facts) -> Chapter:
    if facts["sampling"]["interval"]:
        ends = """; {sampling.level:share} interval {estimate.low:usd_whole} to {estimate.high:usd_whole} (of sampling
        alone)"""
    else:
        ends = ", without an interval (see How sure this is)"
    spread = ""
    if facts["spread"]:
        spread = """ Apart from that, runs differed from {spread.fastest:times} to {spread.slowest:times} of what the
        fit over all of them says."""
    parts: list[Any] = [
        paragraph(
            facts,
            f"""{{documents:whole}} documents with {{measured.model:text}} on {{measured.device:text}},
            {{measured.dtype:text}}: {{estimate.dollars:usd_whole}} at the {{prices.0.name:text}} price of
            {{prices.0.dollars_per_hour:usd}} an hour{ends}. That is {{estimate.dollars_per_1000:usd}} per {{per:whole}}
            documents, and {{estimate.days:figure}} days on {{estimate.actors:whole}} actor(s).{spread}""",
        ),
        *doubts.warnings(facts),
    ]
    if len(facts["ways"]) > 1:
        parts.append(
            bars(facts, "Dollars for the corpus, by way", "ways", "{name:text}", ("dollars", "usd_whole"),
                 ours="HPD, measured here")
        )  # fmt: skip
    return Chapter("In short", parts)


def _measured(facts: Facts) -> Chapter:
    return Chapter(
        "What was measured",
        [
            paragraph(
                facts,
                """{measured.rows:whole} rows, {measured.rows_error:whole} of them in error, in
                {measured.units:whole} units: {measured.rows_per_second:figure} rows a second and actor, waiting
                included. Actors worked {measured.utilisation:share} of the time between their first unit and their
                last; what they waited, {measured.idle_share:share}, is paid for and is in the price. A document had
                {measured.prompt_tokens_per_document:figure} prompt tokens and
                {measured.values_per_document:figure} values; a step wrote {measured.tokens_per_step:figure} tokens.""",
            ),
            *_memory(facts),
            grid(
                facts,
                "prices",
                [
                    ("price", "name", "text"),
                    ("$ per hour", "dollars_per_hour", "usd"),
                    ("$ per {per:whole}", "dollars_per_1000", "usd"),
                    ("of it waiting", "waiting_per_1000", "usd"),
                    ("whole run", "whole_run_per_1000", "usd"),
                ],
            ),
            paragraph(
                facts,
                """These are the rows that were measured; a corpus of other lengths costs another price a row, which is
                below. Prices are scenarios of {price_source:text}. They are outside every interval of this report. The
                whole run is with its start and its end, of which a longer one has no more.""",
            ),
            scatter(
                "Throughput over slots per step, a dot per unit",
                "slots that had work, per step",
                "rows a second",
                [(unit["slots_per_step"], unit["rows_per_second"]) for unit in facts["unit_points"]],
            ),
        ],
    )


def _memory(facts: Facts) -> list[Paragraph]:
    """Outputs of older versions do not know it."""
    measured = facts["measured"]
    if measured["peak_memory_gib"] is None:
        return []
    device = ", its tensors {measured.peak_device_memory_gib:figure} GiB of the GPU"
    text = "An actor's process held {measured.peak_memory_gib:figure} GiB at most while it worked on a unit"
    return [paragraph(facts, f"{text}{'' if measured['peak_device_memory_gib'] is None else device}.")]


def _time(facts: Facts) -> Chapter:
    return Chapter(
        "Where the time goes",
        [
            bars(facts, "Seconds of actors", "stages", "{name:text}, {share:share}", ("seconds", "figure")),
            paragraph(
                facts,
                """Reading and tokenising run beside the actors, on other cores:
                {measured.tokenize_seconds_per_row:figure} seconds a row. The fit of unit seconds says
                {fit.seconds_per_unit:figure} a unit + {fit.seconds_per_prefill_token:figure} a prefill token +
                {fit.seconds_per_value_token:figure} a value token fed: prefill is {fit.prefill_share:share} of the
                fitted time, value tokens {fit.value_token_share:share}, the unit itself {fit.unit_share:share}. Half
                of the units are within {fit.median_error:share} of it. The shares of the fit are no clock: it sees only
                how units differ, and what grows along with something else may be counted under that.""",
            ),
        ],
    )


def _corpus(facts: Facts) -> Chapter:
    if facts["target"]["source"] == "plan":
        lengths = """The corpus' lengths are those of {target.rows:whole} random rows of its plan,
        {target.prompt_tokens_per_document:figure} prompt tokens a document; the measured units had
        {target.measured_prompt_tokens_per_document:figure}."""
    else:
        lengths = """The corpus is taken to be like the measured units, {target.prompt_tokens_per_document:figure}
        prompt tokens a document; give --plan for lengths of its own."""
    lengths += """ Of the prefixes that the documents of a schema share {target.prefixes_fed:share} was fed, the rest
    reused: it is taken to be so in the corpus, though what an actor feeds once weighs less in a longer run."""
    drawn = facts["target"]["source"] == "plan"
    return Chapter(
        "What a corpus costs",
        [
            paragraph(facts, lengths),
            grid(facts, "estimate.terms", [("term", "name", "text"), ("dollars", "dollars", "usd_whole")]),
            # At a price of 0 there is nothing to draw in powers of ten.
            *([curve(_CURVE, facts["sizes"])] if all(size["dollars"] for size in facts["sizes"]) else []),
            grid(
                facts,
                "sizes",
                [
                    ("documents", "documents", "whole"),
                    ("dollars", "dollars", "usd_whole"),
                    ("from", "low", "usd_whole"),
                    ("to", "high", "usd_whole"),
                ],
            ),
            grid(
                facts,
                "prices",
                [
                    ("price of the machine", "name", "text"),
                    ("dollars", "dollars", "usd_whole"),
                    ("from", "low", "usd_whole"),
                    ("to", "high", "usd_whole"),
                ],
            ),
            bars(
                facts,
                "Documents by length in tokens, up to",
                "target.lengths",
                "{tokens:whole}",
                ("target", "share"),
                second="measured" if drawn else "",
                legend=("corpus", "measured") if drawn else None,
            ),
        ],
    )


def _actors(facts: Facts) -> Chapter:
    return Chapter(
        "Days on more actors",
        [
            grid(
                facts,
                "days",
                [("actors", "actors", "whole"), ("days", "days", "figure"), ("dollars", "dollars", "usd_whole")],
            ),
            paragraph(
                facts,
                """Each actor is taken to be as fast as the one(s) measured, at {prices.0.name:text} prices: storage and
                tokenisation have to keep up.""",
            ),
        ],
    )


def _runs(facts: Facts) -> Chapter:
    runs: Grid = grid(
        facts,
        "runs",
        [
            ("run", "name", "text"),
            ("units are", "sampling", "text"),
            ("units", "units", "whole"),
            ("rows", "rows", "whole"),
            ("actors", "actors", "whole"),
            ("wall s", "wall_seconds", "whole"),
            ("work s", "actor_seconds", "whole"),
            ("waiting s", "idle_seconds", "figure"),
            ("tries again", "retries", "whole"),
        ],
    )
    return Chapter("Runs", [runs])
