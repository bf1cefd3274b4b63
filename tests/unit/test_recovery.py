"""From where lost slots are read again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spillway.protocol.recovery import restore_of
from spillway.protocol.state import (
    JournalState,
    Mark,
    OpenSession,
    begin,
    fold,
    replay,
    with_times,
)
from spillway_schemas.journal import Claim, Epoch, EventTime, Genesis, Prefix
from tests.protocol_entries import claim, count, ends, epoch, genesis

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
        sessions=(OpenSession("2026-01-05", start, -1, last_cuts),),
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
