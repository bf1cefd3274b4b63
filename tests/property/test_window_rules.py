"""The rules of windows, in a world without hosts, files or Kafka: what `spillway_schemas.windows`
says is done to lists of rows, and every result must come once.

A day is one seed: epochs with rows that come in disorder, late, or from a clock that is wrong;
partitions that fall silent; spills, state that is lost and restored, a close over which rows are
carried. The query is one join, or a tree of two. The reference knows no epochs but for what is
late: it takes all rows of a session, judges them by the whole history each time, and joins them by
brute force.

A rule that is left out (`PLANTS`) must lose or double a result, or let another row in, in some day.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway_schemas.windows import (
    BEGINNING_US,
    Heard,
    Progress,
    Span,
    ahead,
    expired,
    last_us,
    late,
    needed,
)

FAST, WHOLE = 150, 800
TOPICS = "abcd"

I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Row:
    """A row of one input of one join. The parts are numbers of rows that came."""

    input: int
    least: int
    greatest: int
    parts: tuple[int, ...]


Combination = tuple[Row, ...]


@dataclass(frozen=True)
class Arrival:
    """A row as it comes: `time` is what it says, `kafka` when it came."""

    number: int
    leaf: int
    partition: int
    time: int
    kafka: int


@dataclass
class Join:
    """A join of one group of keys: what it holds, and what it has spilled."""

    span: Span
    inputs: Sequence[int | str]
    """The leaf's number, or "below" for the join below."""
    slice: int = 1
    held: list[Row] = field(default_factory=list)
    spill: dict[int, list[Row]] = field(default_factory=dict)
    pasts: list[int] = field(default_factory=list)
    """Of the generations that are over, the greatest time of what was held at the end."""
    arrived: list[Row] = field(default_factory=list)
    """All that came in this generation: what a replay gives again."""

    @property
    def generation(self) -> int:
        return len(self.pasts)


@dataclass(frozen=True)
class Rules:
    """The rules in force; a plant replaces one."""

    late: Callable[[I64, int], Bool] = late
    ahead: Callable[[I64, I64, int], Bool] = ahead
    expired: Callable[[I64 | int, int, int], Bool | bool] = expired
    needed: Callable[[I64, int, int], Bool] = needed
    horizon: Callable[[Span, int], int] = lambda span, input_: span.horizons_us[input_]
    below: Callable[[list[int]], list[int]] = lambda pasts: pasts
    """What the joins below have spilled, as the join above sees it."""
    judged_by: Callable[[Progress, Progress], int] = lambda before, after: before.watermark_us
    """Of the progress before and after an epoch, the watermark that its rows are judged by."""
    evicted_by: Callable[[Progress, Progress], int] = lambda before, after: before.watermark_us
    restored: Callable[[list[Row], Callable[[Row], bool]], list[Row]] = lambda rows, gone: [
        each for each in rows if not gone(each)
    ]
    carried_is_old: bool = True
    whole_branch: bool = True
    """A join above one that has spilled is flushed at the seal, too."""


# --- the reference ----------------------------------------------------------------------------


def together(span: Span, rows: Combination) -> bool:
    """Whether rows join, by the words of the definition."""
    if span.bands_us is None:
        return max(r.greatest for r in rows) - min(r.least for r in rows) <= span.width_us
    first = rows[0]
    return all(
        low <= other - mine <= high
        for row, (low, high) in zip(rows[1:], span.bands_us[1:], strict=True)
        for other in (row.least, row.greatest)
        for mine in (first.least, first.greatest)
    )


def all_of(span: Span, rows: Sequence[Row]) -> Iterator[Combination]:
    """Everything that rows of one join give."""
    apart = [[row for row in rows if row.input == n] for n in range(span.inputs)]
    return (each for each in product(*apart) if together(span, each))


def lifted(rows: Combination, input_: int) -> Row:
    """A result as a row of the join above."""
    return Row(
        input_,
        min(r.least for r in rows),
        max(r.greatest for r in rows),
        tuple(sorted(part for r in rows for part in r.parts)),
    )


