"""Random days in which Kafka loses rows and a person accepts that: the steps on real folders.

Everything of `test_window_schedules` (trees, windows, sessions that carry rows) and rows that go:
those that were read, those that were not, and both, in epochs with moves, lost slots, a seal. What
is there at the end lies between two brute forces: no result that cannot be, none twice, and every
one that needs no row which the session says that it has lost. A day without lost slots lacks
nothing but what was never read.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import event
from hypothesis import strategies as st

from spillway.policy.reactivation import POLICIES as REACTIVATIONS
from spillway.policy.victims import POLICIES
from spillway_schemas import windows
from spillway_schemas.journal import Epoch
from spillway_schemas.query import query_of
from spillway_schemas.tomlfile import parse_toml
from tests.lanes import explored
from tests.property.test_outer_days import query_for as outer_query_for
from tests.property.test_outer_days import rows_of
from tests.property.test_tree_schedules import SCRATCH, SLOTS, moved_or_lost
from tests.property.test_window_schedules import Clock, query_for
from tests.property.tree_slots import TreeSlots


def run(number: int, seed: int, *, defers: bool = False) -> TreeSlots:
    """Some days: `number` is the query's, `seed` that of all that happens. `defers`: the query is
    one join, no rows are carried, and what lost slots had may be left to cleanup."""
    with mock.patch.object(windows, "LEAST_SLICE_US", 2_000_000):
        return _run(number, seed, defers=defers)


def _run(number: int, seed: int, *, defers: bool) -> TreeSlots:
    rng = random.Random(seed)
    query = query_for(number)
    while defers and not query.is_single:
        number += 1
        query = query_for(number)
    carry = None not in query.spans and rng.random() < 0.7 and not defers
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        day = TreeSlots(
            query,
            root,
            slots=rng.randint(1, SLOTS),
            groups=rng.choice([4, 8]),
            partitions=rng.choice([1, 2]),
            carry=carry,
            options={
                "threshold": rng.choice([0.9, 0.05]),
                "budget_bytes": rng.choice([10**8, 60_000, 25_000]),
                "victims": rng.choice(sorted(POLICIES)),
                "reactivation": rng.choice(["random", *REACTIVATIONS]),
                "inactive_ms": 1_000,
            },
            elsewhere=rng.choice([frozenset(), frozenset(range(SLOTS))]),
            most_restored_rows=rng.choice([0, 5]) if defers else None,
        )
        now = Clock(rng)
        for _ in range(rng.randint(1, 2)):
            for _ in range(rng.randint(2, 6)):
                some(day, rng, now.rows(day))
            some(day, rng, now.rows(day), seal=True, later=now.rows(day))
            while day.journal.seal is not None:
                some(day, rng, [])
        some(day, rng, [], seal=True)
        while len(day.journal.sealed) < len(day.bounds) - 1:
            day.epoch([])
        for session in day.journal.sealed:
            most = day.expected(session)
            got = day.results[session] + day.clean(session)
            assert not got - most, "a result that cannot be, or one twice"
            assert not day.certain(session) - got, "one that no loss has taken"
        return day


def some(day: TreeSlots, rng: random.Random, rows: list[Any], **happens: Any) -> None:
    """An epoch; now and then partitions have lost rows before it reads them."""
    come = [*rows, *happens.get("later", ())]
    ends = {at: len(values) for at, values in day.kafka.items()}
    for topic, partition, _ in come:
        ends[topic, partition] = ends.get((topic, partition), 0) + 1
    losing = {at: rng.randint(0, end) for at, end in ends.items() if rng.random() < 0.3}
    places = [(topic, p) for topic in day.query.topics for p in range(day.partitions)]
    day.epoch(
        rows,
        losing=losing if rng.random() < 0.3 else None,
        behind={place for place in places if rng.random() < 0.2},
        forced_bytes=rng.choice([0, 0, 300, 10**9]),
        thrown_away=rng.choice([0, 0, 1]),
        **happens,
        **moved_or_lost(day, rng),
    )


def run_outer(seed: int) -> TreeSlots:
    """A day of an outer join."""
    rng = random.Random(seed)
    query = outer_query_for(rng)
    keys = rng.choice([2, 4, 9])
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        day = TreeSlots(
            query,
            root,
            slots=rng.randint(1, SLOTS),
            options={"budget_bytes": rng.choice([10**8, 25_000])},
            most_restored_rows=rng.choice([None, 0, 5]),
        )
        for _ in range(rng.randint(2, 5)):
            some(day, rng, rows_of(day, rng, keys))
        some(day, rng, rows_of(day, rng, keys), seal=True)
        while not day.journal.sealed:
            day.epoch([])
        [session] = day.journal.sealed
        got = day.results[session] + day.clean(session)
        assert not got - day.expected(session), "unmatched, though its row was there"
        assert not day.certain(session) - got, "one that no loss has taken"
        return day


@explored(3, 15, st.integers(0, 2**32), st.integers(0, 2**32))
def test_days_lack_what_was_lost_and_no_more(number: int, seed: int) -> None:
    day = run(number, seed)
    event(f"lost {any(e.lost_to for e in day.entries if isinstance(e, Epoch))}, {day.carry=}")
    event(f"restored {bool(day.restored)}, height {day.spec.height}")


@explored(4, 20, st.integers(0, 2**32), st.integers(0, 2**32))
def test_days_that_leave_lost_state_to_cleanup_lack_no_more(number: int, seed: int) -> None:
    day = run(number, seed, defers=True)
    event(f"cuts {bool(day.cuts)}, deferred {bool(day.deferred)}")


@explored(8, 30, st.integers(0, 2**32))
def test_no_result_lacks_a_row_that_may_be_lost(seed: int) -> None:
    """Of an outer join: where an input has lost rows, nobody knows which keys have none."""
    day = run_outer(seed)
    event(f"lost {bool(day.first)}, deferred {bool(day.deferred)}, restored {bool(day.restored)}")


@pytest.mark.parametrize("most_restored_rows", [None, 0])
@pytest.mark.parametrize("lost", ["a", "b"])
def test_a_row_that_has_had_a_partner_is_not_unmatched_when_that_is_lost(
    tmp_path: Path, most_restored_rows: int | None, lost: str
) -> None:
    """Key 1 has a row of each input and its result; then the slot is lost, and one of the rows."""
    text = "".join(f'[streams.{n}]\nfields = {{ k = "int" }}\n' for n in "ab")
    text += '[join]\ninputs = ["a", "b"]\non = ["k"]\noptional = ["b"]\n'
    query = query_of(parse_toml(text, Path("q.toml")))
    day = TreeSlots(
        query, str(tmp_path), slots=1, partitions=1, most_restored_rows=most_restored_rows
    )
    day.epoch([("a", 0, {"k": 1}), ("b", 0, {"k": 1})])
    day.epoch([("a", 0, {"k": 2})], lost=frozenset({0}), losing={(lost, 0): 1})
    day.epoch([], seal=True)
    [session] = day.journal.sealed
    assert day.results[session] == Counter([(("a", 0, 0), ("b", 0, 0))])
    alone = Counter([(("a", 0, 1), ("b", None, None))])
    assert day.clean(session) == (alone if lost == "a" else Counter())
