"""Random schedules: the engine's step on real folders against the reference and brute force.

A schedule draws inputs, keys (skewed or not, one or two columns), a hash (Spark's, or one of
four bits, so that most equal hashes are of different keys), groups, slots, a budget from far too
small to ample, a victims' policy, and epochs with: rows of two sessions, forced spills, changes of
the assignment (groups of any depth move, split and merge; slots end and come back), lost slots
(restored from what the reference says was in memory), thrown-away attempts before and zombies
after the one that counts, and seals. Compared as multisets of coordinates: results of every
epoch, spilled rows of every epoch, what cleanup finds, and all of it together with brute force.

The fast lane runs FAST schedules, which hypothesis draws anew each time (in CI always the same),
`make test` MORE on top, always the same ones, and outside CI as many new ones as one of those
campaigns; `make soak` runs LONG new ones each time.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from spillway.engine.groups import GroupMap, relocations
from spillway.engine.state.merging import Shape
from spillway.policy.reactivation import POLICIES as REACTIVATIONS
from spillway.policy.victims import POLICIES
from spillway.protocol.adapt import DEEPEST
from spillway_schemas.journal import Prefix
from tests.fresh import fixed_seeds, fresh_seed
from tests.property.reference import Row
from tests.property.slots import DAYS, Slots, key_of, narrow, spec_of

FAST = 5
MORE = 50
LOOKED_AT = 80
PARTS = 2
"""Of those schedules: beside Spark's tests half of them takes minutes, and a test has ten."""
LONG = 4_000
SCRATCH = "/dev/shm" if os.path.isdir("/dev/shm") else None

TINY = Shape(
    fan_in=2,
    smallest_class_rows=4,
    least_file_bytes=100,
    files_in_budget=10**9,
    fuel_intakes=0,
    fuel_files=2,
    trim_from=0.0,
    dead_share=0.01,
    dead_in_budget=0.0,
)
"""Merges begin at once, advance by a few rows an epoch, and files with dead rows are trimmed."""

COMMON = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "database": None,
    "print_blob": True,
}


EVEN = ((1, 1), (2, 1), (8, 2), (16, 2), (64, 3))
"""(groups, slots) of assignments with equal groups and contiguous owners."""
SLOTS = 4
MOST_GROUPS = 64


@dataclass(frozen=True)
class Change:
    """A small change of the assignment; `at` counts around, so that it fits whatever there is.

    `move` group `at` to slot `to`; `split` it; `merge` the `at`th pair of halves, wherever they
    are; `scatter` all groups at random, seeded by `at`, over `to` + 1 slots; `regrow` a random
    tree of groups and scatter those; `even` groups again.
    """

    kind: str
    at: int = 0
    to: int = 0


