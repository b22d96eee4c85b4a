"""Timing: turns, medians, ratios, step factors, FLOPs, and the report, with outcomes that the test makes up."""

from __future__ import annotations

from html import unescape

import pytest

from hpd_core.rows import Counts
from jobs.scores.pages import benchmark_page
from jobs.timing.engines import ABLATIONS, CONTENDERS, NEED_FORCED, Engine, ablations, contenders
from jobs.timing.plot import LABELS, LENGTH, LINE, charts
from jobs.timing.rounds import Machine, Measurement, ablation, comparison, measure, ratio
from jobs.timing.tables import markdown
from jobs.timing.work import ModelSize, Traced, Turn, computed_flops, needed_flops, slot_share, step_fill

MACHINE = Machine(ModelSize(body=1000, head=100), (2e6, 4e6, 3e6), 0.36)


def outcome(seconds: float, widest: int = 0, tokens: int = 0, **counts: int) -> Turn:
    return Turn(seconds, seconds, Counts(**counts), Traced(1, tokens, tokens), widest, 2**30)


def measured(engine: Engine, *seconds: float, widest: int = 0, tokens: int = 2000, **counts: int) -> Measurement:
    return Measurement(engine, 10, tuple(outcome(s, widest, tokens, **counts) for s in seconds))


def test_engines_take_turns_and_each_round_starts_with_another() -> None:
    order: list[str] = []

    def run(engine: Engine) -> Turn:
        order.append(engine.name)
        return outcome(float(len(order)))

    runs = measure([Engine(name) for name in "abc"], run, lambda: order.append("|"), 4)
    assert "".join(order) == "|abc|bca|cab|abc"
    assert [run.seconds for run in runs[Engine("a")]] == [2.0, 8.0, 11.0, 14.0]


def test_the_median_counts_and_the_spread_is_kept() -> None:
    only = Measurement(Engine("a", 8), 8, (outcome(2.0), outcome(9.0), outcome(4.0)))
    assert only.docs_per_second == 2.0
    assert only.spread == pytest.approx((8 / 9, 4.0))


def test_a_ratio_has_the_bounds_of_single_rounds() -> None:
    # The machine was slow in the second round, for both: the ratio hardly moves.
    found = ratio(measured(Engine("hpd"), 1.0, 4.0, 1.0), measured(Engine("ar", 1), 10.0, 44.0, 9.0))
    assert found == pytest.approx({"median": 10.0, "low": 9.0, "high": 11.0})


def test_needed_flops_count_no_padding_and_no_logits_that_nobody_needs() -> None:
    counts = Counts(prompt_tokens=70, prefix_tokens=20, cached_tokens=500, decode_rows=10, generated_tokens=15)
    assert needed_flops(MACHINE.size, counts) == 2 * (1000 * 100 + 100 * 15)
    assert computed_flops(MACHINE.size, Traced(3, 160, 40)) == 2 * (1000 * 160 + 100 * 40)


def test_the_share_of_the_roofline_is_of_the_best_rate_of_the_run() -> None:
    counts = dict(prompt_tokens=900, decode_rows=100, generated_tokens=200)
    facts = measured(Engine("hpd"), 1.0, 1.0, tokens=1200, **counts).as_dict(MACHINE)
    needed = 2 * (1000 * 1000 + 100 * 200)
    assert facts["needed_flops_per_document"] == needed / 10
    assert facts["roofline_share"] == pytest.approx(needed / 4e6)
    assert facts["waste"] == pytest.approx(1 - needed / (2 * (1000 * 1200 + 100 * 1200)))
    assert facts["dollars_per_1000"] == pytest.approx(0.36 / 3600 * 1.0 / 10 * 1000)


def test_slot_steps_with_work_count_beginning_and_tail() -> None:
    # 8 slots at most; 3 steps: 8, 8 and a tail of 2.
    assert slot_share(Counts(decode_rows=18, steps=3), 8) == 18 / 24
    assert slot_share(Counts(decode_rows=18, steps=3), 0) is None
    assert slot_share(Counts(), 8) is None


def test_a_step_is_filled_by_whatever_it_has_to_feed() -> None:
    counts = Counts(prompt_tokens=100, prefix_tokens=20, decode_rows=60, steps=5)
    assert step_fill(counts, 6, 40) == 180 / 240
    assert step_fill(counts, 6, 0) is None and step_fill(Counts(), 0, 40) is None


MEASURED = [
    measured(Engine("hpd"), 1.0, widest=32, generated_tokens=300, decode_rows=290, steps=20, longest_value_tokens=60),
    measured(Engine("hpd", 1), 2.0, generated_tokens=300, steps=50, documents=10, longest_value_tokens=60),
    measured(Engine("ar", 1), 20.0, generated_tokens=510, steps=500),
    measured(Engine("ar", 8), 5.0, generated_tokens=510, steps=70),
    measured(Engine("ar", 32), 8.0, generated_tokens=510, steps=60),
    measured(Engine("ar-present", 8), 3.0, generated_tokens=210, steps=30),
    measured(Engine("per-attribute", 32), 4.0, generated_tokens=300, steps=30),
]


