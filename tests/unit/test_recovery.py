"""From where lost slots are read again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spillway.protocol.recovery import restore_of
from spillway.protocol.state import JournalState, Mark, OpenSession, begin
from spillway_schemas.journal import Prefix
from tests.protocol_entries import genesis

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