def changed(groups: GroupMap, changes: Iterable[Change]) -> GroupMap:
    """The assignment after some changes, one after the other."""
    for change in changes:
        owners = dict(groups.assignment())
        group = groups.prefixes[change.at % len(groups)]
        halves = [p for p in owners if p.value % 2 == 0 and Prefix(p.depth, p.value + 1) in owners]
        draw = random.Random(change.at)
        match change.kind:
            case "move":
                owners[group] = change.to
            case "split" if len(owners) < MOST_GROUPS and group.depth < DEEPEST:
                slot = owners.pop(group)
                owners |= dict.fromkeys(_halves(group), slot)
            case "merge" if halves:
                depth, value = halves[change.at % len(halves)]
                slot = owners.pop(Prefix(depth, value + 1))
                del owners[Prefix(depth, value)]
                owners[Prefix(depth - 1, value // 2)] = slot
            case "scatter":
                owners = {each: draw.randint(0, change.to) for each in owners}
            case "regrow":
                tree = [Prefix(0, 0)]
                for _ in range(draw.randint(1, MOST_GROUPS // 2)):
                    tree += _halves(tree.pop(draw.randrange(len(tree))))
                owners = {each: draw.randint(0, change.to) for each in tree}
            case "even":
                owners = dict(GroupMap.initial(*EVEN[change.at % len(EVEN)]).assignment())
        groups = GroupMap(owners.items())
    return groups


def _halves(group: Prefix) -> list[Prefix]:
    return [Prefix(group.depth + 1, 2 * group.value + bit) for bit in (0, 1)]


@dataclass(frozen=True)
class Epoch:
    """`rows` are drawn with a seed: how many, and how skewed."""

    rows: int
    seed: int = 0
    skewed: bool = False
    changes: tuple[Change, ...] = ()
    lost: frozenset[int] = frozenset()
    forced_bytes: int = 0
    budget: tuple[int, int] | None = None
    """A slot, and what it has from this epoch on."""
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
    changes: tuple[Change, ...]
    """That make the first assignment of `groups`."""
    budget_bytes: int
    threshold: float
    victims: str
    reactivation: str
    batch_bytes: int
    shape: Shape
    elsewhere: frozenset[int]
    epochs: list[Epoch]

    def assignments(self) -> list[GroupMap]:
        """The first one, and that of each epoch."""
        found = [changed(GroupMap.initial(*self.groups), self.changes)]
        for epoch in self.epochs:
            found.append(changed(found[-1], epoch.changes))
        return found


BUDGETS = [10**8, 400_000, 60_000, 25_000]

one_change = st.builds(
    Change,
    kind=st.sampled_from(["move", "split", "merge", "scatter", "regrow", "even"]),
    at=st.integers(0, MOST_GROUPS - 1),
    to=st.integers(0, SLOTS - 1),
)
changes = st.lists(one_change, max_size=6).map(tuple)
seldom = st.sampled_from([False] * 5 + [True])

epochs = st.builds(
    Epoch,
    rows=st.sampled_from([12, 0, 3, 30]),
    seed=st.integers(0, 2**32),
    skewed=seldom,
    changes=st.one_of(st.just(()), one_change.map(lambda only: (only,)), changes),
    lost=st.one_of(
        st.just(frozenset()), st.just(frozenset()), st.frozensets(st.integers(0, SLOTS - 1))
    ),
    forced_bytes=st.sampled_from([0, 0, 0, 1, 500, 10**9]),
    budget=st.one_of(
        st.none(),
        st.none(),
        st.tuples(st.integers(0, SLOTS - 1), st.sampled_from(BUDGETS)),
    ),
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
    groups=st.sampled_from(EVEN),
    changes=changes,
    budget_bytes=st.sampled_from(BUDGETS),
    threshold=st.sampled_from([0.9, 0.05]),
    victims=st.sampled_from(sorted(POLICIES)),
    reactivation=st.sampled_from(REACTIVATIONS),
    batch_bytes=st.sampled_from([10**6, 10**6, 3_000]),
    shape=st.sampled_from([Shape(), TINY]),
    elsewhere=st.sampled_from([frozenset(), frozenset(), frozenset({0}), frozenset(range(SLOTS))]),
    epochs=st.lists(epochs, min_size=2, max_size=8),
)


def run(schedule: Schedule) -> Slots:
    """Run a schedule to its end: both days sealed, cleaned and compared with brute force."""
    first, *assignments = schedule.assignments()
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        slots = Slots(
            spec_of(schedule.inputs, composite=schedule.composite),
            root,
            first,
            partial(narrow, schedule.bits),
            {
                "threshold": schedule.threshold,
                "victims": schedule.victims,
                "reactivation": schedule.reactivation,
                "batch_bytes": schedule.batch_bytes,
                "inactive_ms": 1_000,
                "shape": schedule.shape,
            },
            schedule.budget_bytes,
            schedule.elsewhere,
        )
        sealing = [*(epoch.seal for epoch in schedule.epochs), True].index(True)
        slots.first_day_ends = sum(epoch.rows for epoch in schedule.epochs[: sealing + 1]) + 2
        offset, sealed = 0, False
        for epoch, groups in zip(schedule.epochs, assignments, strict=True):
            rows = []
            draw = random.Random(epoch.seed)
            for _ in range(epoch.rows):
                offset += 1
                early = draw.random() < 0.15
                day = DAYS[1] if sealed or early else DAYS[0]
                partition = offset % 2 if sealed else int(early)
                number = 0 if epoch.skewed else draw.randrange(schedule.keys)
                key = key_of(number, composite=schedule.composite)
                rows.append(Row(day, draw.randrange(schedule.inputs), key, partition, offset))
            # Now and then the setting is another one, as after a start.
            other = draw.random() < 0.1
            slots.options["reactivation"] = "off" if other else schedule.reactivation
            slots.options["may_return"] = draw.random() < 0.8
            seal = DAYS[0] if epoch.seal and not sealed else None
            if seal is not None:
                sealed, offset = True, slots.first_day_ends
            slots.run(
                rows,
                groups=groups,
                lost=epoch.lost,
                forced_bytes=epoch.forced_bytes,
                budget=epoch.budget,
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


def campaign(number: int, examples: int, each: Callable[[Schedule], object] = run) -> None:
    """Schedules that follow from a number, whatever hypothesis' profile says."""

    @seed(number)
    @settings(max_examples=examples, phases=[Phase.generate, Phase.shrink], **COMMON)
    @given(schedules)
    def all_exact(schedule: Schedule) -> None:
        each(schedule)

    all_exact()


@pytest.mark.soak
@pytest.mark.parametrize("number", range(PARTS))
def test_many_more_schedules_are_exact(number: int) -> None:
    campaign(number, MORE // PARTS)


@pytest.mark.server
@pytest.mark.skipif(fixed_seeds(), reason="CI runs the same schedules each time")
def test_fresh_schedules_are_exact() -> None:
    fresh_campaign(MORE // PARTS)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(4))
def test_new_schedules_are_exact(part: int) -> None:
    fresh_campaign(LONG // 4)


def fresh_campaign(examples: int) -> None:
    """A campaign with a new number; pytest shows the command when it fails."""
    number = fresh_seed()
    print(f"again: python -m tests.property.test_engine_schedules {number} {examples}")
    campaign(number, examples)


def test_schedules_do_what_they_are_meant_to() -> None:
    """A campaign in which nothing is spilled or cleaned would prove nothing."""
    deep = [Change("merge", 20), *(Change("split", at) for at in (0, 0, 1))]
    epochs_ = [
        Epoch(30, 1, thrown_away=1),
        Epoch(30, 2, forced_bytes=1_000),
        Epoch(30, 3, lost=frozenset({0}), budget=(1, 25_000)),
        Epoch(12, 4, changes=(Change("even", 4), *deep, Change("scatter", 5, 3)), zombie=True),
        Epoch(12, 5, changes=(Change("merge", 0), Change("scatter", 5, 1))),
        Epoch(12, 6, changes=(Change("scatter", 6, 3),)),
        Epoch(12, 7, seal=True),
    ]
    handed = []
    for bits, elsewhere in itertools.product((64, 1), (frozenset(), frozenset(range(SLOTS)))):
        slots = run(
            Schedule(
                3,
                False,
                bits,
                6,
                (8, 2),
                (),
                10**8,
                0.9,
                "random",
                "random",
                20_000,
                TINY,
                elsewhere,
                epochs_,
            )
        )
        handed.append(slots.handed)
        assert slots.cuts[DAYS[0]]
        assert slots.returned > 0
        assert sum(slots.at_run_time[DAYS[0]].values()) > 50
        assert sum(slots.clean_results.values()) > 50
    assert handed[0] > 0, "within a host, files"
    assert handed[1] == 0, "between hosts, blocks"


def test_assignments_change_in_every_way() -> None:
    """What the schedules of the first campaign do to groups and slots, epoch by epoch."""
    seen: Counter[str] = Counter()

    def look(schedule: Schedule) -> None:
        assignments = schedule.assignments()
        ended: set[int] = set()
        pairs = itertools.pairwise(assignments)
        for epoch, (before, after) in zip(schedule.epochs, pairs, strict=True):
            old, new = set(before.prefixes), set(after.prefixes)
            had, has = set(before.slots.tolist()), set(after.slots.tolist())
            moves = relocations(before, after)
            seen["mixed depth"] += len({p.depth for p in new}) > 1
            seen["split"] += any(new.issuperset(_halves(p)) for p in old - new)
            seen["merge"] += any(old.issuperset(_halves(p)) for p in new - old)
            seen["one move"] += old == new and sum(map(len, moves.values())) == 1
            seen["many moves"] += len(moves) > 2
            seen["scattered"] += bool(np.count_nonzero(np.diff(after.slots)) >= len(has))
            seen["slot begins"] += bool(has - had)
            seen["slot ends"] += bool(had - has)
            seen["slot comes back"] += bool(has & ended)
            seen["lost when groups should move"] += bool(moves) and bool(epoch.lost & had)
            seen[f"{len(has)} slots"] += 1
            ended = (ended | had) - has

    campaign(0, LOOKED_AT, look)
    assert len(seen) == 10 + SLOTS
    assert min(seen.values()) >= 15, seen


if __name__ == "__main__":
    campaign(int(sys.argv[1]), int(sys.argv[2]))
