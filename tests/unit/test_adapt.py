"""Commands that change the assignment: what is obeyed, what is refused and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from spillway.engine.groups import GroupMap, relocations
from spillway.policy.slots import rearranged
from spillway.protocol.adapt import DEEPEST, adapt, carried_out, moved
from spillway.protocol.plan import plan_epoch
from spillway.protocol.state import JournalState, begin, fold
from spillway_schemas.commands import Command
from spillway_schemas.hash_space import ROOT
from spillway_schemas.journal import (
    Claim,
    CommandOutcome,
    Genesis,
    Move,
    Prefix,
    SlotTotals,
)
from tests.commands import command_of
from tests.protocol_entries import epoch

NOW = "2026-01-05T15:00:00Z"
FOUR = [(Prefix(2, v), v // 2) for v in range(4)]
"""Groups 2/0 and 2/1 at slot 0, 2/2 and 2/3 at slot 1."""


def state(
    groups: Any = FOUR, moves: tuple[Move, ...] = (), parents: Sequence[int] = (ROOT,)
) -> JournalState:
    genesis = Genesis(
        warehouse_id="w",
        cluster_id="c",
        topics=[],
        query="q",
        session="2026-01-05",
        start={},
        start_rule="earliest",
        inputs=2,
        groups=list(groups),
        parents=list(parents),
        joins=[f"j{n}" for n, _ in enumerate(parents)],
        written_at="now",
    )
    found = begin(genesis)
    return found if not moves else JournalState(**{**found.__dict__, "moves": moves})


def move(value: int, to: int, *, depth: int = 2, bytes_: int = 0, **more: Any) -> Command:
    only = Move(group=Prefix(depth, value), to=to, bytes=bytes_)
    name = more.pop("id", f"d/m{depth}.{value}.{to}")
    return command_of("move", name, move=only, **more)


def answers(found: JournalState, *commands: Command) -> list[str]:
    """`obeyed`, or the reason of the refusal, of each command."""
    return ["obeyed" if o.obeyed else o.reason for o in adapt(found, commands, NOW).outcomes]


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (move(0, 1), "obeyed"),
        (move(0, 0), "group 2/0 is at slot 0 already"),
        (move(0, 2), "there is no slot 2; there are 2"),
        (move(0, -1), "there is no slot -1; there are 2"),
        (move(1, 1, depth=3), "group 3/1 is no group"),
        (move(0, 1, assignment_version=-1), "obeyed"),
        (move(0, 1, assignment_version=7), "decided on assignment 7; it is -1 now"),
        (move(0, 1, expires_at="2026-01-05T15:00:01Z"), "obeyed"),
        (move(0, 1, expires_at=NOW), f"expired at {NOW}"),
        (command_of("spill", "d/s", slot=1, bytes=1), "obeyed"),
        (
            command_of("spill", "d/s", slot=2, bytes=1),
            "there is no slot 2 to spill; there are 2",
        ),
        (command_of("budget", "d/s", slot=1, bytes=1), "obeyed"),
        (command_of("budget", "d/s", slot=1), "obeyed"),
        (command_of("budget", "d/s", slot=2, bytes=1), "there is no slot 2; there are 2"),
        (
            command_of("budget", "d/s", slot=0, bytes=1, assignment_version=7),
            "decided on assignment 7; it is -1 now",
        ),
        (command_of("split", "d/s", group=Prefix(2, 3)), "obeyed"),
        (command_of("split", "d/s", group=Prefix(1, 0)), "group 1/0 is no group"),
        (command_of("merge", "d/s", group=Prefix(1, 1)), "obeyed"),
        (
            command_of("merge", "d/s", group=Prefix(0, 0)),
            "the halves of group 0/0 are not two groups",
        ),
        (command_of("slots", "d/s", slots=2), "there are 2 slots already"),
        (
            command_of("slots", "d/s", slots=3, moves=[Move(group=Prefix(2, 1), to=2)]),
            "obeyed",
        ),
        (command_of("slots", "d/s", slots=3), "the moves do not lead to 3 slots"),
        (
            command_of("slots", "d/s", slots=3, moves=[Move(group=Prefix(2, 1), to=1)] * 2),
            "a group is named twice",
        ),
        (
            command_of("slots", "d/s", slots=4, moves=[Move(group=Prefix(2, 1), to=3)]),
            "after the move of group 2/1 slot numbers would have a gap",
        ),
    ],
)
def test_one_command(command: Command, answer: str) -> None:
    assert answers(state(), command) == [answer]


@pytest.mark.parametrize(
    ("commands", "last"),
    [
        ([move(0, 1), move(1, 1)], "slot 0 would own no group; change the number of slots instead"),
        ([move(0, 1), move(0, 1)], "group 2/0 is named by an earlier command"),
        ([move(0, 1), move(2, 0)], "obeyed"),
        (
            [move(0, 1), command_of("split", "d/s", group=Prefix(2, 0))],
            "group 2/0 is named by an earlier command",
        ),
        (
            [command_of("split", "d/s", group=Prefix(2, 0)), move(0, 1, depth=3)],
            "group 3/0 is named by an earlier command",
        ),
        (
            [move(0, 1), command_of("slots", "d/s", slots=3)],
            "groups are moving; the number of slots can change when that is done",
        ),
        (
            [
                command_of("slots", "d/s", slots=3, moves=[Move(group=Prefix(2, 1), to=2)]),
                move(2, 0),
            ],
            "the number of slots is being changed",
        ),
        (
            [move(0, 1), move(1, 1, id="other/7/0")],
            "slot 0 takes part in another decision, d",
        ),
        (
            [command_of("spill", f"d/{i}", slot=0, bytes=9) for i in "ab"],
            "slot 0 is told to spill already",
        ),
        (
            [move(0, 1), command_of("merge", "d/s", group=Prefix(1, 0))],
            "the halves of group 1/0 are at different slots",
        ),
    ],
)
def test_commands_of_one_epoch(commands: list[Command], last: str) -> None:
    said = answers(state(), *commands)
    assert said[:-1] == ["obeyed"] * (len(commands) - 1)
    assert said[-1] == last


def resized(found: JournalState, *wanted: tuple[int, int]) -> tuple[dict[int, int], list[str]]:
    """The budgets after such commands, in order, and what became of each."""
    commands = [
        command_of("budget", f"d/{n}", slot=slot, bytes=size)
        for n, (slot, size) in enumerate(wanted)
    ]
    return dict(adapt(found, commands, NOW).budgets), answers(found, *commands)


def holding(*slots: tuple[str, int, int, int | None]) -> JournalState:
    """A state whose slots have (host, budget, bytes in the folder, free bytes)."""
    totals = tuple(
        SlotTotals(
            slot=number,
            host=host,
            budget_bytes=budget,
            state_bytes=0,
            folder_bytes=folder,
            free_bytes=free,
            rows=0,
        )
        for number, (host, budget, folder, free) in enumerate(slots)
    )
    groups = [(Prefix(2, v), min(v, len(slots) - 1)) for v in range(4)]
    return replace(state(groups), totals=totals)


def test_budgets_are_set_and_taken_back() -> None:
    found = replace(state(), budgets={0: 70})
    assert resized(found, (1, 50)) == ({0: 70, 1: 50}, ["obeyed"])
    assert resized(found, (0, 0)) == ({}, ["obeyed"])
    assert resized(found, (0, 50), (0, 60)) == ({0: 60}, ["obeyed"] * 2)
    assert resized(found, (5, 50))[0] == {0: 70}
    moving = command_of("slots", "d/m", slots=3, moves=[Move(group=Prefix(2, 1), to=2)])
    later = command_of("budget", "d/b", slot=2, bytes=5)
    assert answers(found, moving, later) == ["obeyed", "there is no slot 2; there are 2"]


def test_a_budget_must_find_room_at_its_host() -> None:
    """Two slots share a host with 60 + 20 + 10 bytes of room; the third has another host."""
    alike = holding(("a", 40, 20, 60), ("a", 40, 10, 60), ("b", 40, 0, 45))
    assert resized(alike, (0, 50)) == ({0: 50}, ["obeyed"])
    why = (
        "slot 0 can have 50 bytes at most: host a has 90 for state, and the budgets of its other "
        "slots take 40"
    )
    assert resized(alike, (0, 51)) == ({}, [why])
    assert resized(alike, (1, 30), (0, 60)) == ({1: 30, 0: 60}, ["obeyed"] * 2), "room was made"
    assert resized(alike, (2, 45))[1] == ["obeyed"]
    assert resized(alike, (2, 46))[1] != ["obeyed"]
    full = holding(("", 40, 20, 0), ("", 40, 20, 0))
    assert resized(full, (0, 39)) == ({0: 39}, ["obeyed"]), "less is always possible"
    assert resized(full, (0, 41))[1][0].startswith("slot 0 can have 0 bytes at most: the host has")
    assert resized(holding(("", 40, 20, None)), (0, 10**15))[1] == ["obeyed"], "not known"


def test_a_budget_ends_with_its_driver_and_with_its_slot() -> None:
    found = replace(state(), budgets={0: 70, 1: 80})
    claim = Claim(n=1, term=1, driver="d", written_at=NOW)
    assert fold(found, claim).budgets == {}
    entry = epoch(1, 0, {}, term=0, budgets={1: 90})
    assert fold(found, entry).budgets == {1: 90}
    assert fold(found, entry.model_copy(update={"budgets": {}})).budgets == {}
    assert fold(found, entry.model_copy(update={"budgets": None})).budgets == {0: 70, 1: 80}
    found = replace(found, term=1, groups=((Prefix(0, 0), 0),), manifests={0: None})
    assert plan_epoch(found, {}, [], "2026-01-06").budgets == {0: 70}


def test_a_slot_that_is_busy_is_left_alone() -> None:
    eight = [(Prefix(3, v), v // 2) for v in range(8)]
    busy = state(eight, moves=(Move(group=Prefix(3, 0), to=1),))
    still = "still takes part in an earlier adaptation"
    assert answers(busy, move(2, 3, depth=3)) == [f"slot 1 {still}"]
    assert answers(busy, move(4, 0, depth=3)) == [f"slot 0 {still}"]
    assert answers(busy, command_of("spill", "d/s", slot=0, bytes=1)) == [f"slot 0 {still}"]
    assert answers(busy, move(4, 3, depth=3)) == ["obeyed"]


@pytest.mark.parametrize(
    ("policy", "known", "obeyed_in", "answer"),
    [
        ("p", 7, -1, "obeyed"),
        ("p", 7, 6, "obeyed"),
        ("p", 7, 7, "obeyed"),
        ("p", 7, 8, "decided after epoch 7; in epoch 8 a policy was obeyed"),
        ("p", None, 8, "obeyed"),
        ("", 7, 8, "obeyed"),
    ],
)
def test_a_spill_of_a_policy_that_another_has_overtaken(
    policy: str, known: int | None, obeyed_in: int, answer: str
) -> None:
    later = replace(state(), policy_epoch=obeyed_in)
    spill = command_of("spill", "d/s", slot=0, bytes=9, policy=policy, epoch=known)
    assert answers(later, spill) == [answer]
    # Splits and moves name the assignment that they rest on.
    moved_on = move(0, 1, policy=policy, epoch=known, assignment_version=-1)
    assert answers(later, moved_on) == ["obeyed"]


@pytest.mark.parametrize(
    ("first", "second", "answer"),
    [
        ("a/spill p", "b/spill p", "another decision of a policy, a, is obeyed in this epoch"),
        ("a/spill p", "b/spill q", "another decision of a policy, a, is obeyed in this epoch"),
        ("a/move p", "b/spill p", "another decision of a policy, a, is obeyed in this epoch"),
        ("a/split p", "b/spill p", "obeyed"),
        ("a/spill p", "a/spill p", "obeyed"),
        ("a/spill p", "b/spill", "obeyed"),
        ("a/spill", "b/spill p", "obeyed"),
    ],
)
def test_spills_of_policies_in_one_epoch(first: str, second: str, answer: str) -> None:
    """The first is about slots 0 and 1, the second about slot 2."""

    def command(text: str, slot: int) -> Command:
        name, _, policy = text.partition(" ")
        kind = name.partition("/")[2]
        what: dict[str, dict[str, Any]] = {
            "spill": {"slot": slot, "bytes": 9},
            "move": {"move": Move(group=Prefix(3, 0), to=1)},
            "split": {"group": Prefix(3, 0)},
        }
        return command_of(kind, f"{name[0]}/{slot}", policy=policy, **what[kind])

    eight = state([(Prefix(3, v), v // 2) for v in range(8)])
    assert answers(eight, command(first, 0), command(second, 2)) == ["obeyed", answer]


ONE = [Move(group=Prefix(2, value), to=0) for value in (2, 3)]
"""What leads to one slot."""


@pytest.mark.parametrize(
    ("first", "second", "answer"),
    [
        ("a/spill/0", "b/slots/1", "slot 0 takes part in another decision, a"),
        ("a/spill/1", "b/slots/1", "slot 1 takes part in another decision, a"),
        ("a/spill/0", "b/slots/3", "slot 0 takes part in another decision, a"),
        ("a/spill/1", "b/slots/3", "slot 1 takes part in another decision, a"),
        ("a/spill/0", "a/slots/1", "obeyed"),
        ("a/spill/1", "a/slots/1", "slot 1 is told to spill, and would end"),
        ("a/spill/1", "a/slots/3", "obeyed"),
        ("a/split/0", "b/slots/1", "slot 0 takes part in another decision, a"),
        ("a/slots/1", "b/spill/0", "the number of slots is being changed"),
        ("a/slots/1", "a/spill/1", "the number of slots is being changed"),
        ("a/slots/3", "a/spill/0", "the number of slots is being changed"),
        ("a/slots/3", "b/split/0", "slot 0 takes part in another decision, a"),
    ],
)
def test_the_number_of_slots_and_what_else_a_slot_is_told(
    first: str, second: str, answer: str
) -> None:
    def command(text: str) -> Command:
        decision, kind, number = text.split("/")
        three = [Move(group=Prefix(2, 3), to=2)]
        what: dict[str, dict[str, Any]] = {
            "spill": {"slot": int(number), "bytes": 300},
            "slots": {"slots": int(number), "moves": ONE if number == "1" else three},
            "split": {"group": Prefix(2, 0)},
        }
        return command_of(kind, f"{decision}/{kind}", **what[kind])

    found = adapt(state(), [command(first), command(second)], NOW)
    assert found.outcomes[0].obeyed
    assert found.outcomes[1].obeyed == (answer == "obeyed")
    assert answer in ("obeyed", found.outcomes[1].reason)


def test_a_refused_command_keeps_no_slot_from_others() -> None:
    late = move(0, 1, id="other/0", expires_at=NOW)
    assert answers(state(), late, move(1, 1)) == [f"expired at {NOW}", "obeyed"]


def test_what_is_obeyed_comes_into_the_queue_behind_what_is_there() -> None:
    eight = [(Prefix(3, v), v // 2) for v in range(8)]
    first = Move(group=Prefix(3, 0), to=1, bytes=5, decision="c")
    found = adapt(state(eight, (first,)), [move(4, 3, depth=3, bytes_=7)], NOW)
    assert [m.group for m in found.queue] == [Prefix(3, 0), Prefix(3, 4)]
    assert found.queue[1].decision == "d"
    # Nothing has moved yet: that is the plan's part.
    assert dict(found.groups) == dict(eight)
    assert dict(moved(found.groups, found.queue[:1]))[Prefix(3, 0)] == 1


def test_a_split_and_a_merge_move_nothing() -> None:
    commands = [
        command_of("split", "a", group=Prefix(2, 0)),
        command_of("merge", "b", group=Prefix(1, 1)),
    ]
    found = adapt(state(), commands, NOW)
    assert found.groups == (
        (Prefix(1, 1), 1),
        (Prefix(2, 1), 0),
        (Prefix(3, 0), 0),
        (Prefix(3, 1), 0),
    )
    assert not relocations(GroupMap(FOUR), GroupMap(found.groups))


@pytest.mark.parametrize(
    ("sizes", "most", "count"),
    [([], 10, 0), ([50], 10, 1), ([4, 4, 4], 8, 2), ([50, 1], 10, 1), ([0, 0, 0], 0, 3)],
)
def test_an_epoch_carries_out_what_fits_and_at_least_one_move(
    sizes: list[int], most: int, count: int
) -> None:
    queue = [Move(group=Prefix(8, i), to=1, bytes=size) for i, size in enumerate(sizes)]
    assert carried_out(queue, most, {}) == count


@pytest.mark.parametrize(
    ("folder", "count"),
    [(0, 5), (400, 3), (500, 2), (800, 1), (980, 1), (1_000, 1), (1_200, 1)],
)
def test_what_comes_to_a_slot_leaves_room_for_its_rows(folder: int, count: int) -> None:
    """Half of what its folder has free, and one move however full that is. Kills: a receiver that
    has to spill all that it holds."""
    receiver = SlotTotals(slot=1, budget_bytes=1_000, state_bytes=0, folder_bytes=folder, rows=0)
    queue = [Move(group=Prefix(8, i), to=1, bytes=100) for i in range(5)]
    assert carried_out(queue, 10**9, {1: receiver}) == count
    # What comes to another slot counts there.
    aside = [Move(group=Prefix(8, 9), to=2, bytes=10_000)]
    assert carried_out([*aside, *queue], 10**9, {1: receiver}) == 1 + (count if folder < 900 else 0)
    small = [Move(group=Prefix(8, i), to=1, bytes=5) for i in range(6)]
    assert carried_out(small, 10**9, {1: receiver}) == (6 if folder < 900 else 4)


@pytest.mark.parametrize(
    ("kind", "what", "wrong"),
    [
        ("move", {}, "move"),
        ("spill", {"slot": 1}, "bytes"),
        ("spill", {"slot": 1, "bytes": 0}, "bytes"),
        ("spill", {"bytes": 1}, "slot"),
        ("split", {}, "group"),
        ("merge", {}, "group"),
        ("slots", {"slots": 0}, "slots"),
        ("budget", {"slot": 0, "bytes": -1}, "bytes"),
        ("split", {"group": (1, 0), "decision": ""}, "decision"),
        ("split", {"group": (1, 0), "slot": 1}, "slot"),
        ("seal", {"session": ""}, "session"),
        ("withdraw", {"session": "2026-01-05"}, "seal"),
        ("withdraw", {"session": "2026-01-05", "seal": ""}, "seal"),
    ],
)
def test_a_command_has_what_its_kind_needs(kind: str, what: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValidationError) as told:
        command_of(kind, "x", **what)
    assert [each["loc"] for each in told.value.errors()] == [(kind, wrong)]


@st.composite
def assignments(draw: st.DrawFn) -> list[tuple[Prefix, int]]:
    """A random prefix tree of groups over slots whose numbers are contiguous."""
    groups = [Prefix(0, 0)]
    for _ in range(draw(st.integers(0, 14))):
        group = groups.pop(draw(st.integers(0, len(groups) - 1)))
        groups += [Prefix(group.depth + 1, group.value * 2 + bit) for bit in (0, 1)]
    slots = draw(st.integers(1, min(5, len(groups))))
    owners = [*range(slots), *(draw(st.integers(0, slots - 1)) for _ in groups[slots:])]
    return sorted(zip(groups, draw(st.permutations(owners)), strict=True))


@given(assignments(), assignments())
def test_relocations_are_what_changes_its_slot(
    before: list[tuple[Prefix, int]], after: list[tuple[Prefix, int]]
) -> None:
    old, new = GroupMap(before), GroupMap(after)
    ranges = [(pair, r) for pair, rs in relocations(old, new).items() for r in rs]
    hashes = [edge << 48 for edge in range(0, 1 << 16, 97)]
    at = np.array(hashes, dtype=np.uint64)
    pairs = zip(old.slot_of(at).tolist(), new.slot_of(at).tolist(), strict=True)
    for hash_, pair in zip(hashes, pairs, strict=True):
        named = [p for p, r in ranges if r.lo <= hash_ < r.hi]
        assert named == ([pair] if pair[0] != pair[1] else [])


@given(assignments(), st.integers(1, 15), st.data())
def test_slots_come_and_go_without_a_gap(
    groups: list[tuple[Prefix, int]], slots: int, data: st.DataObject
) -> None:
    sizes = {group: data.draw(st.integers(0, 9)) for group, _ in groups}
    if slots > len(groups):
        with pytest.raises(ValueError, match="slots must be between"):
            rearranged(groups, sizes, slots)
        return
    before = len(set(dict(groups).values()))
    moves = rearranged(groups, sizes, slots)
    said = answers(state(groups), command_of("slots", "d/s", slots=slots, moves=moves))
    assert said == (["obeyed"] if slots != before else [f"there are {slots} slots already"])
    after = Counter(slot for _, slot in moved(tuple(groups), moves))
    assert set(after) == set(range(slots))


@given(assignments(), st.integers(1, 6), st.data())
def test_moves_that_would_leave_a_gap_are_refused(
    groups: list[tuple[Prefix, int]], slots: int, data: st.DataObject
) -> None:
    """Right moves in any order, judged by the owners after each of them."""
    slots = min(slots, len(groups))
    moves = data.draw(st.permutations(rearranged(groups, {}, slots)))
    owners = dict(groups)
    right = slots != len(set(owners.values()))
    for each in moves:
        owners[each.group] = each.to
        right &= max(owners.values()) + 1 == len(set(owners.values()))
    said = answers(state(groups), command_of("slots", "d/s", slots=slots, moves=moves))
    assert (said == ["obeyed"]) == right


def test_groups_of_a_slot_that_ends_go_to_the_emptiest_ones() -> None:
    """The largest first, each to the slot that holds the fewest bytes by then."""
    owners = {0: (70, 20), 1: (40,), 2: (50, 30, 15, 10)}
    groups, sizes = [], {}
    for slot, held in owners.items():
        for size in held:
            group = Prefix(3, len(groups)) if len(groups) < 6 else Prefix(2, 3)
            groups.append((group, slot))
            sizes[group] = size
    moves = rearranged(groups, sizes, 2)
    assert [(move.bytes, move.to) for move in moves] == [(50, 1), (30, 0), (15, 1), (10, 1)]


def test_a_new_slot_takes_its_share_of_the_bytes() -> None:
    groups = [(Prefix(4, v), v % 2) for v in range(16)]
    sizes = {group: 100 for group, _ in groups}
    moves = rearranged(groups, sizes, 4)
    after = Counter(slot for _, slot in moved(tuple(groups), moves))
    assert set(after.values()) == {4}
    assert len(moves) == 8


def test_a_policy_s_number_of_slots_overfills_no_budget() -> None:
    """Slot 0 has 60 of 100 bytes and would get 60 more; a person may want that."""
    found = holding(("a", 100, 60, None), ("a", 100, 60, None))
    totals = tuple(each.model_copy(update={"state_bytes": 60}) for each in found.totals)
    groups = [Move(group=Prefix(2, v), to=0, bytes=20) for v in (1, 2, 3)]
    fewer = command_of("slots", "d/s", slots=1, moves=groups, policy="declustering")
    full = replace(found, totals=totals)
    over = "slot 0 would hold 120 bytes, over its budget of 100"
    assert answers(full, fewer) == [over]
    assert answers(full, fewer.model_copy(update={"policy": ""})) == ["obeyed"]
    more = command_of("budget", "d/b", slot=0, bytes=120)
    assert answers(full, more, fewer) == ["obeyed", "obeyed"]
    # What leaves a slot that goes on makes room there.
    three = [Move(group=Prefix(2, 1), to=2, bytes=101)]
    new = command_of("slots", "d/s", slots=3, moves=three, policy="declustering")
    assert answers(full, new) == ["slot 2 would hold 101 bytes, over its budget of 100"]


@pytest.mark.parametrize(
    ("held", "slots", "taken"),
    [
        # Shares of 72.5 bytes and 1.75 groups: the slot of one group keeps it.
        ({0: [70, 20, 10], 1: [50, 30, 10], 2: [100]}, 4, [(0, 70, 3)]),
        # Shares of 58: the smallest of the fullest slot's groups may be too large for the rest.
        (
            {0: [70, 20, 10], 1: [50, 30, 10], 2: [100]},
            5,
            [(1, 20, 3), (4, 30, 4), (2, 10, 4), (5, 10, 4)],
        ),
        # As many slots as groups: what an earlier new slot got goes on to a later one.
        (
            {0: [70, 20, 10], 1: [50, 30, 10], 2: [100]},
            7,
            [(1, 20, 3), (5, 10, 4), (2, 10, 5), (4, 30, 6)],
        ),
        # Without bytes by numbers of groups.
        ({0: [0] * 4, 1: [0] * 2}, 3, [(3, 0, 2), (2, 0, 2)]),
        ({0: [0] * 4, 1: [0] * 2}, 6, [(3, 0, 2), (2, 0, 3), (1, 0, 4), (5, 0, 5)]),
        # Of slots that are as full the first gives.
        ({0: [40, 40], 1: [40, 40]}, 3, [(1, 40, 2)]),
        # Exactly the share.
        ({0: [8] * 6, 1: [4] * 6}, 3, [(5, 8, 2), (4, 8, 2), (3, 8, 2)]),
        ({0: [8] * 6, 1: [4] * 6}, 4, [(5, 8, 2), (4, 8, 2), (3, 8, 3), (11, 4, 3)]),
        ({0: [90, 5], 1: [30, 30, 30]}, 3, [(1, 5, 2), (4, 30, 2)]),
    ],
)
def test_which_groups_new_slots_take(
    held: dict[int, list[int]], slots: int, taken: list[tuple[int, int, int]]
) -> None:
    """(group, bytes, slot), in order; groups are numbered as `held` names their bytes."""
    sizes = [(slot, size) for slot, mine in held.items() for size in mine]
    groups = [(Prefix(5, v), slot) for v, (slot, _) in enumerate(sizes)]
    moves = rearranged(groups, {Prefix(5, v): size for v, (_, size) in enumerate(sizes)}, slots)
    assert [(move.group.value, move.bytes, move.to) for move in moves] == taken


def test_groups_of_unknown_size_have_none() -> None:
    groups = [(Prefix(2, v), v // 2) for v in range(4)]
    moves = rearranged(groups, {Prefix(2, 3): 5}, 3)
    assert [(move.group.value, move.bytes, move.to) for move in moves] == [(2, 0, 2), (1, 0, 2)]
    for slots in (0, 5):
        with pytest.raises(ValueError, match=f"must be between 1 and the 4 groups, got {slots}"):
            rearranged(groups, {}, slots)


@pytest.mark.parametrize(
    ("counts", "slots", "taken"),
    [
        # Old slots end in descending order, down to one.
        ([1, 2, 1, 1], 1, [(4, 0), (3, 0), (1, 0), (2, 0)]),
        ([2, 2], 2, []),
        # Without bytes the number of groups counts, and of as many the first slot.
        ([1, 2, 3], 2, [(3, 0), (4, 0), (5, 1)]),
        # The last one takes a group from each that has three by then, new ones too.
        ([9, 2], 5, [(7, 2), (6, 2), (4, 3), (3, 3), (8, 4), (5, 4), (2, 4)]),
    ],
)
def test_groups_without_bytes_are_shared_out_by_number(
    counts: list[int], slots: int, taken: list[tuple[int, int]]
) -> None:
    owners = [slot for slot, count in enumerate(counts) for _ in range(count)]
    moves = rearranged([(Prefix(4, v), slot) for v, slot in enumerate(owners)], {}, slots)
    assert [(move.group.value, move.to) for move in moves] == taken


def test_no_groups_fill_no_slot() -> None:
    with pytest.raises(ValueError, match=r"^slots must be between 1 and the 0 groups, got 1$"):
        rearranged([], {}, 1)


def slots_of(number: int, *moves: tuple[int, int, int], **more: Any) -> Command:
    """Moves of groups of depth 2, to a slot, with their bytes."""
    named = [Move(group=Prefix(2, value), to=to, bytes=size) for value, to, size in moves]
    return command_of("slots", more.pop("id", "d/s"), **{"slots": number, "moves": named, **more})


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (slots_of(3, (1, 3, 0)), "group 2/1 cannot move to slot 3"),
        (slots_of(3, (1, -1, 0)), "group 2/1 cannot move to slot -1"),
        (slots_of(3, (1, 0, 0)), "group 2/1 cannot move to slot 0"),
        (slots_of(3, (4, 2, 0)), "group 2/4 cannot move to slot 2"),
        (slots_of(1, (2, 0, 0)), "the moves do not lead to 1 slots"),
        (slots_of(1, (2, 1, 0), (3, 0, 0)), "group 2/2 cannot move to slot 1"),
        (slots_of(4, (1, 2, 0), (3, 3, 0)), "obeyed"),
        (
            slots_of(4, (3, 3, 0), (1, 2, 0)),
            "after the move of group 2/3 slot numbers would have a gap",
        ),
        (
            slots_of(1, (0, 1, 0), (1, 1, 0)),
            "group 2/0 cannot move to slot 1",
        ),
        (
            slots_of(3, (0, 1, 0), (1, 1, 0), (2, 2, 0)),
            "after the move of group 2/1 slot numbers would have a gap",
        ),
        (
            slots_of(3, (1, 2, 0), (3, 2, 0), (2, 0, 0)),
            "after the move of group 2/2 slot numbers would",
        ),
    ],
)
def test_moves_to_another_number_of_slots(command: Command, answer: str) -> None:
    [said] = answers(state(), command)
    assert said.startswith(answer)


def test_what_another_number_of_slots_leaves_behind() -> None:
    found = adapt(state(), [slots_of(3, (1, 2, 7), (3, 2, 9), id="who/9")], NOW)
    assert [(m.group.value, m.to, m.bytes, m.decision) for m in found.queue] == [
        (1, 2, 7, "who"),
        (3, 2, 9, "who"),
    ]
    assert found.groups == tuple(FOUR), "until they are carried out"
    [outcome] = found.outcomes
    assert (outcome.obeyed, outcome.slot, outcome.bytes) == (True, None, 16)
    # The same epoch splits what does not move; a slot that begins can be named by nothing else.
    split = command_of("split", "who/10", group=Prefix(2, 0))
    assert answers(state(), slots_of(3, (1, 2, 0), id="who/9"), split) == ["obeyed", "obeyed"]
    for group in (0, 2):
        other = command_of("split", "b/0", group=Prefix(2, group))
        assert answers(state(), slots_of(3, (1, 2, 0)), other)[1] == (
            f"slot {group // 2} takes part in another decision, d"
        )
    named = command_of("split", "who/10", group=Prefix(2, 1))
    assert answers(state(), slots_of(3, (1, 2, 0), id="who/9"), named)[1] == (
        "group 2/1 is named by an earlier command"
    )
    assert answers(state(), slots_of(3, (1, 2, 0)), named)[1] == (
        "slot 2 takes part in another decision, d"
    )
    early = command_of("split", "who/8", group=Prefix(2, 1))
    half = Move(group=Prefix(3, 2), to=2)
    assert answers(state(), early, slots_of(3, id="who/9", moves=[half]))[1] == (
        "group 3/2 is named by an earlier command"
    )


def test_groups_may_pass_through_a_slot_that_goes_on() -> None:
    """Slot 2 ends: its group goes to slot 1, of which one goes to slot 0."""
    three = state([(Prefix(2, 0), 0), (Prefix(2, 1), 1), (Prefix(2, 2), 1), (Prefix(2, 3), 2)])
    assert answers(three, slots_of(2, (3, 1, 0), (1, 0, 0), (2, 0, 0))) == ["obeyed"]
    # Slot 1 would end, and slot 3 begin.
    other = state([(Prefix(2, 0), 0), (Prefix(2, 1), 1), (Prefix(2, 2), 2), (Prefix(2, 3), 2)])
    assert answers(other, slots_of(4, (1, 3, 0), (2, 1, 0))) == [
        "after the move of group 2/1 slot numbers would have a gap"
    ]


def filled(*slots: tuple[int, int]) -> JournalState:
    """A state whose slots have (budget, bytes in state)."""
    found = holding(*(("a", budget, size, None) for budget, size in slots))
    totals = zip(found.totals, slots, strict=True)
    return replace(
        found, totals=tuple(t.model_copy(update={"state_bytes": size}) for t, (_, size) in totals)
    )


@pytest.mark.parametrize(
    ("size", "answer"),
    [(80, "obeyed"), (81, "slot 2 would hold 81 bytes, over its budget of 80")],
)
def test_a_slot_that_begins_has_the_smallest_budget(size: int, answer: str) -> None:
    policy = slots_of(3, (1, 2, size), policy="declustering")
    assert answers(filled((100, 60), (80, 60)), policy) == [answer]
    # Where a command has set a budget that is the one that counts, be it less or more.
    less = command_of("budget", "d/b", slot=0, bytes=size)
    assert answers(filled((100, 60), (90, 60)), less, policy) == ["obeyed", "obeyed"]


def test_another_number_of_slots_may_fill_a_budget_and_empty_one() -> None:
    """(0, 1) and 2 are the groups of three slots; the last one ends."""

    def asked(fuller: int, first: int = 0, policy: str = "p") -> list[str]:
        moves = [(2, 0, fuller), (3, 1, 30)] if not first else [(2, 0, fuller), (3, 0, first)]
        return answers(found, slots_of(2, *moves, policy=policy))

    groups = [(Prefix(2, 0), 0), (Prefix(2, 1), 1), (Prefix(2, 2), 2), (Prefix(2, 3), 2)]
    found = replace(filled((100, 60), (100, 70), (100, 1_234_567)), groups=tuple(groups))
    assert asked(40) == ["obeyed"]
    assert asked(41) == ["slot 0 would hold 101 bytes, over its budget of 100"]
    assert asked(30, 11) == ["slot 0 would hold 101 bytes, over its budget of 100"], "both of them"
    assert asked(1_234_567) == ["slot 0 would hold 1,234,627 bytes, over its budget of 100"]
    assert asked(1_234_567, policy="") == ["obeyed"]
    # One that is over its budget already may lose what is too much, and keep some of it.
    over = replace(filled((100, 150), (100, 0)), groups=tuple(FOUR))
    away = slots_of(3, (0, 2, 20), policy="p")
    assert answers(over, away) == ["obeyed"]
    back = [(0, 2, 20), (2, 0, 20)]
    assert answers(over, slots_of(3, *back, policy="p")) == ["obeyed"], "as full as before"
    full = replace(filled((100, 100), (100, 0)), groups=tuple(FOUR))
    assert answers(full, slots_of(3, (0, 2, 1), (2, 0, 2), policy="p")) == [
        "slot 0 would hold 101 bytes, over its budget of 100"
    ]
    huge = replace(filled((5_000, 0), (1_000, 0)), groups=tuple(FOUR))
    assert answers(huge, slots_of(1, (2, 0, 3_000), (3, 0, 2_001), policy="p")) == [
        "slot 0 would hold 5,001 bytes, over its budget of 5,000"
    ]
    # No figures yet: nothing is known to be too much.
    assert answers(state(), slots_of(3, (1, 2, 10**15), policy="p")) == ["obeyed"]


@pytest.mark.parametrize(
    ("command", "slot", "size"),
    [
        (move(0, 1, bytes_=7), 1, 7),
        (command_of("spill", "d/m2.0.1", slot=1, bytes=9), 1, 9),
        (command_of("split", "d/m2.0.1", group=Prefix(2, 0)), None, 0),
    ],
)
@pytest.mark.parametrize(
    ("version", "obeyed", "reason"),
    [(-1, True, "too full"), (7, False, "decided on assignment 7; it is -1 now")],
)
def test_the_answer_says_who_asked_for_what(
    command: Command, slot: int | None, size: int, version: int, obeyed: bool, reason: str
) -> None:
    who = {"policy": "p", "by": "controller", "reason": "too full"}
    asked = command.model_copy(update={**who, "assignment_version": version})
    [outcome] = adapt(state(), [asked], NOW).outcomes
    assert outcome == CommandOutcome(
        id="d/m2.0.1",
        decision="d",
        kind=command.kind,
        obeyed=obeyed,
        reason=reason,
        policy="p",
        by="controller",
        slot=slot,
        bytes=size,
    )


SIX = [*((Prefix(3, v), 0) for v in range(6)), (Prefix(2, 3), 1)]
"""Groups 3/0 to 3/5 at slot 0."""


def test_a_slot_gives_all_its_groups_but_one() -> None:
    said = answers(state(SIX), *(move(v, 1, depth=3) for v in range(6)))
    last = "slot 0 would own no group; change the number of slots instead"
    assert said == ["obeyed"] * 5 + [last]
    # One that came counts where it is, too.
    four = [(Prefix(2, v), v % 2) for v in range(4)]
    assert answers(state(four), move(0, 1), move(1, 0), move(3, 0)) == ["obeyed"] * 3


def test_halves_count_among_the_groups_that_a_slot_keeps() -> None:
    split = command_of("split", "d/s", group=Prefix(2, 0))
    assert answers(state(), split, move(1, 1)) == ["obeyed"] * 2
    merge = command_of("merge", "d/s", group=Prefix(2, 0))
    others = [move(v, 1, depth=3) for v in range(2, 6)]
    assert answers(state(SIX), merge, *others) == ["obeyed"] * 5
    three = [(Prefix(3, 0), 0), (Prefix(3, 1), 0), (Prefix(2, 1), 0), (Prefix(1, 1), 1)]
    assert answers(state(three), merge, move(1, 1)) == ["obeyed"] * 2


def test_groups_are_split_down_to_the_deepest() -> None:
    """A path of groups: each has a half that is split again."""
    path = [(Prefix(depth, 1), 0) for depth in range(1, DEEPEST + 1)]
    deep = state([*path, (Prefix(DEEPEST, 0), 1)])

    def asked(kind: str, depth: int) -> str:
        return answers(deep, command_of(kind, "d/s", group=Prefix(depth, 1)))[0]

    assert asked("split", DEEPEST - 1) == "obeyed"
    why = f"group {DEEPEST}/1 has {DEEPEST} bits, which is as deep as groups go"
    assert asked("split", DEEPEST) == why
    assert asked("merge", DEEPEST) == f"group {DEEPEST}/1 has no halves"
    assert asked("merge", DEEPEST - 1) == (
        f"the halves of group {DEEPEST - 1}/1 are not two groups"
    )


def test_halves_that_are_in_use_are_not_merged() -> None:
    split = command_of("split", "d/0", group=Prefix(2, 0))
    merge = command_of("merge", "d/1", group=Prefix(2, 0))
    assert answers(state(), split, merge) == ["obeyed", "group 3/0 is named by an earlier command"]
    leaving = Move(group=Prefix(2, 1), to=1, bytes=5, decision="c")
    both = command_of("merge", "d/1", group=Prefix(1, 0))
    assert answers(state(moves=(leaving,)), both)[0] != "obeyed"
    assert answers(state(), both) == ["obeyed"]


@pytest.mark.parametrize(
    ("parents", "groups", "merged", "answer"),
    [
        ([ROOT], "1/0 1/1", "0/0", "obeyed"),
        ([1, ROOT], "1/0 1/1", "0/0", "the halves of group 0/0 are of different joins"),
        ([1, ROOT], "2/0 2/1 1/1", "1/0", "obeyed"),
        ([1, 2, ROOT], "2/0 2/1 1/1", "1/0", "the halves of group 1/0 are of different joins"),
        ([1, 2, ROOT], "2/0 2/1 2/2 2/3", "1/1", "obeyed"),
        (
            [3, 3, 3, ROOT],
            "2/0 2/1 2/2 2/3",
            "1/1",
            "the halves of group 1/1 are of different joins",
        ),
    ],
)
def test_halves_of_different_joins_are_not_merged(
    parents: list[int], groups: str, merged: str, answer: str
) -> None:
    """A group is of one join, and so is all that is known of it."""

    def range_of(text: str) -> Prefix:
        depth, value = map(int, text.split("/"))
        return Prefix(depth, value)

    found = state([(range_of(each), 0) for each in groups.split()], parents=parents)
    assert answers(found, command_of("merge", "d/s", group=range_of(merged))) == [answer]


def test_what_several_commands_touch_is_touched_by_each_of_them() -> None:
    first, second = (command_of("split", f"d/{v}", group=Prefix(2, v), policy="p") for v in (0, 2))
    half = command_of("split", "d/3", group=Prefix(3, 0))
    assert answers(state(), first, second, half) == [
        "obeyed",
        "obeyed",
        "group 3/0 is named by an earlier command",
    ]
    other = command_of("spill", "other/0", slot=0, bytes=9)
    assert answers(state(), first, second, other) == [
        "obeyed",
        "obeyed",
        "slot 0 takes part in another decision, d",
    ]


def test_as_much_as_a_slot_has_needs_no_room() -> None:
    full = holding(("", 40, 20, 0), ("", 40, 20, 0))
    assert resized(full, (0, 40)) == ({0: 40}, ["obeyed"])