def coming(join: Join, rows: Iterable[Arrival], below: Iterable[Row]) -> list[Row]:
    """A join's new rows: those of its leaves, and what the join below it gives."""
    found: list[Row] = []
    for n, input_ in enumerate(join.inputs):
        if input_ == "below":
            found += [replace(row, input=n) for row in below]
        else:
            found += [
                Row(n, row.time, row.time, (row.number,)) for row in rows if row.leaf == input_
            ]
    return found


def brute(joins: Sequence[Join], rows: Sequence[Arrival]) -> Counter[tuple[int, ...]]:
    """All results of some rows."""
    made: list[Row] = []
    for join in joins:
        made = [lifted(each, 0) for each in all_of(join.span, coming(join, rows, made))]
    return Counter(row.parts for row in made)


@dataclass(frozen=True)
class Clocks:
    """The settings, and how many partitions each leaf's topic has."""

    partitions: int
    lateness: int
    idle_after: int | None
    bound: int


def watermarks(clocks: Clocks, leaves: int, epochs: Sequence[Sequence[Arrival]]) -> list[int]:
    """Per epoch the watermark that its rows are judged by: from the whole history, each time."""
    found = [BEGINNING_US]
    for end in range(1, len(epochs)):
        past = [(n, row) for n, rows in enumerate(epochs[:end]) for row in rows]
        clock = [max([0, *(row.kafka for n, row in past if n <= e)]) for e in range(end)]
        begun = min((n for n, row in past if row.time - row.kafka <= clocks.bound), default=None)
        if begun is None:
            found.append(found[-1])
            continue
        least: list[int] = []
        for name in product(range(leaves), range(clocks.partitions)):
            mine = [
                (n, row.time)
                for n, row in past
                if (row.leaf, row.partition) == name and row.time - row.kafka <= clocks.bound
            ]
            heard = clock[max(n for n, _ in mine) if mine else begun]
            if clocks.idle_after is not None and clock[-1] - heard > clocks.idle_after:
                continue
            if not mine:
                least = []
                break
            least.append(max(time for _, time in mine))
        found.append(max(found[-1], min(least) - clocks.lateness) if least else found[-1])
    return found


# --- the day ----------------------------------------------------------------------------------


def query(rng: Random) -> list[Join]:
    """One join, or one above another."""

    def span(inputs: int) -> Span:
        if rng.random() < 0.3:
            lows = [rng.randrange(-6, 5) for _ in range(inputs - 1)]
            return Span.around([(low, low + rng.randrange(7)) for low in lows])
        return Span.within(inputs, rng.choice((0, 2, 4, 8)))

    slices = rng.choice((1, 1, 3))
    if rng.random() < 0.5:
        inputs = rng.choice((2, 3))
        return [Join(span(inputs), list(range(inputs)), slices)]
    shapes: list[list[int | str]] = [["below", 2], [2, "below"], [2, "below", 3]]
    above = rng.choice(shapes)
    return [Join(span(2), [0, 1], slices), Join(span(len(above)), above, slices)]


def arrivals(rng: Random, leaves: int, partitions: int) -> list[list[list[Arrival]]]:
    """Per session, per epoch, the rows that come."""
    silent = (rng.randrange(leaves), rng.randrange(partitions)) if rng.random() < 0.4 else None
    disorder = rng.choice((0.0, 0.1, 0.4))
    now, number, sessions = 0, 0, []
    for _ in range(rng.choice((1, 2, 3))):
        epochs = []
        for _ in range(rng.choice((4, 7, 12))):
            rows = []
            for _ in range(rng.choice((0, 1, 2, 3, 4))):
                leaf, partition = rng.randrange(leaves), rng.randrange(partitions)
                if (leaf, partition) == silent and now > 6:
                    continue
                time = now - (rng.randrange(12) if rng.random() < disorder else rng.randrange(2))
                if rng.random() < 0.03:
                    time += rng.choice((5, 20, 40))
                rows.append(Arrival(number, leaf, partition, time, now))
                number += 1
                now += rng.choice((0, 1, 2))
            epochs.append(rows)
        sessions.append(epochs)
    return sessions


