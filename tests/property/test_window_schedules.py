"""Random days of random trees with windows: the engine's steps on real folders, and the journal's
fold, against brute force.

Everything of `test_tree_schedules`, and time: rows in disorder, late, or from a wrong clock; silent
partitions; windows and bands on some joins; slices so short that state expires all day long.
"""

from __future__ import annotations

import os
import random
import tempfile
import tomllib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import event
from hypothesis import strategies as st

from spillway.cleanup.plan import generations_of
from spillway.engine.expiry import take_expired
from spillway.engine.join.kernel import join_batches
from spillway.engine.state.merging import Shape, due_merges
from spillway.engine.state.slices import is_over
from spillway.policy.reactivation import POLICIES as REACTIVATIONS
from spillway.policy.victims import POLICIES
from spillway.protocol.recovery import InputChanged, watermarks_of
from spillway.protocol.state import _carried
from spillway.protocol.state import watermarks as journaled
from spillway_schemas import windows
from spillway_schemas.journal import Carried, Prefix
from spillway_schemas.query import Query, query_of
from spillway_schemas.tomlfile import parse_toml
from spillway_schemas.windows import slice_us
from tests.lanes import explored, parts
from tests.property.test_query_trees import FIELDS, text_of
from tests.property.test_tree_schedules import SCRATCH, SLOTS, moved_or_lost, struck
from tests.property.tree_slots import DAYS, KAFKA_MS, TreeSlots

BEGIN = datetime.fromtimestamp(KAFKA_MS / 1000, UTC)


def windowed_text(number: int) -> str:
    """The query of a random tree, with windows on some joins."""
    rng = random.Random(number)
    made = tomllib.loads(text_of(number))
    while sum(len(join["inputs"]) for join in made["join"].values()) > 5:
        made = tomllib.loads(text_of(rng.randrange(2**32)))
    joins = made["join"]
    bounded = [name for name in joins if rng.random() < 0.6] or [rng.choice(list(joins))]
    lines = []
    for name, join in joins.items():
        lines += [f"[join.{name}]", f"inputs = {join['inputs']}", f"on = {toml(join['on'])}"]
        if name in bounded:
            names = [each.split()[-1] for each in join["inputs"]]
            if rng.random() < 0.3:
                bands = {each: band(rng) for each in names[1:]}
                lines.append(f"within = {toml(bands)}")
            else:
                lines.append(f"window = '{rng.choice((0, 3, 8, 20))} seconds'")
    at = lines.index(f"[join.{bounded[0]}]") + 1
    lines.insert(at, f"lateness = '{rng.choice((0, 0, 4))} seconds'")
    if rng.random() < 0.4:
        lines.insert(at, "idle_after = '3 ms'")
    timed: set[str] = set()
    for name in bounded:
        ahead = [name]
        while ahead:
            inputs = joins[ahead.pop()]["inputs"]
            ahead += [each for each in inputs if each in joins]
            timed |= {each.split()[0] for each in inputs if each not in joins}
    for name in made["streams"]:
        lines += [f"[streams.{name}]", "fields = { f0 = 'int', f1 = 'int', f2 = 'int', "]
        lines[-1] += "at = 'timestamp' }"
        lines += ["time = 'at'"] if name in timed else []
    columns = made.get("results", {}).get("columns")
    lines += ["[results]", f"columns = {columns or []}"]
    return "\n".join(lines)


def band(rng: random.Random) -> str:
    low = rng.randrange(-8, 7)
    return f"{low} seconds .. {low + rng.randrange(9)} seconds"


