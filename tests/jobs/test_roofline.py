"""Large models on paper: arithmetic that was done by hand, directions that cannot be otherwise, what does not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobs.costs.roofline import MEMORY_SHARE, Workload, estimate, estimates, least_seconds, told
from pipeline.checked import ConfigError
from pipeline.prices import MachinePrice, machine_prices
from pipeline.shapes import ModelShape, model_shapes

SHAPES = model_shapes()
GPUS = {name: machine for name, machine in machine_prices().items() if machine.memory_bytes}
#: 100 tokens, 10 values of 3 tokens, of which 2 are fed: 120 rows, 30 logits.
WORK = Workload(prefix=0, prompt=100, slots=10, generated=3, longest=24)
EIGHT, H100 = SHAPES["qwen3-8b"], GPUS["gpu-h100"]


@pytest.mark.parametrize("name", SHAPES)
def test_the_weights_of_a_shape_are_those_that_its_card_counts(name: str) -> None:
    shape = SHAPES[name]
    assert shape.weight_bytes(1, 1) == pytest.approx(shape.parameters, rel=0.02)
    assert shape.source and shape.date


def test_the_models_and_gpus_that_are_asked_for() -> None:
    assert set(SHAPES) == {"qwen3-1.7b", "qwen3-4b", "qwen3-8b", "qwen3-14b", "qwen3-32b", "phi-4"}
    assert {name.removeprefix("gpu-") for name in GPUS} == {"l4", "a10g", "l40s", "a100-40", "a100-80", "h100", "h200"}
    for machine in GPUS.values():
        assert machine.sheet and any(year in machine.sheet for year in ("2020", "2021", "2023"))
        assert machine.source.startswith("assumption")


def test_a_shape_by_hand() -> None:
    assert EIGHT.body == 36 * (2 * 4096 * 128 * 40 + 3 * 4096 * 12288) == 6_945_767_424
    assert EIGHT.head == 622_329_856
    assert EIGHT.weight_bytes(2, 2) == 16_380_854_272  # head and embeddings apart
    assert 2 * EIGHT.kv_numbers == 147_456  # bytes of a token's KV
    small = SHAPES["qwen3-1.7b"]
    assert small.weight_bytes(2, 2) == 2 * (small.body + small.head)  # tied: one matrix


def test_an_estimate_by_hand() -> None:
    found = estimate(EIGHT, H100, WORK, share=0.5)
    flops = 13_891_534_848 + 589_824 * 100 + 0.25 * 1_244_659_712  # of a row: weights, 100 tokens seen, 1 head in 4
    assert flops == 14_261_682_176
    assert found.at_roof == pytest.approx(989e12 / flops / 120) == pytest.approx(577.9, abs=0.1)
    assert found.expected == pytest.approx(found.at_roof / 2)
    # 4.8898 ms to read the weights; a row takes 14.4203 us of products and 24 tokens of KV, 1.0564 us.
    assert found.knee == found.rows == 366 and found.bound == "products"
    assert found.slots == 61  # 20 of 120 rows are of values
    assert found.documents == 74  # 366 x 24 / 120
    assert found.kv == 74 * (100 + 10 * 23) * 147_456
    assert found.activations == pytest.approx(366 * (2 * (2 * 4096 + 48 * 128 + 2 * 12288) + 0.25 * 151_936 * 6))
    assert found.dollars_per_1000 == pytest.approx(1000 * 3.00 / 3600 / found.expected)
    assert found.needed < found.capacity == MEMORY_SHARE * 80e9


def test_at_the_knee_products_take_as_long_as_reading() -> None:
    machine = replace(H100, memory_bytes=1e15)
    at = estimate(EIGHT, machine, WORK)
    assert at.knee is not None
    flops = 989e12 / (at.at_roof * WORK.rows)
    for rows, bound in ((at.knee, "products"), (at.knee - 1, "memory")):
        read = EIGHT.weight_bytes(2, 2) + rows * WORK.longest * 147_456
        seconds, what = least_seconds(rows * flops, read, machine)
        assert what == bound and seconds == pytest.approx(rows * flops / 989e12, rel=0.01)


def test_directions_that_cannot_be_otherwise() -> None:
    base = estimate(EIGHT, H100, WORK)
    assert estimate(EIGHT, replace(H100, bytes_per_second=2 * H100.bytes_per_second), WORK).knee < base.knee
    assert estimate(EIGHT, replace(H100, flops=2 * H100.flops), WORK).knee > 2 * base.knee
    for longer in (replace(WORK, prompt=200), replace(WORK, slots=20), replace(WORK, generated=6)):
        assert estimate(EIGHT, H100, longer).at_roof < base.at_roof
    assert estimate(EIGHT, H100, replace(WORK, prefix=500)).at_roof < base.at_roof  # seen by every row
    eight_bits = estimate(EIGHT, H100, WORK, each=1.0)
    assert eight_bits.weights < base.weights and eight_bits.knee < base.knee
    for machine in GPUS.values():
        rates = [estimate(shape, machine, WORK) for shape in SHAPES.values() if shape.name != "phi-4"]
        fitting = [found.at_roof for found in rates if found.fits]
        assert fitting == sorted(fitting, reverse=True) and len(fitting) >= 2
        assert [found.fits for found in rates] == sorted((found.fits for found in rates), reverse=True)


def test_too_little_memory_for_the_knee_is_bound_by_reading() -> None:
    needed = estimate(EIGHT, H100, WORK).needed
    tight = estimate(EIGHT, replace(H100, memory_bytes=(needed + 1e9) / MEMORY_SHARE), WORK)
    assert tight.fits and tight.rows < tight.knee and tight.bound == "memory"
    assert tight.weights + tight.kv + tight.activations < tight.capacity + 0.1e9  # documents are rounded up
    assert tight.at_roof < estimate(EIGHT, H100, WORK).at_roof


def test_no_number_of_rows_is_enough_where_kv_is_slower_than_products() -> None:
    slow = replace(H100, bytes_per_second=0.2e12, memory_bytes=1e12)
    found = estimate(EIGHT, slow, WORK)
    assert found.knee is None and found.bound == "memory" and found.rows > 1


def test_what_does_not_fit_is_said_with_numbers() -> None:
    found = estimate(SHAPES["qwen3-32b"], GPUS["gpu-a100-40"], WORK)
    assert not found.fits and found.gpus == 2 and found.at_roof is None
    rows = estimates([SHAPES["qwen3-32b"]], machine_prices().values(), WORK, each=2, share=0.5)
    assert len(rows) == len(GPUS)  # machines without a data sheet are left out
    facts = {
        "rows": rows, "work": {"prompt": 100, "prefix": 0, "slots": 10, "generated": 3}, "share": 0.5,
        "generated_from": "an assumption", "weights": "weights in 16 bits", "prices": "conf/prices.yaml",
    }  # fmt: skip
    text = "\n".join(told(facts))
    assert "ROOFLINE ESTIMATE, nothing was run" in text
    assert "does not fit: needs 65.6 GB, 36.0 GB usable; 2 GPUs would hold it" in text


def test_a_shape_that_lacks_a_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.shapes.shipped", lambda _: {"half": {"hidden": 8}})
    with pytest.raises(ConfigError, match=r"conf/shapes\.yaml: half: .* missing"):
        model_shapes()


def test_a_workload_of_one_token_values_feeds_none() -> None:
    assert replace(WORK, generated=1).rows == 100
    assert isinstance(EIGHT, ModelShape) and isinstance(H100, MachinePrice)