def of(time: int) -> I64:
    return np.array([time], dtype=np.int64)


def one(found: Bool) -> bool:
    return bool(found[0])


def chosen(rows: Sequence[Row], keep: Bool) -> list[Row]:
    return [row for row, kept in zip(rows, keep.tolist(), strict=True) if kept]


def times(rows: Sequence[Row]) -> tuple[I64, I64]:
    return (
        np.array([row.least for row in rows], dtype=np.int64),
        np.array([row.greatest for row in rows], dtype=np.int64),
    )


def joined(span: Span, old: Sequence[Row], new: Sequence[Row]) -> list[Combination]:
    """What new rows give with each other and with old ones, by the rule."""
    found = [
        rows
        for rows in product(
            *([r for r in [*old, *new] if r.input == n] for n in range(span.inputs))
        )
        if any(row in new for row in rows)
    ]
    if not found:
        return []
    least, greatest = zip(*(times(rows) for rows in zip(*found, strict=True)), strict=True)
    return [
        rows for rows, ok in zip(found, span.joins(least, greatest).tolist(), strict=True) if ok
    ]


def day(seed: int, rules: Rules) -> str:
    """What is wrong with the results of a day; nothing if all is well."""
    rng = Random(seed)
    joins = query(rng)
    leaves = sum(isinstance(each, int) for join in joins for each in join.inputs)
    clocks = Clocks(
        rng.choice((1, 2)), rng.choice((0, 2)), rng.choice((None, 5, 15)), rng.choice((5, 20))
    )
    sessions = arrivals(rng, leaves, clocks.partitions)
    every = [rows for epochs in sessions for rows in epochs]
    marks = iter(watermarks(clocks, leaves, every))
    partitions = [(TOPICS[i], p) for i in range(leaves) for p in range(clocks.partitions)]
    progress = Progress.begin(partitions)
    clock, past, wrong = 0, Counter[tuple[int, ...]](), ""
    taken: list[Arrival] = []
    for epochs in sessions:
        got: Counter[tuple[int, ...]] = Counter()
        first = True
        for rows in epochs:
            mark = next(marks)
            taken += [r for r in rows if r.time >= mark and r.time - r.kafka <= clocks.bound]
            in_time = [
                r
                for r in rows
                if not one(rules.ahead(of(1000 * r.time), of(r.kafka), 1000 * clocks.bound))
            ]
            came: dict[tuple[str, int], int] = {}
            for row in in_time:
                name = (TOPICS[row.leaf], row.partition)
                came[name] = max(came.get(name, row.time), row.time)
            clock = max([clock, *(row.kafka for row in rows)])
            then = progress.after(
                came, clock, lateness_us=clocks.lateness, idle_after_ms=clocks.idle_after
            )
            good = [
                r
                for r in in_time
                if not one(rules.late(of(r.time), rules.judged_by(progress, then)))
            ]
            evict(rules, joins, rules.evicted_by(progress, then))
            if rng.random() < 0.12:
                lose(rules, joins, rng, progress.watermark_us)
            made: list[Row] = []
            for join in joins:
                old, new = join.held, coming(join, good, made)
                if first and not rules.carried_is_old:
                    old, new = [], [*old, *new]
                made = [lifted(each, 0) for each in joined(join.span, old, new)]
                join.held = [*old, *new]
                join.arrived += new
            got.update(row.parts for row in made)
            first = False
            progress = then
            for join in joins:
                if join.held and rng.random() < 0.2:
                    spill(join)
        got += cleanup(rules, joins)
        whole = brute(joins, taken)
        expected = whole - past
        past = whole
        if got != expected and not wrong:
            wrong = f"missing {dict(expected - got)}, too many {dict(got - expected)}"
        carry(rules, joins, progress.watermark_us, taken)
    return wrong