def toml(value: Any) -> str:
    """Tables and lists of texts, inline."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return f"'{value}'"


def run(number: int, seed: int, *, defers: bool = False) -> TreeSlots:
    """One day: `number` is the query's, `seed` that of all that happens. `defers`: the query is one
    join, no rows are carried, and what lost slots had may be left to cleanup."""
    with mock.patch.object(windows, "LEAST_SLICE_US", 2_000_000):
        return _run(number, seed, defers=defers)


def query_for(number: int) -> Query:
    return query_of(parse_toml(windowed_text(number), Path("q.toml")))


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
            partitions=rng.choice([1, 1, 2]),
            carry=carry,
            options={
                "threshold": rng.choice([0.9, 0.05]),
                "budget_bytes": rng.choice([10**8, 10**8, 60_000, 25_000]),
                "victims": rng.choice(sorted(POLICIES)),
                "reactivation": random.Random(seed + 4).choice(["random", *REACTIVATIONS]),
                "batch_bytes": rng.choice([10**6, 3_000]),
                "inactive_ms": 1_000,
                "shape": rng.choice([Shape(), Shape(fan_in=2, smallest_class_rows=4)]),
            },
            elsewhere=rng.choice([frozenset(), frozenset(range(SLOTS))]),
            most_restored_rows=random.Random(seed + 5).choice([0, 0, 5, None]) if defers else None,
        )
        now = Clock(rng)
        for _ in range(rng.randint(4, 12)):
            happens: dict[str, Any] = {
                "struck": struck(day, rng) if rng.random() < 0.1 else None,
                "forced_bytes": rng.choice([0, 0, 0, 300, 10**9]),
                "thrown_away": rng.choice([0, 0, 0, 1]),
                "zombie": rng.random() < 0.1,
            }
            day.epoch(now.rows(day), **happens, **moved_or_lost(day, rng))
        goes_on = rng.random() < (0.8 if carry else 0.3)
        further = rng.randint(1, 2) if goes_on and carry else int(goes_on)
        for _ in range(further):
            sealed(day, now, rng)
            for _ in range(rng.randint(0, 3)):
                forced = rng.choice([0, 0, 300, 10**9])
                day.epoch(now.rows(day), forced_bytes=forced, **moved_or_lost(day, rng))
        day.epoch([], seal=True)
        piece_bytes = rng.choice([10**6, 400])
        for session in day.journal.sealed:
            at_run_time, expected = day.results[session], day.expected(session)
            assert not at_run_time - expected, "a result that cannot be, or one twice"
            cleaned = day.clean(session, piece_bytes=piece_bytes)
            assert at_run_time + cleaned == expected
            if not any(cut.session == session for cut in (*day.cuts, *day.deferred)):
                assert not cleaned
        return day


def sealed(day: TreeSlots, now: Clock, rng: random.Random) -> None:
    """The session ends, and the next one begins: some partitions may be read to the end later than
    others, so that rows of both come at a time."""
    places = [(topic, p) for topic in day.query.topics for p in range(day.partitions)]
    some = rng.random() < 0.5
    behind = {place for place in places if some and rng.random() < 0.5}
    rows, later = now.rows(day), now.rows(day)
    day.epoch(rows, later=later, seal=True, behind=behind, thrown_away=rng.choice([0, 1]))
    while day.journal.seal is not None:
        behind = {place for place in behind if rng.random() < 0.5}
        day.epoch(
            [],
            behind=behind,
            forced_bytes=rng.choice([0, 0, 10**9]),
            **moved_or_lost(day, rng),
        )


class Clock:
    """Time that goes on, and rows that come in its disorder."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now_s = 0.0
        self.values = rng.choice([1, 1, 2])
        self.silent = rng.random() < 0.3

    def rows(self, day: TreeSlots) -> list[tuple[str, int, dict[str, Any]]]:
        """New rows, as many as leave a session's results few enough to compare."""
        rng, rows = self.rng, []
        topics = day.query.topics
        begun = day.bounds[max(len(day.bounds) - 2, 0) if day.carry else -1]
        known = sum(map(len, day.kafka.values())) - sum(begun.values())
        for _ in range(rng.choice([0, 2, 4, 8])):
            if known + len(rows) >= 9 * len(topics):
                break
            self.now_s += rng.choice((0, 0.5, 2, 9))
            at = self.now_s - rng.choice((0, 0, 0, 1, 3, 30))
            at += 900 if rng.random() < 0.02 else 0
            partition = rng.randrange(day.partitions)
            if self.silent and partition and self.now_s > 10:
                continue
            value: dict[str, Any] = {name: rng.randrange(self.values) for name in FIELDS}
            value["at"] = (BEGIN + timedelta(seconds=at)).isoformat()
            rows.append((rng.choice(topics), partition, value))
        return rows


