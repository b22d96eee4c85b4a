"""Order and admission, in numbers."""

from __future__ import annotations

from hpd_core.admission import Admission, Asked, schedule
from tests.core.tiny import prompts_of


def document(slots: int = 4, rows: int = 20) -> Asked:
    return Asked(slots, rows, rows + slots)


def test_a_document_asks_for_its_slots_its_prompt_and_all_it_may_write() -> None:
    (prompt,) = prompts_of(0, [9], attributes=4, max_value_tokens=6)
    asked = Asked.of(prompt, 12)
    assert asked == Asked(4, len(prompt.memory_ids), len(prompt.memory_ids) + 4 * 5)
    assert Asked.of(prompt, 13) == Asked(4, asked.rows, asked.cells + 13, copied=13)


def test_documents_of_one_schema_stand_together_and_long_ones_first() -> None:
    prompts = prompts_of(0, [3, 9, 7, 2, 7, 40], schemas=2)
    assert schedule(prompts) == [2, 4, 0, 5, 1, 3]
    assert schedule([]) == []


def test_slots_are_opened_up_to_the_bound() -> None:
    admission = Admission(512, 12)
    assert admission.has_slots(8, document()) and not admission.has_slots(9, document())


class TestWhereStepsWithoutPrefillAreReplayed:
    def test_a_first_step_is_always_worth_it(self) -> None:
        assert Admission(512, 4).is_worth_a_step(0, 0, [document()])

    def test_documents_wait_until_they_fill_it(self) -> None:
        admission = Admission(100, 1000)
        many = [document(4, 20)] * 200
        assert admission.is_worth_a_step(10, 10, many)
        assert not admission.is_worth_a_step(10, 100, many)  # no room for prefill at all

    def test_or_take_a_quarter_of_the_slots_or_are_the_last(self) -> None:
        admission = Admission(4096, 40)
        assert not admission.is_worth_a_step(32, 32, [document()] * 3)  # two fit: 8 of 40
        assert admission.is_worth_a_step(28, 28, [document()] * 4)  # three fit: 12 of 40
        assert admission.is_worth_a_step(32, 32, [document()] * 2)
        assert admission.is_worth_a_step(32, 32, [document()])

    def test_a_large_step_need_not_be_full(self) -> None:
        documents = [document(4, 300)] * 8
        assert Admission(10_000, 30).is_worth_a_step(1, 1, documents)  # 2,100 rows in 28 slots
        assert not Admission(10_000, 30).is_worth_a_step(28, 28, documents)
