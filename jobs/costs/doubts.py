"""How sure a cost report is, and what it warns of."""

from __future__ import annotations

from jobs.costs.beside import Facts
from jobs.costs.told import Chapter, Paragraph, paragraph

#: Units that are so many times as large or small as the measured ones are told of.
_UNIT_RATIO = 2.0


def warnings(facts: Facts) -> list[Paragraph]:
    found = []
    if not facts["sampling"]["interval"]:
        found.append("An interval does not hold here, and none is given: {sampling.why:text}.")
    outside = facts["target"]["outside"]
    if outside:
        found.append(
            """{target.outside:share} of the corpus' documents are shorter or longer than any that were measured: there
            the fit is only drawn out."""
        )
    planned, seen = facts["target"]["rows_per_unit"], facts["target"]["measured_rows_per_unit"]
    if planned is not None and not 1 / _UNIT_RATIO < planned / seen < _UNIT_RATIO:
        found.append(
            """The plan's units have {target.rows_per_unit:figure} rows, the measured ones
            {target.measured_rows_per_unit:figure}: the cost is that of units of the measured size, which larger units
            may undercut."""
        )
    if facts["price_source"].partition(": ")[2].startswith("assumption"):
        found.append("The price of the machine is an assumption ({price_source:text}).")
    return [paragraph(facts, text, warning=True) for text in found]


def sure(facts: Facts) -> Chapter:
    parts = []
    if facts["sampling"]["interval"]:
        again = ""
        if facts["sampling"]["measurements"] > facts["sampling"]["units"]:
            again = " (measured {sampling.measurements:whole} times in all: one in several runs is drawn as one)"
        parts.append(
            paragraph(
                facts,
                f"""The interval is the middle {{sampling.level:share}} of {{sampling.resamples:whole}} resamples of the
                {{sampling.units:whole}} units{again}, each fitted and predicted anew; its width is
                {{sampling.relative_width:share}} of the estimate. It says what other units of the same catalog would
                have given. Halving it takes four times the units, and halves this term alone.""",
            )
        )
    else:
        parts.append(paragraph(facts, "No interval is given: {sampling.why:text}.", warning=True))
    if facts["spread"]:
        parts.append(
            paragraph(
                facts,
                """Run to run, with the work of each taken into account, {spread.runs:whole} runs took from
                {spread.fastest:times} to {spread.slowest:times} of what the fit over all of them says. That is a term
                of its own, beside the interval.""",
            )
        )
    else:
        text = "How far one run is from the next is not known: it takes at least three runs of the job."
        parts.append(paragraph(facts, text))
    terms = facts["terms"]
    again = (
        "Work done again is a factor of {terms.retried:figure}" if terms["retries_known"] else "Retries are not known"
    )
    start = (
        "start and finish take {terms.start_seconds:figure} seconds"
        if terms["start_known"]
        else "start and finish are not known, since the runs were resumed, and count for nothing"
    )
    parts.append(
        paragraph(
            facts,
            f"""{again}; {start}; an actor loads for {{terms.load_seconds:figure}} seconds; the last unit of a job keeps
            the other actors waiting, on average half of a unit's {{terms.unit_seconds:figure}} seconds.""",
        )
    )
    return Chapter("How sure this is", parts)
