"""Random days of random trees: the engine's probes and steps on real folders against brute force.

A schedule draws a tree (2 to 6 leaves, bushy or deep, streams that are read twice), groups and
slots, the distribution of joins over them, budgets from far too small to ample, and epochs with
rows, moves, forced spills, lost slots, attempts that are thrown away and zombies. At the end the
day is sealed and cleaned: results at run time and by cleanup together must be each combination of
rows once. Without a cut there must be nothing to clean. Every third time the epoch of the seal has
rows of the next session too, which goes on from there, and is sealed and cleaned as well.
"""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event
from hypothesis import strategies as st

from spillway.engine.state.merging import Shape
from spillway.policy.reactivation import POLICIES as REACTIVATIONS
from spillway.policy.victims import POLICIES
from spillway_schemas.query import query_of
from spillway_schemas.tomlfile import parse_toml
from tests.lanes import explored, parts
from tests.property.test_query_trees import FIELDS, text_of
from tests.property.tree_slots import Struck, TreeSlots

SCRATCH = "/dev/shm" if os.path.isdir("/dev/shm") else None
MOST_RESULTS = 20_000
SLOTS = 3
DISTRIBUTIONS = ("all", "random", "balanced-network-aware")


def run(number: int, seed: int, *, calm: bool = False) -> TreeSlots:
    """One day: `number` is the tree's, `seed` that of all that happens."""
    rng = random.Random(seed)
    query = query_of(parse_toml(text_of(number), Path("q.toml")))
    values = rng.choice([2, 2, 3, 5])
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        day = TreeSlots(
            query,
            root,
            slots=rng.randint(1, SLOTS),
            groups=rng.choice([4, 8]),
            distribution=random.Random(seed + 1).choice(DISTRIBUTIONS),
            options={
                "threshold": rng.choice([0.9, 0.05]),
                "budget_bytes": 10**8 if calm else rng.choice([10**8, 10**8, 60_000, 25_000]),
                "victims": rng.choice(sorted(POLICIES)),
                "reactivation": random.Random(seed + 4).choice(["random", *REACTIVATIONS]),
                "batch_bytes": rng.choice([10**6, 3_000]),
                "inactive_ms": 1_000,
                "shape": rng.choice([Shape(), Shape(fan_in=2, smallest_class_rows=4)]),
            },
            elsewhere=rng.choice([frozenset(), frozenset(range(SLOTS))]),
        )
        midway, held = random.Random(seed + 3), random.Random(seed + 5)
        for _ in range(rng.randint(2, 6)):
            happens: dict[str, Any] = {
                "struck": struck(day, midway) if midway.random() < 0.15 else None,
                "forced_bytes": 0 if calm else rng.choice([0, 0, 300, 10**9]),
                "thrown_away": rng.choice([0, 0, 0, 1]),
                "zombie": rng.random() < 0.1,
            }
            day.options["may_return"] = held.random() < 0.8
            day.epoch(rows_of(day, rng, values), **happens, **moved_or_lost(day, rng))
        after = random.Random(seed + 2)
        goes_on = after.random() < 0.3
        day.epoch([], later=rows_of(day, after, values) if goes_on else [], seal=True)
        piece_bytes = rng.choice([10**6, 400])
        if goes_on:
            for _ in range(after.randint(0, 2)):
                forced = 0 if calm else after.choice([0, 0, 300, 10**9])
                rows = rows_of(day, after, values)
                day.epoch(rows, forced_bytes=forced, **moved_or_lost(day, after))
            day.epoch([], seal=True)
        for session in day.journal.sealed:
            at_run_time, expected = day.results[session], day.expected(session)
            assert not at_run_time - expected, "a result that cannot be, or one twice"
            cleaned = day.clean(session, piece_bytes=piece_bytes)
            assert at_run_time + cleaned == expected
            if not any(cut.session == session for cut in day.cuts):
                assert not cleaned
        return day


def struck(day: TreeSlots, rng: random.Random) -> Struck:
    """A host that goes when some slots have done their steps."""
    slots = sorted({slot for _, slot in day.journal.groups})
    slot = rng.choice(slots)
    lost = {slot, *(each for each in slots if rng.random() < 0.3)}
    early = frozenset(rng.sample(slots, rng.randint(0, len(slots))))
    return Struck(slot, early, frozenset(lost), read=rng.randrange(day.spec.height))


def moved_or_lost(day: TreeSlots, rng: random.Random) -> dict[str, Any]:
    """What befalls the slots in an epoch."""
    if rng.random() < 0.3:
        return {
            "moves": {rng.randrange(64): rng.randrange(SLOTS) for _ in range(rng.randint(1, 4))}
        }
    if rng.random() < 0.3 and day.journal.epoch >= 0:
        slots = {slot for _, slot in day.journal.groups}
        return {"lost": frozenset(rng.sample(sorted(slots), rng.randint(1, len(slots))))}
    return {}


def rows_of(
    day: TreeSlots, rng: random.Random, values: int
) -> list[tuple[str, int, dict[str, int]]]:
    """New rows, as many as leave a session's results few enough to compare."""
    rows = []
    topics = day.query.topics
    known = sum(map(len, day.kafka.values())) - sum(day.bounds[-1].values())
    for _ in range(rng.choice([0, 2, 4, 8])):
        if known + len(rows) >= 6 * len(topics):
            break
        value = {name: rng.randrange(values) for name in FIELDS}
        rows.append((rng.choice(topics), rng.randrange(day.partitions), value))
    return rows


@explored(5, 20, st.integers(0, 2**32), st.integers(0, 2**32))
def test_days_of_trees_are_exact(number: int, seed: int) -> None:
    day = run(number, seed)
    event(f"height {day.spec.height}, cuts {bool(day.cuts)}, back {bool(day.voided)}")
    event(f"sessions {len(day.journal.sealed)}, restored {bool(day.restored)}")


@pytest.mark.parametrize("part", parts(2, 2))
def test_the_same_days_of_trees_are_exact(part: int) -> None:
    """Always the same ones, in parts for as many processes. Days with windows are of trees, too
    (`test_window_schedules`)."""
    for number in range(20 * part, 20 * (part + 1)):
        try:
            run(number, 7 * number + 1)
        except AssertionError as error:
            raise AssertionError(f"run({number}, {7 * number + 1})") from error


@pytest.mark.soak
def test_many_days_of_trees_are_exact() -> None:
    first = random.SystemRandom().randrange(2**40)
    for n in range(50_000):
        try:
            run(first + n, first - n)
        except AssertionError as error:
            raise AssertionError(f"run({first + n}, {first - n})") from error
