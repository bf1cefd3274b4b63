"""Random schedules: the engine's step on real folders against the reference and brute force.

A schedule draws inputs, keys (skewed or not, one or two columns), a hash (Spark's, or one of
four bits, so that most equal hashes are of different keys), groups, slots, a budget from far too
small to ample, a victims' policy, and epochs with: rows of two sessions, forced spills, another
assignment (slots and groups, split and merged), lost slots (restored from what the reference
says was in memory), thrown-away attempts before and zombies after the one that counts, and
seals. Compared as multisets of coordinates: results of every epoch, spilled rows of every epoch,
what cleanup finds, and all of it together with brute force.

The fast lane runs FAST schedules, `make test` MORE on top, always the same ones; `make soak` runs
LONG new ones each time.
"""

from __future__ import annotations

import itertools
import os
import random
import secrets
import tempfile
from dataclasses import dataclass
from functools import partial

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from jobs.engine.groups import GroupMap
from jobs.engine.merging import Shape
from jobs.policy.victims import POLICIES
from tests.property.reference import Row
from tests.property.slots import DAYS, Slots, key_of, narrow, spec_of

FAST = 60
MORE = 500
LONG = 4_000
SCRATCH = "/dev/shm" if os.path.isdir("/dev/shm") else None

TINY = Shape(
    fan_in=2,
    smallest_class_rows=4,
    least_file_bytes=100,
    files_in_budget=10**9,
    fuel_intakes=0,
    fuel_files=2,
    reclaim_from=0.0,
    reclaim_hard_from=0.5,
)
"""Merges begin at once, advance by a few rows an epoch, and files with dead rows are rewritten."""

COMMON = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "database": None,
    "print_blob": True,
}


@dataclass(frozen=True)
class Epoch:
    """`rows` are drawn with a seed: how many, and how skewed; `groups` is (groups, slots)."""

    rows: int
    seed: int = 0
    skewed: bool = False
    groups: tuple[int, int] | None = None
    lost: frozenset[int] = frozenset()
    forced_bytes: int = 0
    seal: bool = False
    thrown_away: int = 0
    zombie: bool = False


@dataclass(frozen=True)
class Schedule:
    inputs: int
    composite: bool
    bits: int
    keys: int
    groups: tuple[int, int]
    budget_bytes: int
    threshold: float
    victims: str
    batch_bytes: int
    shape: Shape
    elsewhere: frozenset[int]
    epochs: list[Epoch]


assignments = st.sampled_from([(1, 1), (2, 1), (8, 2), (16, 2), (64, 3)])
seldom = st.sampled_from([False] * 5 + [True])

epochs = st.builds(
    Epoch,
    rows=st.sampled_from([12, 0, 3, 30]),
    seed=st.integers(0, 2**32),
    skewed=seldom,
    groups=st.one_of(st.none(), st.none(), st.none(), assignments),
    lost=st.one_of(st.just(frozenset()), st.just(frozenset()), st.frozensets(st.integers(0, 2))),
    forced_bytes=st.sampled_from([0, 0, 0, 1, 500, 10**9]),
    seal=seldom,
    thrown_away=st.sampled_from([0, 0, 0, 1, 2]),
    zombie=seldom,
)
schedules = st.builds(
    Schedule,
    inputs=st.sampled_from([3, 2, 4]),
    composite=st.booleans(),
    bits=st.sampled_from([64, 4, 1]),
    keys=st.sampled_from([20, 40, 8]),
    groups=assignments,
    budget_bytes=st.sampled_from([10**8, 400_000, 60_000, 25_000]),
    threshold=st.sampled_from([0.9, 0.05]),
    victims=st.sampled_from(sorted(POLICIES)),
    batch_bytes=st.sampled_from([10**6, 10**6, 3_000]),
    shape=st.sampled_from([Shape(), TINY]),
    elsewhere=st.sampled_from([frozenset(), frozenset(), frozenset({0}), frozenset({0, 1, 2})]),
    epochs=st.lists(epochs, min_size=2, max_size=8),
)