def test_ratios_are_taken_to_batch_1_and_to_the_best_batch_of_every_key_ar() -> None:
    facts = comparison(MEASURED, MACHINE)
    assert facts["ar_best"] == "ar, batch 8"
    assert [row["ratio_to_ar_batch_1"] for row in facts["engines"]] == pytest.approx([20, 10, 1, 4, 2.5, 20 / 3, 5])
    assert [row["ratio_to_ar_best"] for row in facts["engines"][:5]] == pytest.approx([5, 2.5, 0.25, 1, 0.625])
    medians = {name: r["median"] for name, r in facts["hpd_against"].items()}
    assert medians == pytest.approx({"ar_batch_1": 20, "ar_best": 5, "ar_present_best": 3, "other_best": 4})
    assert facts["other_best"] == "per-attribute, batch 32"


def test_step_factors_compare_one_document_at_a_time() -> None:
    # AR writes 510 tokens in 10 documents, the first of each without a step; HPD's longest values have 60.
    steps = comparison(MEASURED, MACHINE)["steps"]
    assert steps == pytest.approx({"predicted": 10.0, "counted": 10.0, "values_only": 5.0})


def test_what_needs_an_engine_that_was_left_out_is_not_there() -> None:
    facts = comparison([m for m in MEASURED if m.engine.batch != 1], MACHINE)
    assert [row["ratio_to_ar_batch_1"] for row in facts["engines"]] == [None] * 5
    assert facts["steps"] is None and set(facts["hpd_against"]) == {"ar_best", "ar_present_best", "other_best"}
    assert facts["ar_best"] == "ar, batch 8"
    whole = report("comparison", facts)
    assert "batch 1:" not in markdown(whole) and "| – | 5.00 |" in markdown(whole)
    assert '<td class="n">–</td><td class="n">5.00</td>' in benchmark_page(whole, charts(whole), LABELS, LINE)


def test_an_ablation_says_how_many_times_as_fast_an_optimisation_makes_it() -> None:
    facts = ablation([measured(Engine("hpd"), 2.0), measured(Engine("hpd", without="refill"), 3.0)], MACHINE)
    assert facts["engines"][1]["brings"]["median"] == 1.5


def report(kind: str, figures: dict[str, object]) -> dict[str, object]:
    machine = {
        "roof": 4e6, "rates": [2e6, 4e6, 3e6], "hidden": 8, "intermediate": 12, "dtype": "float32", "threads": 1,
        "body": 1000, "head": 100, "dollars_per_hour": 0.36,
    }  # fmt: skip
    about = {"kind": kind, "heading": "Title", "documents": 10, "repeat": 1, "machine": machine}
    return {**about, "left_out": {"ar-continuous": "has | no <b>"}, **figures}


def test_the_table_has_a_line_per_engine() -> None:
    text = markdown(report("comparison", comparison(MEASURED, MACHINE)))
    assert text.startswith("# Title\n")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(MEASURED) + 1 and len({line.count(" |") for line in lines[2:-1]}) == 1
    assert "| hpd | 10.00 (10.00-10.00) |" in text and "| 45 % |" in lines[2]
    assert "HPD / AR, every key, at its best (ar, batch 8): 5.00 (5.00-5.00)" in text
    assert "predicted 10.00, counted 10.00" in text
    assert lines[-1].startswith("| ar-continuous | left out: has \\| no &lt;b> | – |")


def test_the_page_draws_a_bar_per_engine_and_escapes_names() -> None:
    facts = report("comparison", comparison(MEASURED, MACHINE))
    drawn = charts(facts)
    page = benchmark_page(facts, drawn, LABELS, LINE)
    assert page.count("<svg") == len(drawn) == 3 and page.count("<rect") == 3 * len(MEASURED)
    assert drawn[0].bars[0].length == LENGTH and drawn[0].bars[2].length == pytest.approx(LENGTH / 20)
    assert "has | no &lt;b&gt;" in page and "http" not in page.replace("http://www.w3.org/2000/svg", "")


def test_the_report_of_ablations_names_what_is_off() -> None:
    measurements = [measured(engine, 1.0, prompt_tokens=9) for engine in ablations(duplicates=True)]
    facts = report("ablations", ablation(measurements, MACHINE))
    text, page = markdown(facts), unescape(benchmark_page(facts, charts(facts), LABELS, LINE))
    assert all(meaning in text and meaning in page for meaning in ABLATIONS.values())


def test_engines_of_a_benchmark() -> None:
    assert contenders(500, (), forced=True) == list(CONTENDERS)
    free = {engine.name for engine in contenders(500, ("per-attribute",), forced=False)}
    assert not free & NEED_FORCED and "per-attribute" not in free and {"hpd", "ar"} <= free
    few = [e.batch for e in contenders(12, (), forced=True) if e.name == "ar"]
    assert few == [1, 8, 12]  # a batch of 32 would be one of 12, and so would one of 128
    assert Engine("hpd", without="duplicates") not in ablations(duplicates=False)