@explored(5, 12, st.integers(0, 2**32), st.integers(0, 2**32))
def test_days_with_windows_are_exact(number: int, seed: int) -> None:
    day = run(number, seed)
    expired = sum(
        totals.expired_rows
        for entry in day.entries
        if entry.kind == "epoch"
        for totals in entry.slots
    )
    event(f"cuts {bool(day.cuts)}, back {bool(day.voided)}")
    event(f"restored {bool(day.restored)}, expired {bool(expired)}")


@explored(5, 12, st.integers(0, 2**32), st.integers(0, 2**32), soak=500)
def test_days_that_leave_lost_state_to_cleanup_are_exact(number: int, seed: int) -> None:
    day = run(number, seed, defers=True)
    event(f"cuts {bool(day.cuts)}, deferred {bool(day.deferred)}, back {bool(day.voided)}")


def test_a_band_that_does_not_hold_zero_reaches_over_midnight() -> None:
    """No row to come joins a `b` that is younger than the watermark by less than a minute; the `a`
    that is carried does."""
    streams = "".join(
        f"[streams.{name}]\nfields = {{ k = 'int', at = 'timestamp' }}\ntime = 'at'\n"
        for name in "ab"
    )
    join = "[join]\ninputs = ['a', 'b']\non = ['k']\nwithin = { b = '60 seconds .. 600 seconds' }"
    query = query_of(parse_toml(f"{streams}{join}\n[results]\ncolumns = []", Path("q.toml")))

    def row(stream: str, second: float) -> tuple[str, int, dict[str, Any]]:
        at = (BEGIN + timedelta(seconds=second)).isoformat()
        return stream, 0, {"k": 1, "at": at}

    slice_s = slice_us(query.spans[0]) // 10**6 if query.spans[0] else 0
    edge = -int(BEGIN.timestamp()) % slice_s
    for lost in (frozenset[int](), frozenset({0})):
        with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
            day = TreeSlots(query, root, slots=1, partitions=1, carry=True)
            day.epoch([row("a", edge - 100), row("b", edge - 100)])
            day.epoch([row("a", edge - 40), row("b", edge - 40)])
            day.epoch([], later=[row("b", edge - 10)], seal=True)
            day.epoch([], lost=lost)
            day.epoch([], seal=True)
            for session in day.journal.sealed:
                assert day.results[session] == day.expected(session)
                assert len(day.results[session]) == 1


def written_and_read_again() -> TreeSlots:
    """A `b` that joins a spilled `a` expires, is written, and is in no memory when its slot is
    lost."""
    streams = "".join(
        f"[streams.{name}]\nfields = {{ k = 'int', at = 'timestamp' }}\ntime = 'at'\n"
        for name in "ab"
    )
    join = "[join]\ninputs = ['a', 'b']\non = ['k']\nwindow = '60 seconds'"
    query = query_of(parse_toml(f"{streams}{join}\n[results]\ncolumns = []", Path("q.toml")))

    def row(stream: str, second: float) -> tuple[str, int, dict[str, Any]]:
        at = (BEGIN + timedelta(seconds=second)).isoformat()
        return stream, 0, {"k": 1, "at": at}

    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        day = TreeSlots(query, root, slots=1, partitions=1, most_restored_rows=0)
        day.epoch([row("a", -400)], forced_bytes=10**9)
        day.epoch([row("b", -370)])
        day.epoch([row("a", -100), row("b", -100)])
        day.epoch([])
        day.epoch([row("b", -90)], lost=frozenset({0}))
        day.epoch([], seal=True)
        day.results[DAYS[0]] += day.clean(DAYS[0])
        return day