def gone(rules: Rules, join: Join, row: Row, watermark: int) -> bool:
    horizon = rules.horizon(join.span, row.input)
    last = last_us(row.least // join.slice, join.slice)
    return bool(rules.expired(last, horizon, watermark))


def evict(rules: Rules, joins: Sequence[Join], watermark: int) -> None:
    """What has expired leaves memory; what cleanup needs of it is spilled."""
    below: list[int] = []
    for join in joins:
        out = [row for row in join.held if gone(rules, join, row, watermark)]
        join.held = [row for row in join.held if row not in out]
        pasts = [*join.pasts, *rules.below(below)]
        if out:
            until = max(pasts, default=BEGINNING_US)
            kept = chosen(out, rules.needed(times(out)[0], until, join.span.width_us))
            join.spill.setdefault(join.generation, []).extend(kept)
        below = pasts


def lose(rules: Rules, joins: Sequence[Join], rng: Random, watermark: int) -> None:
    """A join's state is lost, and made again of what came in its generation."""
    join = rng.choice(joins)
    join.held = rules.restored(join.arrived, lambda row: gone(rules, join, row, watermark))


def spill(join: Join) -> None:
    """The whole group leaves memory: the generation is over."""
    join.spill.setdefault(join.generation, []).extend(join.held)
    join.pasts.append(max(row.greatest for row in join.held))
    join.held, join.arrived = [], []


def cleanup(rules: Rules, joins: Sequence[Join]) -> Counter[tuple[int, ...]]:
    """Results between generations, from the join below to the root."""
    late_below: list[Row] = []
    branch = False
    for join in joins:
        branch = (branch and rules.whole_branch) or bool(join.pasts)
        if branch:
            join.spill.setdefault(join.generation, []).extend(join.held)
        generations = [rows for _, rows in sorted(join.spill.items())] if branch else []
        generations.append(coming(join, [], late_below))
        base: list[Row] = []
        found: list[Row] = []
        for rows in generations:
            found += [
                lifted(each, 0)
                for each in joined(join.span, base, rows)
                if any(row in base for row in each)
            ]
            base += rows
        late_below = found
    return Counter(row.parts for row in late_below)


def carry(rules: Rules, joins: Sequence[Join], watermark: int, taken: Sequence[Arrival]) -> None:
    """The next session begins with the rows that have not expired, read again from Kafka."""
    made: list[Row] = []
    for join in joins:
        rows = coming(join, taken, made)
        made = [lifted(each, 0) for each in joined(join.span, [], rows)]
        join.held = [row for row in rows if not gone(rules, join, row, watermark)]
        join.arrived, join.spill, join.pasts = list(join.held), {}, []


# --- what is tested ---------------------------------------------------------------------------


def exact(seeds: Iterable[int]) -> None:
    for seed in seeds:
        wrong = day(seed, Rules())
        assert not wrong, f"day {seed}: {wrong}"


def test_every_result_comes_once() -> None:
    exact(range(FAST))


@pytest.mark.server
def test_every_result_comes_once_in_many_days() -> None:
    exact(range(FAST, WHOLE))


@pytest.mark.soak
def test_every_result_comes_once_in_very_many_days() -> None:
    exact(range(10_000, 10_000 + int(os.environ.get("SPILLWAY_SOAK_WINDOWS", "50000"))))


def intersecting(least: I64, until: int, _: int) -> Bool:
    return needed(least, until, 0)


def none(times: I64, *_: object) -> Bool:
    return np.zeros(len(times), dtype=np.bool_)


PLANTS = {
    "a row expires an epoch early": Rules(evicted_by=lambda before, after: after.watermark_us),
    "a row is late by its own epoch": Rules(judged_by=lambda before, after: after.watermark_us),
    "late rows are taken": Rules(late=none),
    "a row at the watermark is late": Rules(late=lambda time, mark: time <= mark),
    "a wrong clock is believed": Rules(ahead=none),
    "a clock at the bound is wrong": Rules(ahead=lambda time, kafka, b: time - kafka * 1000 >= b),
    "a row expires as its window ends": Rules(expired=lambda least, h, mark: least + h <= mark),
    "rows expire without their window": Rules(expired=lambda least, h, mark: least < mark),
    "a band is taken backwards": Rules(
        horizon=lambda span, n: span.horizons_us[n] * (1 if span.bands_us is None else -1)
    ),
    "expired rows are never needed": Rules(needed=none),
    "expired rows are needed where times intersect": Rules(needed=intersecting),
    "what a join below spilled needs nothing": Rules(below=lambda pasts: []),
    "restored without the watermark": Rules(restored=lambda rows, gone: list(rows)),
    "carried rows join each other again": Rules(carried_is_old=False),
    "a join above one that spilled is not flushed": Rules(whole_branch=False),
}


@pytest.mark.server
@pytest.mark.parametrize("plant", PLANTS)
def test_a_rule_left_out_is_noticed(plant: str) -> None:
    assert any(day(seed, PLANTS[plant]) for seed in range(2 * WHOLE))


SPANS = st.one_of(
    st.builds(Span.within, st.integers(2, 3), st.integers(0, 4)),
    st.lists(
        st.tuples(st.integers(-4, 4), st.integers(0, 3)).map(lambda b: (b[0], b[0] + b[1])),
        min_size=1,
        max_size=2,
    ).map(Span.around),
)


@given(SPANS, st.data())
def test_a_row_expires_when_no_row_to_come_can_join_it(span: Span, data: st.DataObject) -> None:
    """Neither before, or results are lost, nor later, or memory is: rows to come are tried."""
    mine = data.draw(st.integers(0, span.inputs - 1))
    watermark = data.draw(st.integers(-14, 14))
    others = [range(-14, 15) if n != mine else (0,) for n in range(span.inputs)]
    joins = any(
        together(span, tuple(Row(n, time, time, ()) for n, time in enumerate(rows)))
        for rows in product(*others)
        if any(time >= watermark for n, time in enumerate(rows) if n != mine)
    )
    found = expired(np.array([0]), span.horizons_us[mine], watermark)
    assert found.tolist() == [not joins]


@given(SPANS, st.data())
def test_what_joins_is_what_the_definition_says(span: Span, data: st.DataObject) -> None:
    pairs = st.tuples(st.integers(-6, 6), st.integers(0, 3))
    rows = data.draw(st.lists(st.tuples(*[pairs] * span.inputs), max_size=9))
    drawn = np.array(rows, dtype=np.int64).reshape(-1, span.inputs, 2)
    found = span.joins(list(drawn[:, :, 0].T), list(drawn.sum(axis=2).T))
    made = [tuple(Row(n, t, t + length, ()) for n, (t, length) in enumerate(r)) for r in rows]
    assert found.tolist() == [together(span, each) for each in made]


def test_a_span_that_holds_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="a window is 0 us or more, not -1"):
        Span.within(2, -1)
    with pytest.raises(ValueError, match="a band from 3 to 2 us holds nothing"):
        Span.around([(0, 1), (3, 2)])


