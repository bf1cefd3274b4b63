"""Random days of outer joins: the steps on real folders against the slow reference.

A schedule draws an inner, left or full outer join of two to four streams, slots, groups, budgets
from far too small to ample, and epochs with rows, moves, forced spills, lost slots (restored, or
left to cleanup), attempts that are thrown away and zombies. Before the close nothing is given that
lacks a row; run time and cleanup together are what the reference says, each once.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import event
from hypothesis import strategies as st

from spillway.policy.reactivation import POLICIES as REACTIVATIONS
from spillway.policy.victims import POLICIES
from spillway_schemas.query import Query, query_of
from spillway_schemas.tomlfile import parse_toml
from tests.lanes import explored
from tests.property.test_tree_schedules import SCRATCH, SLOTS, moved_or_lost, struck
from tests.property.tree_slots import TreeSlots


def query_for(rng: random.Random) -> Query:
    """A join of two to four streams on one or two keys, some of them optional, or all."""
    names = ["a", "b", "c", "d"][: rng.randint(2, 4)]
    text = "".join(
        f'[streams.{name}]\nfields = {{ k = "int", {name}k = "int", x = "int" }}\n'
        for name in names
    )
    columns = ", ".join(f'{name} = "{name}k"' for name in names)
    second = f', {{ name = "other", columns = {{ {columns} }} }}' if rng.random() < 0.3 else ""
    text += f'[join]\ninputs = {names!r}\non = ["k"{second}]\n'
    optional = [name for name in names if rng.random() < 0.6]
    text += f"optional = {optional!r}\n" if optional else ""
    return query_of(parse_toml(text, Path("q.toml")))


def run(seed: int) -> TreeSlots:
    """A day or two: all that happens follows from the seed."""
    rng = random.Random(seed)
    query = query_for(rng)
    keys = rng.choice([2, 4, 9])
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        day = TreeSlots(
            query,
            root,
            slots=rng.randint(1, SLOTS),
            groups=rng.choice([4, 8]),
            options={
                "threshold": rng.choice([0.9, 0.05]),
                "budget_bytes": rng.choice([10**8, 10**8, 60_000, 25_000]),
                "victims": rng.choice(sorted(POLICIES)),
                "reactivation": rng.choice(["random", *REACTIVATIONS]),
                "batch_bytes": rng.choice([10**6, 3_000]),
                "inactive_ms": 1_000,
            },
            elsewhere=rng.choice([frozenset(), frozenset(range(SLOTS))]),
            most_restored_rows=rng.choice([None, 0, 5]),
        )
        for _ in range(rng.randint(1, 2)):
            for _ in range(rng.randint(1, 5)):
                happens: dict[str, Any] = {
                    "struck": struck(day, rng) if rng.random() < 0.1 else None,
                    "forced_bytes": rng.choice([0, 0, 300, 10**9]),
                    "thrown_away": rng.choice([0, 0, 1]),
                    "zombie": rng.random() < 0.1,
                }
                day.epoch(rows_of(day, rng, keys), **happens, **moved_or_lost(day, rng))
            later = rows_of(day, rng, keys)
            day.epoch([], later=later, seal=True, **moved_or_lost(day, rng))
        while len(day.journal.sealed) < len(day.bounds) - 1:
            day.epoch([])
        for session in day.journal.sealed:
            given = day.results[session]
            assert not any(place is None for result in given for _, place, _ in result)
            added = day.clean(session, piece_bytes=rng.choice([10**6, 400]))
            assert given + added == day.expected(session)
        return day


def rows_of(day: TreeSlots, rng: random.Random, keys: int) -> list[tuple[str, int, dict[str, int]]]:
    """New rows, fewer of some streams than of others."""
    found = []
    for topic in day.query.topics:
        for _ in range(rng.choice([0, 0, 1, 3])):
            value = {"k": rng.randrange(keys), f"{topic}k": rng.randrange(2), "x": rng.randrange(9)}
            found.append((topic, rng.randrange(day.partitions), value))
    return found


@explored(10, 15, st.integers(0, 2**32))
def test_unmatched_results_come_once_and_after_the_close(seed: int) -> None:
    day = run(seed)
    optional, inputs = len(day.query.optional), len(day.query.inputs)
    event("full" if optional == inputs else f"{optional} of {inputs} optional")
    event(f"cuts {bool(day.cuts)}, back {bool(day.voided)}, deferred {bool(day.deferred)}")