def test_what_had_expired_when_its_slot_was_lost_is_joined_once() -> None:
    day = written_and_read_again()
    assert sum(t.expired_rows for e in day.entries if e.kind == "epoch" for t in e.slots) == 1
    assert len(day.deferred) > 0
    assert day.results[DAYS[0]] == day.expected(DAYS[0])
    assert sum(day.results[DAYS[0]].values()) == 3
    none = mock.patch(
        "spillway.protocol.deferral.expired_before", return_value=windows.BEGINNING_US
    )
    # Without it the result would come twice. What the slot had in memory says so before that.
    with none, pytest.raises(InputChanged, match=r"had 2 rows in memory .* gave 3"):
        written_and_read_again()


@pytest.mark.parametrize("part", parts(2, 2))
def test_the_same_days_with_windows_are_exact(part: int) -> None:
    """Always the same ones, in parts for as many processes."""
    for number in range(20 * part, 20 * (part + 1)):
        try:
            run(number, 7 * number + 1)
        except AssertionError as error:
            raise AssertionError(f"run({number}, {7 * number + 1})") from error


@pytest.mark.soak
def test_many_days_with_windows_are_exact() -> None:
    first = random.SystemRandom().randrange(2**40)
    for n in range(int(os.environ.get("SPILLWAY_SOAK_WINDOWS", "50000"))):
        try:
            run(first + n, first - n)
        except AssertionError as error:
            raise AssertionError(f"run({first + n}, {first - n})") from error


def nothing_needed(spec: Any, groups: Any, reach: Any, gone: Any) -> list[list[Any]]:
    return [[] for _ in gone]


def early(spec: Any, input_: int, slice_: int | None, watermark_us: int) -> bool:
    return is_over(spec, input_, slice_, watermark_us + 4_000_000)


def mixed(shape: Any, runs: Any, under_way: Any, next_run: int) -> Any:
    return due_merges(shape, [replace(run, slice=None) for run in runs], under_way, next_run)


def alone(*args: Any, need_old: bool = False, **named: Any) -> Any:
    return join_batches(*args, **named)


def by_the_seal(state: Any, carried: Any) -> int:
    return int(state.session.progress.watermark_us - state.genesis.event_time.kept_us)


def going_on(session: Any) -> int | None:
    mark = None if session.progress is None else session.progress.watermark_us
    return None if mark == windows.BEGINNING_US else mark


def only_the_last(state: Any) -> Carried | None:
    found = _carried(state)
    return found and found.model_copy(update={"since": state.epoch})


def nothing_written(step: Any, session: str) -> Any:
    return np.zeros(len(step.work), dtype=np.bool_)


def all_that_came(spec: Any, session: Any, watermark_us: int, *, new: bool) -> Any:
    """What came back has no part yet, and nothing else has none while it is new."""
    if new and not session.installed and not any(session.parts):
        return [[] for _ in spec.inputs]
    return take_expired(spec, session, watermark_us, new=new)


