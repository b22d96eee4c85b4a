from __future__ import annotations

from collections.abc import Callable, Collection

import pytest

from pipeline.block import Failure, FailureKind
from pipeline.ledger import Ledger, wasted
from pipeline.rounds import BARREN_ROUNDS, POISON, Rounds, by_file
from pipeline.units import InputFile, Unit

FILE = InputFile("/in/a.parquet", 1, "v")
READ = Failure(FailureKind.READ, "page is corrupt")


def unit(start: int, stop: int) -> Unit:
    return Unit(FILE, start, stop)


def play(rounds: Rounds, dies: Callable[[Unit], bool], most: int = 50) -> list[Unit]:
    """Runs rounds in which a unit commits unless its worker `dies`; returns what was committed."""
    committed: list[Unit] = []
    while rounds.waiting:
        assert rounds.number < most
        done = [u for u in rounds.waiting if u.poison or not dies(u)]
        committed += done
        rounds.after(done, {}, begun={u.name for u in rounds.waiting})
    return committed


@pytest.mark.parametrize("poison", [{0}, {13}, {99}, {3, 4}, {0, 50, 99}])
def test_rows_that_kill_their_worker_are_found_and_nothing_is_lost(poison: set[int]) -> None:
    rounds = Rounds([unit(0, 60), unit(60, 100)], max_tries=3)
    committed = play(rounds, lambda u: any(u.start <= p < u.stop for p in poison))
    assert sorted(row for u in committed for row in range(u.start, u.stop)) == list(range(100))
    assert {u.start for u in committed if u.poison == POISON} == poison
    assert not rounds.given_up


def test_a_unit_that_fails_is_tried_whole_and_then_given_up_by_name() -> None:
    rounds = Rounds([unit(0, 10), unit(10, 20)], max_tries=3)
    for _ in range(3):
        assert rounds.waiting[0] == unit(0, 10)
        rounds.after([u for u in rounds.waiting if u.start], {unit(0, 10): READ}, begun=set())
    assert rounds.waiting == [] and rounds.given_up == {unit(0, 10): READ}
    assert by_file(rounds.given_up) == ["/in/a.parquet: 1 unit(s), rows 0 to 10: read: page is corrupt"]


@pytest.mark.parametrize(("begun", "next_round"), [({unit(0, 10).name}, 2), (None, 2), (set(), 1)])
def test_only_a_unit_whose_decoding_began_is_halved_at_once(begun: Collection[str] | None, next_round: int) -> None:
    rounds = Rounds([unit(0, 10)], max_tries=3)
    rounds.after([], {}, begun)
    assert len(rounds.waiting) == next_round
    rounds.after([], {}, set())
    assert len(rounds.waiting) > 1  # lost twice: halved, whether or not it began


def test_a_decoder_that_cannot_be_loaded_ends_the_job() -> None:
    load = Failure(FailureKind.LOAD, "no such model")
    rounds = Rounds([unit(0, 10), unit(10, 20), unit(20, 30)], max_tries=3)
    rounds.after([unit(0, 10)], {unit(10, 20): load}, begun={unit(0, 10).name})
    assert rounds.waiting == [] and rounds.given_up == {unit(10, 20): load, unit(20, 30): load}, "no unit is halved"


def test_a_job_whose_workers_die_everywhere_ends() -> None:
    rounds = Rounds([unit(0, 1000)], max_tries=3)
    committed = play(rounds, lambda u: True)
    assert committed == [] and rounds.number == BARREN_ROUNDS
    assert sum(u.rows for u in rounds.given_up) == 1000


def test_a_poisoned_row_whose_worker_still_dies_is_given_up() -> None:
    rounds = Rounds([Unit(FILE, 3, 4, poison=POISON)], max_tries=3)
    rounds.after([], {}, begun=None)
    assert rounds.waiting == [] and len(rounds.given_up) == 1


def test_the_ledger_counts_tries_and_what_they_wasted() -> None:
    ledger = Ledger()
    for unit_name, attempt, tokens in [("u", "1", 100), ("u", "2", 100), ("u", "2", 50), ("v", "3", 7)]:
        ledger.spend(unit_name, attempt, tokens)
    assert ledger.finish("u", "2") == (1, 100) and Ledger().finish("u", "1") == (0, 0)
    assert wasted(ledger.report()) == (1, 107)
    ledger.finish("v", "3")
    assert wasted(ledger.report()) == (1, 100)
