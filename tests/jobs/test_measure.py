"""Timing: interleaving, medians, ratios and step factors, with a clock that the test turns."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hpd_core.rows import Counts
from jobs.measure import Contender, Measurement, markdown, measure, report


class Clock:
    """Time that passes only when a contender works."""

    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[str] = []

    def __call__(self) -> float:
        return self.now

    def work(self, name: str, seconds: list[float]) -> Callable[[], Counts]:
        left = iter(seconds)

        def run() -> Counts:
            self.order.append(name)
            self.now += next(left)
            return Counts(generated_tokens=10, steps=5)

        return run


def test_contenders_take_turns_and_each_round_starts_with_another() -> None:
    clock = Clock()
    contenders = [Contender(name, 1, clock.work(name, [1.0] * 4)) for name in "abc"]
    measure(contenders, 1, 4, clock=clock)
    assert "".join(clock.order) == "abcbcacababc"


def test_the_median_counts_and_the_spread_is_kept() -> None:
    clock = Clock()
    (only,) = measure([Contender("a", 8, clock.work("a", [2.0, 9.0, 4.0]))], 8, 3, clock=clock)
    assert only.seconds == (2.0, 9.0, 4.0)
    assert only.docs_per_second == 2.0
    assert only.spread == pytest.approx((8 / 9, 4.0))
    assert only.tokens_per_second == 2.5
    assert only.tokens_per_step == 2.0


def measured(name: str, batch: int, seconds: float, **counts: int) -> Measurement:
    return Measurement(name, batch, f"{name}, batch {batch}" if batch else name, 10, (seconds,), Counts(**counts))


MEASURED = [
    measured("hpd", 0, 1.0, generated_tokens=300, steps=20, longest_value_tokens=60),
    measured("hpd", 1, 2.0, generated_tokens=300, steps=50, longest_value_tokens=60),
    measured("ar", 1, 20.0, generated_tokens=510, steps=500),
    measured("ar", 8, 5.0, generated_tokens=510, steps=70),
    measured("ar", 32, 8.0, generated_tokens=510, steps=60),
]


def test_ratios_are_taken_to_batch_1_and_to_the_best_batch() -> None:
    facts = report(MEASURED)
    assert facts["ar_best_batch"] == 8
    assert [row["ratio_to_ar_batch_1"] for row in facts["decoders"]] == pytest.approx([20, 10, 1, 4, 2.5])
    assert [row["ratio_to_ar_best"] for row in facts["decoders"]] == pytest.approx([5, 2.5, 0.25, 1, 0.625])


def test_step_factors_compare_one_document_at_a_time() -> None:
    # AR writes 510 tokens in 10 documents, the first of each without a step; HPD's longest values have 60.
    assert report(MEASURED)["steps"] == pytest.approx({"predicted": 10.0, "counted": 10.0, "values_only": 5.0})


def test_the_table_has_a_line_per_decoder() -> None:
    text = markdown(report(MEASURED), "Title")
    assert text.startswith("# Title\n")
    assert "| ar, batch 8 | 2.00 (2.00-2.00) | 102 | 70 | 7.3 | 4.00 | 1.00 |" in text
    assert "predicted 10.00, counted 10.00" in text