FIRST = {
    "the first rows of a session are never late": 171,
    "rows expire before those that are carried come": 26,
    "what had not expired at the seal is carried": 26,
    "a lost slot gets no carried rows again": 48,
    "a lost slot gets carried rows that were spilled": 25,
    "a generation comes back though rows that it joins have expired": 12,
    "what has expired comes back": 72,
    "runs of two slices are merged": 16,
    "a row written early is a generation of its own": 16,
}
"""The day that shows a plant, where that took long from 0 on."""
PLANTS: dict[str, tuple[str, Any]] = {
    "the first rows of a session are never late": (
        "spillway.protocol.plan.carries",
        lambda state: False,
    ),
    "carried rows join each other again": ("spillway.engine.probe.join_batches", alone),
    "rows expire before those that are carried come": (
        "spillway.protocol.plan.expired_by",
        going_on,
    ),
    "what had not expired at the seal is carried": (
        "spillway.protocol.recovery.least_carried_us",
        by_the_seal,
    ),
    "a lost slot gets no carried rows again": (
        "spillway.protocol.recovery._cut_with",
        lambda session, carried: [Prefix(0, 0)],
    ),
    "a lost slot gets carried rows that were spilled": (
        "spillway.protocol.recovery._cut_with",
        lambda session, carried: [],
    ),
    "of what is carried too little is read": ("spillway.protocol.state._carried", only_the_last),
    "expired rows are never needed": ("spillway.engine.step.still_needed", nothing_needed),
    "a generation comes back though rows that it joins have expired": (
        "spillway.engine.step._Step._wrote_expired",
        nothing_written,
    ),
    "what has expired comes back": ("spillway.engine.step.take_expired", all_that_came),
    "a slice leaves before its time": ("spillway.engine.expiry.is_over", early),
    "runs of two slices are merged": ("spillway.engine.upkeep.due_merges", mixed),
    "a row written early is a generation of its own": (
        "tests.property.tree_slots.generations_of",
        lambda entries, sealed, windowed: generations_of(entries, sealed, windowed=False),
    ),
    "restored by the last watermark": (
        "spillway.protocol.recovery.expired_before",
        lambda session, epochs: next((w for _, w in watermarks_of(session, epochs)[::-1]), 0),
    ),
    "restored whatever had expired": (
        "spillway.protocol.recovery.expired_before",
        lambda session, epochs: windows.BEGINNING_US,
    ),
    "restored whatever was late": (
        "spillway.protocol.recovery.watermarks_of",
        lambda session, epochs: (),
    ),
    "a watermark before the journal has it": (
        "spillway.protocol.plan.watermarks",
        lambda sessions: {d: us + 3_000_000 for d, us in journaled(sessions).items()},
    ),
}


@pytest.mark.server
@pytest.mark.parametrize("plant", PLANTS)
def test_a_rule_left_out_is_noticed(plant: str) -> None:
    where, what = PLANTS[plant]
    with mock.patch(where, what):
        for number in range(FIRST.get(plant, 0), 400):
            try:
                run(number, 7 * number + 1)
            except (AssertionError, InputChanged, ValueError):
                return
    pytest.fail("nobody noticed")


DEFERRED: dict[str, tuple[str, Any]] = {
    "rows that were late are read again, too": (
        "spillway.protocol.deferral.watermarks_of",
        lambda session, epochs: (),
    ),
    "what was deferred needs no expired row": (
        "spillway.protocol.deferral._greatest_us",
        lambda session: None,
    ),
    "a row written early is of a generation that was spilled": (
        "tests.property.tree_slots.generations_of",
        lambda entries, sealed, windowed: generations_of(
            [e.model_copy(update={"deferred": []}) if e.kind == "epoch" else e for e in entries],
            sealed,
            windowed=windowed,
        ),
    ),
}


@pytest.mark.server
@pytest.mark.parametrize("plant", DEFERRED)
def test_a_rule_of_deferring_left_out_is_noticed(plant: str) -> None:
    with mock.patch(*DEFERRED[plant]):
        for number in range(400):
            try:
                run(number, 7 * number + 3, defers=True)
            except (AssertionError, InputChanged):
                return
    pytest.fail("nobody noticed")


def test_a_stream_has_one_time_for_all_its_readings() -> None:
    """A message has one verdict: late for a join with a window is late for one without."""
    several = 0
    for number in range(300):
        query = query_for(number)
        times: dict[str, set[str | None]] = {}
        for leaf in query.tree.leaves:
            times.setdefault(leaf.stream, set()).add(query.time(leaf.name))
        assert all(len(found) == 1 for found in times.values()), number
        several += len(query.tree.leaves) > len(times)
    assert several > 10
