"""What a cleanup has before it, told without doing it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.cleanup import ahead as module
from spillway.cleanup.ahead import CleanupAhead, ahead_lines, beyond_limit, cores_of, look_ahead
from spillway.cleanup.deferred import TopicSource
from spillway.cleanup.job import CleanupProgress, run_cleanup
from spillway.cleanup.plan import CleanupRefused, doubtful_topics
from spillway.decode import StreamPlan
from spillway.engine.join.hashing import xxhash64
from spillway.engine.spill import counting
from spillway.engine.spill.cleanup import clean_ranges
from spillway.engine.spill.counting import missing_of, unmatched_of
from spillway.engine.spill.source import SpillIndex, SpillSource
from spillway.engine.spill.spillfile import row_groups
from spillway.protocol.recovery import Restore
from spillway.stream.messages import MessageSource
from spillway.tables import SessionEvent
from spillway_schemas.journal import Prefix
from spillway_schemas.losses import AcceptedLoss, LostRange
from tests.integration.spilled_day import (
    DAY,
    NEXT,
    OUTER,
    SPEC,
    Here,
    SpilledDay,
    brute_force,
    copied_day,
    make_day,
    random_rows,
    results_of,
)
from tests.property.outer_reference import outer_joined
from tests.protocol_entries import sealed


@given(
    rows=st.lists(st.tuples(*[st.integers(0, n) for n in (3, 3, 2)]), max_size=30),
    inputs=st.integers(1, 3),
    most=st.sampled_from([0.0, counting.MOST]),
)
def test_missing_results_against_all_combinations(
    rows: list[tuple[int, int, int]], inputs: int, most: float
) -> None:
    rows = [(hash_, epoch, i % inputs) for hash_, epoch, i in rows]
    expected = sum(
        len({epoch for _, epoch, _ in some}) > 1 and len({hash_ for hash_, _, _ in some}) == 1
        for some in itertools.product(
            *([row for row in rows if row[2] == i] for i in range(inputs))
        )
    )
    hashes, epochs, of = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "MOST", most)  # as Python's integers, too
        assert missing_of(hashes.astype(np.uint64), epochs, of, range(inputs)) == expected


def test_a_hot_key_is_counted_beyond_64_bits() -> None:
    n = 3_000_000
    inputs = np.repeat(np.arange(3), n)
    epochs = np.tile(np.arange(n) % 2, 3)
    found = missing_of(np.zeros(3 * n, np.uint64), epochs, inputs, range(3))
    assert found == n**3 - 2 * (n // 2) ** 3 > 2**63


def look(day: SpilledDay, cores: int | None = 2) -> CleanupAhead:
    return look_ahead(day.warehouse(), SPEC, DAY, fingerprint="", cores=cores)


@pytest.fixture
def day(tmp_path: Path) -> SpilledDay:
    return copied_day(str(tmp_path / "w"), 3, 300, 40, depth=3)


def test_what_is_told_is_what_cleanup_then_does(day: SpilledDay) -> None:
    late = sum(n for key, n in brute_force(day.rows).items() if key[0] == "cleanup")
    before = day.warehouse().table("results").version
    found = look(day)
    assert day.warehouse().table("results").version == before
    assert (found.missing, found.spilled_rows) == (late, len(day.rows))
    assert (found.ranges_left, found.ranges_total) == (8, 8)
    assert found.groups <= found.generations == day.sealed.generations
    assert found.spilled_bytes == sum(f.bytes for f in day.warehouse().files("spill"))
    assert found.seconds == pytest.approx(0.0, abs=0.1), (
        "little is done in the command's own process"
    )
    told: list[CleanupProgress] = []

    def stop_half_way(progress: CleanupProgress) -> None:
        if progress.ranges_done >= 4:
            told.append(progress)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_cleanup(Here, day.warehouse(), SPEC, DAY, on_progress=stop_half_way, task_bytes=1)
    rest = look(day)
    assert rest.ranges_left == 8 - told[0].ranges_done
    assert rest.missing == late - told[0].rows
    assert (found.added, rest.added) == (0, told[0].rows) != (0, 0)
    # Whoever looks again is told the same of the limit.
    every = found.run_time + late
    for each in (found, rest):
        assert beyond_limit(each, every) == ""
        assert "more than results.max_per_session" in beyond_limit(each, every - 1)
    assert f"and {rest.added:,} that cleanup has added that is more" in beyond_limit(rest, 1)
    run_cleanup(Here, day.warehouse(), SPEC, DAY)
    last = look(day)
    assert (last.cleaned, last.ranges_left, last.missing, last.seconds) == (True, 0, 0, 0.0)
    assert ahead_lines(last) == [("to do", "nothing: the session is cleaned")]
    assert beyond_limit(last, 1) == ""


@pytest.mark.parametrize(
    ("seed", "rows", "keys", "depth"), [(1, 1, 1, 3), (2, 12, 3, 6), (3, 60, 9, 1), (4, 90, 60, 5)]
)
def test_groups_and_generations_are_those_in_which_rows_lie(
    tmp_path: Path, seed: int, rows: int, keys: int, depth: int
) -> None:
    """A generation is a group with rows of one epoch. What the next session cuts is its own.

    Kills: groups counted once for each cut, or with those of another session; the reverse.
    """
    every = random_rows(seed, rows, keys, 4)
    of_next = [Prefix(depth, value) for value in range(1 << depth)]
    day = make_day(str(tmp_path / "w"), every, depth=depth, of_next=of_next)
    generations = set()
    for _, key, epoch in every:
        [hash_] = xxhash64([pa.array([key])])
        generations.add((f"{int(hash_):064b}"[:depth], epoch))
    groups = {group for group, _ in generations}
    found = look(day)
    assert (found.groups, found.generations) == (len(groups), len(generations))
    shown = dict(ahead_lines(found))
    assert shown["groups that were spilled"] == str(len(groups))
    assert shown["generations"] == str(len(generations))


@pytest.mark.parametrize("piece_bytes", [1.0, 3_000.0, 1e9])
@pytest.mark.parametrize("which", [slice(None), slice(2, 7), slice(0, 8, 3)])
def test_pieces_of_any_size_count_the_same(
    day: SpilledDay, piece_bytes: float, which: slice
) -> None:
    work = module.work_of(day.warehouse(), DAY, "")
    place = day.warehouse().folder("spill")
    index = SpillIndex.of([(file, row_groups(place, file, 0)) for file in work.files])
    source = SpillSource(place, index, SPEC)
    ranges = day.sealed.ranges[which]
    found = counting.results_to_add(source, ranges, piece_bytes=piece_bytes)
    made = sum(batch.table.num_rows for _, batch in clean_ranges(source, ranges))
    assert found == (made, 0)
    assert made > 0


@pytest.mark.parametrize("doubtful", [frozenset(), {0}, {1}, {2}, {0, 2}])
def test_what_may_be_lost_is_neither_given_nor_counted(
    tmp_path: Path, doubtful: frozenset[int]
) -> None:
    day = copied_day(str(tmp_path), 3, 200, 90, depth=3, outer=True)
    place = day.warehouse().folder("spill")
    files = module.work_of(day.warehouse(), DAY, "").files
    index = SpillIndex.of([(file, row_groups(place, file, 0)) for file in files])
    source = SpillSource(place, index, OUTER, doubtful=frozenset(doubtful))
    given = pa.concat_tables(b.table for _, b in clean_ranges(source, day.sealed.ranges))
    offsets = [given[f"{each.name}_offset"] for each in OUTER.inputs]
    for i in doubtful:
        assert offsets[i].null_count == 0
    lacking = sum(None in row for row in zip(*(each.to_pylist() for each in offsets), strict=True))
    found = counting.results_to_add(source, day.sealed.ranges)
    assert found == (given.num_rows - lacking, lacking)
    assert bool(lacking) == (doubtful != {0, 2})


def test_plan_and_cleanup_know_which_topics_have_lost_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = copied_day(str(tmp_path), 3, 200, 90, depth=3, outer=True)
    monkeypatch.setattr("spillway.cleanup.work.doubtful_topics", lambda *_: frozenset({"stock"}))
    streams = tuple(
        StreamPlan(each.name, each.name, i, each.payload, each.payload)
        for i, each in enumerate(OUTER.inputs)
    )
    ahead = look_ahead(day.warehouse(), OUTER, DAY, fingerprint="", cores=2, streams=streams)
    source = TopicSource(streams, MessageSource("h:1", {}))
    cleaned = run_cleanup(Here, day.warehouse(), OUTER, DAY, source=source)
    assert cleaned.cleanup == (ahead.missing or 0) + (ahead.unmatched or 0)
    every = brute_force(day.rows, OUTER).items()
    assert results_of(day.warehouse()) == {r: n for r, n in every if r[2] is not None}


def test_who_does_not_say_what_an_outer_join_reads_is_refused_where_rows_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = copied_day(str(tmp_path / "outer"), 3, 200, 90, depth=3, outer=True)
    inner = copied_day(str(tmp_path / "inner"), 3, 200, 90, depth=3)
    monkeypatch.setattr("spillway.cleanup.work.doubtful_topics", lambda *_: frozenset({"stock"}))
    refused = pytest.raises(CleanupRefused, match="rows of stock are lost, and nobody has said")
    with refused:
        run_cleanup(Here, outer.warehouse(), OUTER, DAY)
    with refused:
        look_ahead(outer.warehouse(), OUTER, DAY, fingerprint="", cores=2)
    ran_before = [each for each in brute_force(outer.rows, OUTER) if each[0] != "cleanup"]
    assert set(results_of(outer.warehouse())) == set(ran_before)
    # A result of an inner join that there is has all of its rows.
    assert look_ahead(inner.warehouse(), SPEC, DAY, fingerprint="", cores=2).missing
    run_cleanup(Here, inner.warehouse(), SPEC, DAY)
    assert results_of(inner.warehouse()) == brute_force(inner.rows, SPEC)


def test_what_was_read_without_lost_rows_stays_doubtful_when_the_loss_is_taken_back(
    tmp_path: Path,
) -> None:
    """Cleanup reads only once what slots had lost, and may go on after that."""
    w = copied_day(str(tmp_path), 3, 200, 90, depth=3, outer=True).warehouse()
    streams = tuple(
        StreamPlan(each.name, each.name, i, each.payload, each.payload)
        for i, each in enumerate(OUTER.inputs)
    )
    first, middle, last = streams
    again = Restore(frozenset(), {first.topic: [5]}, {first.topic: [9]}, (), ())
    work = replace(module.work_of(w, DAY, ""), again=again)

    def accept(*ranges: LostRange) -> None:
        loss = AcceptedLoss(ranges=list(ranges), reason="", by="").model_dump()
        w.sessions.append(SessionEvent(session=DAY, event="accepted", details={"loss": loss}))

    accept(
        LostRange(topic=first.topic, partition=0, begin=0, end=6),
        LostRange(topic=last.topic, partition=0, begin=0, end=9),  # its rows are in files
    )
    accept()
    assert w.sessions.accepted_loss(DAY) is None
    assert work.doubtful(w, OUTER.root, streams) == frozenset(), "nothing was read yet"
    w.apply_deferred(DAY, [])
    assert work.doubtful(w, OUTER.root, streams) == {first.index}
    assert work.doubtful(w, SPEC.root, streams) == frozenset()
    # Nor is it known that rows had been read whole before anybody accepted that they are lost.
    whole = Restore(frozenset(), {middle.topic: [5]}, {middle.topic: [9]}, (), ())
    work = replace(work, again=whole)
    assert work.doubtful(w, OUTER.root, streams) == frozenset()
    accept(LostRange(topic=middle.topic, partition=0, begin=0, end=6))
    assert work.doubtful(w, OUTER.root, streams) == {middle.index}


def test_the_topics_that_have_rows_in_no_file() -> None:
    lost = LostRange(topic="a", partition=0, begin=0, end=4)
    loss = AcceptedLoss(ranges=[lost], reason="", by="")
    again = Restore(frozenset(), {}, {}, (), (), frozenset({("b", 1)}))
    sealed_ = sealed({"a": [9], "b": [9, 9]}, 1)
    while_open = sealed_.model_copy(update={"lost_to": {"a": [4]}})
    assert doubtful_topics(sealed_, None, None) == frozenset()
    assert doubtful_topics(sealed_, loss, None) == frozenset(), "its rows were spilled"
    assert doubtful_topics(sealed_, loss, again) == {"b"}
    assert doubtful_topics(while_open, loss, again) == {"a", "b"}


def test_unmatched_results_are_told_apart_from_missing_ones(tmp_path: Path) -> None:
    day = copied_day(str(tmp_path), 3, 200, 90, depth=3, outer=True)
    ahead = look_ahead(day.warehouse(), OUTER, DAY, fingerprint="", cores=2)
    expected = brute_force(day.rows, OUTER)
    added = {result: n for result, n in expected.items() if result[0] == "cleanup"}
    lacking = sum(n for result, n in added.items() if None in result)
    assert (ahead.missing, ahead.unmatched) == (sum(added.values()) - lacking, lacking)
    assert ahead.missing
    assert lacking
    assert dict(ahead_lines(ahead))["unmatched results"] == f"{lacking:,}"
    both = ahead.run_time + sum(added.values())
    assert not beyond_limit(ahead, both)
    assert "more than results.max_per_session" in beyond_limit(ahead, both - 1)
    cleaned = run_cleanup(Here, day.warehouse(), OUTER, DAY)
    assert cleaned.cleanup == sum(added.values())
    last = look_ahead(day.warehouse(), OUTER, DAY, fingerprint="", cores=2)
    assert (last.missing, last.unmatched) == (0, 0)


@given(
    rows=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), max_size=20),
    optional=st.sets(st.integers(0, 2)),
    most=st.sampled_from([0.0, counting.MOST]),
)
def test_unmatched_results_are_counted_as_the_reference_has_them(
    rows: list[tuple[int, int]], optional: set[int], most: float
) -> None:
    inputs = tuple(replace(each, optional=i in optional) for i, each in enumerate(SPEC.inputs))
    join = replace(SPEC.root, inputs=inputs)
    sides = [[(hash_, n) for n, (hash_, of) in enumerate(rows) if of == i] for i in range(3)]
    expected = outer_joined(sides, optional)
    hashes, of = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "MOST", most)  # as Python's integers, too
        found = unmatched_of(hashes.astype(np.uint64), of, join)
    assert found == sum(n for result, n in expected.items() if None in result)


def test_a_session_that_is_open_has_no_plan(day: SpilledDay) -> None:
    with pytest.raises(CleanupRefused, match=f"{NEXT} is not sealed"):
        look_ahead(day.warehouse(), SPEC, NEXT, fingerprint="", cores=2)


def test_it_is_said_where_cleanup_passes_the_limit_of_intake(day: SpilledDay) -> None:
    found = look(day)
    assert found.run_time == day.sealed.results
    known = replace(found, run_time=1_000, missing=500)
    assert beyond_limit(known, 0) == beyond_limit(known, 1_500) == ""
    assert beyond_limit(replace(known, missing=None), 10) == ""
    told = beyond_limit(known, 1_499)
    assert told.startswith("with 1,000 at run time that is more than results.max_per_session (1,49")
    assert "so cleanup gives all" in told


def test_without_spills_nothing_is_to_do(day: SpilledDay) -> None:
    nothing = replace(look(day), ranges_left=0)
    assert ahead_lines(nothing) == [("to do", "nothing was spilled, so nothing is missing")]
    takes = [dict(ahead_lines(replace(look(day), seconds=s)))["takes about"] for s in (0.0, 1.0)]
    assert takes == ["less than a second", "1.0 s"]


def test_rows_that_only_kafka_has_are_told_and_nothing_is_guessed(
    day: SpilledDay, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = module.work_of(day.warehouse(), DAY, "")
    lost = replace(work, again=object())  # type: ignore[arg-type]
    monkeypatch.setattr(module, "rows_to_read", lambda _: 1234)
    monkeypatch.setattr(module, "work_of", lambda *_: lost)
    found = look(day)
    assert (found.rows_in_kafka, found.missing, found.seconds) == (1234, None, None)
    lines = dict(ahead_lines(found))
    assert lines["rows to read again in Kafka"] == "1,234"
    assert lines["missing results"] == "known after cleanup"
    assert "takes about" not in lines


@pytest.mark.parametrize(
    ("rows", "missing", "cores", "seconds"),
    [
        (25_567_817, 44_632_420, 2, 33.1),
        (10_000_000, 0, 4, 3.8),
        (1_000_000, 0, 1, 0.9),
        (1, 1, None, None),
        (1, None, 2, None),
        (0, 0, 2, 0.0),
    ],
)
def test_the_time_it_takes(
    rows: int, missing: int | None, cores: int | None, seconds: float | None
) -> None:
    assert module._seconds(rows, missing, cores) == seconds


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local[3]", 3),
        ("local[3,4]", 3),
        ("local-cluster[2,3,1024]", 6),
        ("spark://host:7077", None),
        ("k8s://https://host", None),
    ],
)
def test_the_cores_of_a_master(master: str, cores: int | None) -> None:
    assert cores_of(master) == cores


def test_all_cores_of_this_machine() -> None:
    assert (cores_of("local[*]") or 0) >= 1