def test_the_watermark_waits_for_all_partitions_but_idle_ones() -> None:
    a, b = ("a", 0), ("b", 0)
    begun = Progress.begin([a, b])
    # Before the first row of all nobody is idle, however long it takes.
    assert begun.after({}, 999, idle_after_ms=20).idle(9_999, 20) == frozenset()
    one = begun.after({a: 50}, 110, lateness_us=5, idle_after_ms=20)
    assert one.watermark_us == BEGINNING_US
    both = one.after({b: 40}, 120, lateness_us=5, idle_after_ms=20)
    assert (both.watermark_us, both.idle(130, 20)) == (35, frozenset())
    # b is silent for longer than 20 ms of the stream's clock, and is not waited for.
    alone = both.after({a: 90}, 141, lateness_us=5, idle_after_ms=20)
    assert (alone.watermark_us, set(alone.idle(141, 20))) == (85, {b})
    # It is heard again with an old row: the watermark does not go back.
    again = alone.after({b: 60}, 150, lateness_us=5, idle_after_ms=20)
    assert (again.watermark_us, again.heard[b]) == (85, Heard(150, 60))
    # Nothing moves the watermark when all are idle.
    assert again.after({}, 999, idle_after_ms=20).watermark_us == 85
    # A partition that is found later is waited for, once it has had a row.
    assert again.after({("a", 1): 70, a: 99}, 151).watermark_us == 85
