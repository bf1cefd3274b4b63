"""From where lost slots are read again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spillway.protocol.recovery import carry_of, history_wanted, restore_of
from spillway.protocol.snapshot import snapshot_of, state_of
from spillway.protocol.state import (
    JournalState,
    Mark,
    OpenSession,
    begin,
    expired_by,
    fold,
    replay,
    with_times,
)
from spillway_schemas.journal import Carried, Claim, Epoch, EventTime, Genesis, Prefix
from spillway_schemas.windows import BEGINNING_US
from tests.carrying import Carrying
from tests.protocol_entries import DAY, NEXT, claim, count, cut, ends, epoch, genesis

ALL, LEFT, RIGHT = Prefix(0, 0), Prefix(1, 0), Prefix(1, 1)


def read_from(last_cuts: dict[Prefix, int], groups: list[Prefix]) -> int:
    """The epoch from whose end on a slot with these groups is read again; -1: from the start."""
    begun = begin(genesis())
    start = {"a": [0]}
    state: JournalState = replace(
        begun,
        epoch=9,
        end={"a": [90]},
        groups=tuple((each, 0) for each in groups),
        manifests={0: "m"},
        sessions=(
            OpenSession("2026-01-05", start, -1, {r: (-1, e) for r, e in last_cuts.items()}),
        ),
        marks={epoch: Mark({"a": [10 * epoch]}, {}) for epoch in range(-1, 10)},
    )
    found = restore_of(state, [0])
    assert found is not None
    return found.read_from["a"][0] // 10


@pytest.mark.parametrize(
    ("last_cuts", "groups", "epoch"),
    [
        ({}, [LEFT, RIGHT], -1),
        ({LEFT: 4}, [LEFT], 4),
        ({LEFT: 4}, [LEFT, RIGHT], -1),
        ({LEFT: 4, RIGHT: 7}, [LEFT, RIGHT], 4),
        ({LEFT: 4, RIGHT: 7}, [RIGHT], 7),
        ({ALL: 2, LEFT: 4, RIGHT: 7}, [LEFT, RIGHT], 4),
        ({ALL: 8, LEFT: 4, RIGHT: 7}, [LEFT, RIGHT], 8),
        ({ALL: 2, LEFT: 4}, [LEFT, RIGHT], 2),
    ],
)
def test_no_more_is_read_than_since_the_last_cut_of_each_group(
    last_cuts: dict[Prefix, int], groups: list[Prefix], epoch: int
) -> None:
    """Of cuts that nest the last one counts; of groups the one that was cut first."""
    assert read_from(last_cuts, groups) == epoch


def test_of_what_had_expired_nothing_is_read() -> None:
    """Times go on by 100 us an epoch, and rows are kept for 100 us behind the watermark."""
    rules = EventTime(lateness_us=0, ahead_us=10**9, topics=["a", "b"], kept_us=100)
    entries: list[Genesis | Claim | Epoch] = [genesis(event_time=rules), claim(1, 1)]
    state = replay(entries)
    for n in range(10):
        read = [
            count(topic, partition, 4, digest=n).model_copy(update={"greatest_us": 100 * n})
            for topic, partition in (("a", 0), ("a", 1), ("b", 0))
        ]
        at = 4 * (n + 1)
        assert state is not None
        entry = with_times(state, epoch(n + 2, n, ends(at, at, at), read=read))
        entries.append(entry)
        state = fold(state, entry)
    assert state is not None
    history = [each for each in entries if isinstance(each, Epoch)]
    found = restore_of(state, [0, 1], history)
    assert found is not None
    # The last epoch's rows were judged by 800 us, so what is older than 700 us had expired.
    assert found.sessions[0].expired_by_us == 800
    assert found.read_from == ends(28, 28, 28)
    assert [(c.rows, c.digest) for c in found.expected] == [(12, 7 + 8 + 9)] * 3
    # What never expires is read from the start.
    never = replace(state, genesis=genesis(event_time=rules.model_copy(update={"kept_us": None})))
    whole = restore_of(never, [0, 1], history)
    assert whole is not None
    assert whole.read_from == ends(0, 0, 0)


def test_a_session_that_carries_rows_begins_with_the_time_of_the_one_before() -> None:
    day = Carrying()
    before, after = day.state.sessions
    assert before.progress == after.progress
    assert after.progress is not None
    assert after.progress.watermark_us == 500
    # Its first rows were judged by 400 us: what is older than 300 us had expired, up to epoch 2.
    assert after.carried == Carried(since=2, expired_by_us=400)
    # Rows of the session before may still come: nothing of the next one expires.
    assert (expired_by(before), expired_by(after)) == (500, None)
    # The rows of epoch 3 were judged by the watermark after epoch 2.
    assert day.history[5].watermarks == {DAY: 500, NEXT: 500}
    assert carry_of(day.state, day.history) is None
    assert history_wanted(day.state, ()) is None


def test_what_has_not_expired_is_read_when_the_session_before_is_sealed() -> None:
    day = Carrying()
    day.seals()
    assert history_wanted(day.state, ()) == 1
    found = carry_of(day.state, day.history)
    assert found is not None
    [mine] = found.sessions
    assert (found.read_from, found.read_to) == (ends(12, 12, 12), ends(24, 24, 24))
    assert (mine.session, mine.start, mine.end) == (NEXT, ends(12, 12, 12), ends(22, 24, 24))
    assert (mine.least_us, found.slots) == (300, {0, 1})
    assert mine.watermarks[0] == (ends(12, 12, 12), 200)
    assert [(c.rows, c.digest) for c in found.expected] == [
        (12, 3 + 4 + 5),
        (12, 3 + 4 + 5 + 6),
        (12, 3 + 4 + 5),
    ]
    with pytest.raises(ValueError, match="needs all epochs from 2 to 6"):
        carry_of(day.state, day.history[3:])
    day.epoch(ends(24, 24, 24), session=NEXT)
    assert day.state.session.carried == Carried(since=2, expired_by_us=400, epoch=7)
    assert carry_of(day.state, day.history) is None
    # The last epoch expired nothing more; the next one does.
    assert expired_by(day.state.session) == 500


def test_a_lost_slot_gets_carried_rows_until_they_were_spilled_or_have_expired() -> None:
    day = Carrying()
    day.seals(cuts=[cut(0, 6, session=NEXT)])
    day.epoch(ends(24, 24, 24), session=NEXT, cuts=[cut(1, 7, session=NEXT)])
    found = restore_of(day.state, [0, 1], day.history)
    assert found is not None
    own, carried = found.sessions
    assert (own.start, own.interval) == (ends(22, 24, 24), None)
    assert (carried.start, carried.end) == (ends(12, 12, 12), ends(22, 24, 24))
    # They came between the session's first mark (epoch 6) and its second.
    assert carried.interval == 1
    # What was spilled before they came holds some, what was spilled with them does not.
    assert [(each.range, each.start) for each in carried.cuts] == [(Prefix(2, 1), carried.end)]
    # Nothing had expired when they came, but rows that were not carried.
    assert own.expired_by_us == carried.expired_by_us == BEGINNING_US
    assert (own.least_us, carried.least_us) == (BEGINNING_US, 300)
    assert found.read_from == ends(12, 12, 12)
    for at in range(28, 40, 4):
        day.epoch(ends(at, at, at), session=NEXT)
    later = restore_of(day.state, [0, 1], day.history)
    assert later is not None
    # By 900 us, whatever is older than 800 us has expired.
    assert [each.interval for each in later.sessions] == [None]
    assert later.read_from == ends(24, 24, 24)


def test_with_everything_spilled_nothing_carried_is_read() -> None:
    day = Carrying()
    day.seals()
    day.epoch(ends(24, 24, 24), session=NEXT, cuts=[cut(n, 7, session=NEXT) for n in range(4)])
    found = restore_of(day.state, [0, 1], day.history)
    assert found is not None
    assert [each.interval for each in found.sessions] == [None]


def test_the_time_of_a_next_session_counts_for_both() -> None:
    """A row of the next session is the newest of its partition, and of the whole stream."""
    day = Carrying()
    newest = count("a", 0, 1).model_copy(update={"next_greatest_us": 900})
    n = day.state.epoch + 1
    entry = epoch(n + 2, n, ends(25, 22, 24), read=[newest])
    day.entries.append(with_times(day.state, entry))
    assert day.state.reached[-1] == (n, 900)
    for session in day.state.sessions:
        assert session.progress is not None
        assert session.progress.heard["a", 0].greatest_us == 900


@pytest.mark.server
def test_checkpoints_are_few_however_long_the_watermark_stands_still() -> None:
    day = Carrying()
    day.entries = day.entries[:2]
    for n in range(300):
        times = [count("a", 0, 1).model_copy(update={"greatest_us": 100 * n})]
        entry = epoch(n + 2, n, ends(n + 1, 0, 0), read=times)
        day.entries.append(with_times(day.state, entry))
    state = day.state
    assert len(state.reached) <= 64
    assert len(state.marks) <= 66
    assert state.reached[0] == (-1, BEGINNING_US)
    assert state.reached == tuple(sorted(state.reached))
    assert all(time_us == 100 * n for n, time_us in state.reached[1:])


def test_a_snapshot_has_what_is_carried() -> None:
    day = Carrying()
    assert state_of(snapshot_of(day.state, "")) == day.state
    day.seals()
    assert state_of(snapshot_of(day.state, "")) == day.state