def run(schedule: Schedule) -> Slots:
    """Run a schedule to its end: both days sealed, cleaned and compared with brute force."""
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        slots = Slots(
            spec_of(schedule.inputs, composite=schedule.composite),
            root,
            GroupMap.initial(*schedule.groups),
            partial(narrow, schedule.bits),
            {
                "threshold": schedule.threshold,
                "victims": schedule.victims,
                "batch_bytes": schedule.batch_bytes,
                "inactive_ms": 1_000,
                "shape": schedule.shape,
            },
            schedule.budget_bytes,
            schedule.elsewhere,
        )
        offset, sealed = 0, False
        for epoch in schedule.epochs:
            rows = []
            draw = random.Random(epoch.seed)
            for _ in range(epoch.rows):
                offset += 1
                day = DAYS[1] if sealed or draw.random() < 0.15 else DAYS[0]
                number = 0 if epoch.skewed else draw.randrange(schedule.keys)
                key = key_of(number, composite=schedule.composite)
                rows.append(Row(day, draw.randrange(schedule.inputs), key, offset % 2, offset))
            seal = DAYS[0] if epoch.seal and not sealed else None
            sealed = sealed or seal is not None
            slots.run(
                rows,
                groups=GroupMap.initial(*epoch.groups) if epoch.groups else None,
                lost=epoch.lost,
                forced_bytes=epoch.forced_bytes,
                seal=seal,
                thrown_away=epoch.thrown_away,
                zombie=epoch.zombie,
            )
        for day in DAYS[int(sealed) :]:
            slots.run([], seal=day)
        for day in DAYS:
            cleaned = slots.clean(day)
            assert cleaned == slots.reference.missing(day)
            assert slots.at_run_time[day] + cleaned == slots.reference.everything(day)
        assert slots.overrun <= 0, f"a folder was {slots.overrun} bytes beyond its budget"
        return slots


@settings(max_examples=FAST, **COMMON)
@given(schedules)
def test_schedules_are_exact(schedule: Schedule) -> None:
    run(schedule)


def campaign(number: int, examples: int) -> None:
    """Schedules that follow from a number, whatever hypothesis' profile says."""

    @seed(number)
    @settings(max_examples=examples, phases=[Phase.generate, Phase.shrink], **COMMON)
    @given(schedules)
    def all_exact(schedule: Schedule) -> None:
        run(schedule)

    all_exact()


@pytest.mark.server
@pytest.mark.parametrize("number", range(2))
def test_many_more_schedules_are_exact(number: int) -> None:
    campaign(number, MORE // 2)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(4))
def test_new_schedules_are_exact(part: int) -> None:
    number = secrets.randbits(32)
    print(f"campaign({number}, {LONG // 4})")
    campaign(number, LONG // 4)


def test_schedules_do_what_they_are_meant_to() -> None:
    """A campaign in which nothing is spilled or cleaned would prove nothing."""
    epochs_ = [
        Epoch(30, 1, thrown_away=1),
        Epoch(30, 2, forced_bytes=1_000),
        Epoch(30, 3, lost=frozenset({0})),
        Epoch(12, 4, groups=(64, 3), zombie=True),
        Epoch(12, 5, seal=True),
    ]
    handed = []
    for bits, elsewhere in itertools.product((64, 1), (frozenset(), frozenset({0, 1, 2}))):
        slots = run(
            Schedule(3, False, bits, 6, (8, 2), 10**8, 0.9, "random", 400, TINY, elsewhere, epochs_)
        )
        handed.append(slots.handed)
        assert slots.cuts[DAYS[0]]
        assert sum(slots.at_run_time[DAYS[0]].values()) > 50
        assert sum(slots.clean_results.values()) > 50
    assert handed[0] > 0, "within a host, files"
    assert handed[1] == 0, "between hosts, blocks"
