from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping

import pytest

from pipeline.block import Failure, FailureKind
from pipeline.ledger import Ledger, Rows, suspects, wasted
from pipeline.rounds import BARREN_ROUNDS, POISON, Rounds, by_file
from pipeline.units import InputFile, Unit

FILE = InputFile("/in/a.parquet", 1, "v")
READ = Failure(FailureKind.READ, "page is corrupt")
HUNG = Failure(FailureKind.WORKER, "a pack took longer than run.pack_deadline_seconds (1800)")


def unit(start: int, stop: int) -> Unit:
    return Unit(FILE, start, stop)


def play(rounds: Rounds, dies: Callable[[Unit], bool], pack: int = 0, most: int = 60) -> list[Unit]:
    """Runs rounds in which a unit commits unless its worker `dies`; returns what was committed. pack: rows of the packs
    of which the first that does it is known; 0 where none is."""
    committed: list[Unit] = []
    while rounds.waiting:
        assert rounds.number < most
        units = rounds.waiting
        done = [u for u in units if u.poison or not dies(u)]
        committed += done
        seen = {u.name: fatal_pack(u, dies, pack) for u in units if pack and u not in done}
        rounds.after(done, {}, begun={u.name for u in units}, suspects=seen)
    return committed


def fatal_pack(u: Unit, dies: Callable[[Unit], bool], pack: int) -> Rows:
    packs = (Rows(start, min(start + pack, u.stop)) for start in range(u.start, u.stop, pack))
    return next(rows for rows in packs if dies(unit(*rows)))


def has(poison: Collection[int]) -> Callable[[Unit], bool]:
    rows = sorted(poison)
    return lambda u: any(u.start <= row < u.stop for row in rows)


def rows_of(units: Collection[Unit]) -> list[int]:
    return sorted(row for u in units for row in range(u.start, u.stop))


@pytest.mark.parametrize("poison", [{0}, {13}, {99}, {3, 4}, {0, 50, 99}])
def test_rows_that_kill_their_worker_are_found_and_nothing_is_lost(poison: set[int]) -> None:
    rounds = Rounds([unit(0, 60), unit(60, 100)], max_tries=3)
    committed = play(rounds, has(poison))
    assert rows_of(committed) == list(range(100))
    assert {u.start for u in committed if u.poison == POISON} == poison
    assert not rounds.given_up


MANY = {
    "one in each eighth": {row * 125 for row in range(8)},
    "one in each thirty-second": set(range(7, 1000, 31)),
    "each tenth row": set(range(0, 1000, 10)),
    "a run of them, and one elsewhere": {*range(0, 40), 700},
} | {f"drawn {seed}": set(random.Random(seed).sample(range(1000), 10 + 40 * seed)) for seed in range(8)}


@pytest.mark.parametrize("pack", [0, 50, 1000])
@pytest.mark.parametrize("poison", MANY.values(), ids=MANY)
def test_many_rows_that_kill_in_the_only_unit_that_is_left_cost_no_row_beside_them(poison: set[int], pack: int) -> None:
    rounds = Rounds([unit(0, 1000)], max_tries=3)
    committed = play(rounds, has(poison), pack)
    assert rows_of(committed) == list(range(1000)) and not rounds.given_up
    assert {u.start for u in committed if u.poison} == poison


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_rows_that_all_kill_are_errors_where_no_other_is_left(rows: int) -> None:
    rounds = Rounds([unit(0, rows)], max_tries=3)
    committed = play(rounds, lambda _: True)
    assert rows_of(committed) == list(range(rows)) and all(u.poison for u in committed)


def test_no_row_is_blamed_while_nothing_shows_that_a_worker_can_live() -> None:
    rounds = Rounds([unit(0, 1000), unit(2000, 2001)], max_tries=3)
    assert play(rounds, lambda _: True) == [], "the row alone may have died of what ends every worker"
    assert len(rows_of(rounds.given_up)) == 1001


@pytest.mark.parametrize(
    ("cut", "failures", "left"),
    [
        (None, {}, [(0, 500), (500, 1000)]),
        (Rows(0, 1000), {}, [(0, 500), (500, 1000)]),
        (Rows(100, 200), {}, [(0, 100), (100, 150), (150, 200), (200, 500), (500, 1000)]),
        (Rows(999, 1000), {}, [(0, 500), (500, 999), (999, 1000)]),
        (Rows(900, 904), {"hung": HUNG}, [(0, 500), (500, 900), *((i, i + 1) for i in range(900, 904)), (904, 1000)]),
        (None, {"hung": HUNG}, [(i, i + 125) for i in range(0, 1000, 125)]),
    ],
)
def test_what_ended_its_worker_is_cut_around_the_pack_that_it_was_seen_at(
    cut: Rows | None, failures: Mapping[str, Failure], left: list[tuple[int, int]]
) -> None:
    whole = unit(0, 1000)
    rounds = Rounds([whole], max_tries=3)
    seen = {} if cut is None else {whole.name: cut}
    rounds.after([], dict.fromkeys([whole] if failures else [], HUNG), {whole.name}, seen)
    assert [(u.start, u.stop) for u in rounds.waiting] == left and not rounds.given_up


def test_a_row_that_hangs_is_found_within_a_handful_of_deadlines() -> None:
    rounds, deadlines, committed = Rounds([unit(0, 10_000)], max_tries=3), 0, 0
    while rounds.waiting:
        units = rounds.waiting
        hung = [u for u in units if u.start <= 7777 < u.stop and not u.poison]
        deadlines += bool(hung)
        done = [u for u in units if u not in hung]
        committed += sum(u.rows for u in done)
        packs = {u.name: Rows(max(u.start, 7680), min(u.stop, 8192)) for u in hung}
        rounds.after(done, dict.fromkeys(hung, HUNG), {u.name for u in units}, packs)
    assert deadlines == 4 and committed == 10_000


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


def test_the_ledger_knows_which_pack_was_under_way_when_a_unit_was_lost() -> None:
    ledger = Ledger()
    for unit_name, attempt, rows in [("u", "1", Rows(0, 5)), ("u", "1", Rows(5, 9)), ("v", "2", Rows(0, 5))]:
        ledger.spend(unit_name, attempt, 0)
        ledger.spend(unit_name, attempt, 10, rows)
    ledger.spend("w", "3", 0)
    ledger.finish("v", "2")
    assert suspects(ledger.report()) == {"u": Rows(5, 9)}
    ledger.spend("u", "4", 0)
    assert suspects(ledger.report()) == {"u": Rows(5, 9)}, "the second try did not come as far"
    ledger.spend("u", "4", 10, Rows(0, 5))
    assert suspects(ledger.report()) == {"u": Rows(0, 5)}
