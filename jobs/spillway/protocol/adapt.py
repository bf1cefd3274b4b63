"""How commands change the assignment: groups that move, split and merge, slots that come and go.

A policy (or a person) suggests; here each suggestion is obeyed or refused, with a reason that the
journal keeps. What is obeyed takes effect at an epoch boundary:

* A *split* or a *merge* changes prefixes only: the slot stays, no row moves.
* A *move* joins a queue. Every epoch carries out the head of the queue, up to a number of bytes in
  all and to each slot (a larger group moves alone), and the journal keeps the rest. One entry names
  the manifest of the new owner, which has the group, and that of the old one, which has not.
* *Slots* is a list of moves that goes on in the same way. Slots are numbered without gaps, so
  the moves come in an order in which there never is a gap.
* A *spill* is forced in the epoch that obeys it.
* A *budget* holds from the epoch that obeys it until another driver claims the journal: what shall
  last is the setting. It is refused where the slot's host has less room than that.

Refused is what rests on another assignment than the present one, what has expired, what
contradicts a command before it, what a policy would have a slot hold beyond its budget by another
number of slots, and what touches a slot that an earlier adaptation is still
busy with, or that another decision of the same epoch has touched. A spill changes no assignment, so
a policy's is refused too when a policy's move or spill was obeyed since it was decided: it was
meant for memory that has found relief. An epoch that restores lost slots carries out no move: the
queue waits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from spillway.protocol.state import RELIEVING, Groups, JournalState
from spillway_schemas.commands import (
    AdaptationCommand,
    BudgetCommand,
    MergeCommand,
    MoveCommand,
    SlotsCommand,
    SpillCommand,
    SplitCommand,
)
from spillway_schemas.hash_space import group_text, joins_of
from spillway_schemas.journal import CommandOutcome, Move, Prefix, SlotTotals

DEEPEST = 40
"""Bits of a group's prefix, at most: 2**40 groups are more than there are keys."""
LEAST_COMING = 0.02
"""The share of its budget that may come to a slot in an epoch however full its folder is."""


@dataclass(frozen=True)
class Adaptation:
    """What the adaptation commands of an epoch come to."""

    outcomes: tuple[CommandOutcome, ...]
    groups: Groups
    """After splits and merges; before moves."""
    queue: tuple[Move, ...]
    """Moves to carry out, in order: those of before, then new ones."""
    forced: tuple[tuple[int, int], ...]
    """(slot, bytes) to spill."""
    budgets: Mapping[int, int]
    """Bytes by slot, where a command has set them."""


@dataclass
class _PendingAssignment:
    """The commands' effect so far."""

    owners: dict[Prefix, int]
    """Each group with its slot, as it will be once the queue is carried out."""
    counts: Counter[int]
    """How many groups each slot will own: counted once, for thousands of moves ask."""
    slots: int
    """How many slots there will be once the moves that wait are carried out."""
    busy: frozenset[int]
    """Slots that an adaptation of an earlier epoch is not done with."""
    queue: dict[Prefix, Move]
    """In order, and by group, for each command asks whether its group moves."""
    present: frozenset[int]
    """The slots that there are now."""
    joins: Sequence[str]
    """Names of the query's."""
    budgets: dict[int, int]
    memory: Mapping[int, SlotTotals]
    forced: dict[int, int] = field(default_factory=dict)
    touched: set[Prefix] = field(default_factory=set)
    """Groups that a command of this epoch names."""
    deciders: dict[int, str] = field(default_factory=dict)
    """Per slot that a command of this epoch touches, the decision that this is a part of."""
    relieving: set[str] = field(default_factory=set)
    """Policies' decisions of which this epoch obeys a relieving command."""
    rearranged: bool = False
    """Whether the number of slots changes."""

    def named(self, group: Prefix) -> str:
        """A group as people know it."""
        return f"group {group_text(group, self.joins)}"

    def take(
        self, command: AdaptationCommand, groups: Iterable[Prefix], slots: Iterable[int]
    ) -> None:
        """Note what an obeyed command touches."""
        self.touched |= set(groups)
        self.deciders |= dict.fromkeys(slots, command.decision)
        if command.policy and command.kind in RELIEVING:
            self.relieving.add(command.decision)


def adapt(state: JournalState, commands: Iterable[AdaptationCommand], now: str) -> Adaptation:
    """Obey or refuse each command, in the order given. `now`: RFC 3339, for expiry only."""
    owners = dict(state.groups)
    present = dict(state.groups)
    for move in state.moves:
        owners[move.group] = move.to
    pending = _PendingAssignment(
        owners=owners,
        counts=Counter(owners.values()),
        slots=max(owners.values()) + 1,
        busy=frozenset(s for m in state.moves for s in (m.to, present[m.group])),
        queue={move.group: move for move in state.moves},
        present=frozenset(present.values()),
        joins=state.genesis.joins,
        budgets=dict(state.budgets),
        memory=state.memory,
    )
    outcomes = []
    for command in commands:
        problem = _stale(state, command, now) or _obey(pending, command)
        slot, size = _asked(command)
        outcomes.append(
            CommandOutcome(
                id=command.id,
                decision=command.decision,
                kind=command.kind,
                obeyed=problem is None,
                reason=command.reason if problem is None else problem,
                policy=command.policy,
                by=command.by,
                slot=slot,
                bytes=size,
            )
        )
    moving = {group: present[group] for group in pending.queue}
    groups = sorted((g, moving.get(g, slot)) for g, slot in pending.owners.items())
    return Adaptation(
        outcomes=tuple(outcomes),
        groups=tuple(groups),
        queue=tuple(pending.queue.values()),
        forced=tuple(sorted(pending.forced.items())),
        budgets=pending.budgets,
    )


def carried_out(queue: Sequence[Move], most_bytes: int, memory: Mapping[int, SlotTotals]) -> int:
    """How many moves at the head of the queue one epoch carries out: as many as fit, at least 1.

    At most `most_bytes` in all. A slot of which `memory` has figures gets at most half of what its
    folder has free, or `LEAST_COMING` of its budget where that is more. Files of spilled rows stay
    until the epoch after they were merged, and a slot whose new rows find no room beside what came
    must spill all groups that have new rows, which may be nearly all that it holds.
    """
    total, coming = 0, Counter[int]()
    for count, move in enumerate(queue):
        total += move.bytes
        coming[move.to] += move.bytes
        if count and (total > most_bytes or coming[move.to] > _coming(memory.get(move.to))):
            return count
    return len(queue)


def _coming(slot: SlotTotals | None) -> float:
    """Bytes of groups that may come to a slot in one epoch."""
    if slot is None:
        return math.inf
    free = slot.budget_bytes - slot.folder_bytes
    return max(free / 2, LEAST_COMING * slot.budget_bytes)


def moved(groups: Groups, moves: Iterable[Move]) -> Groups:
    """The groups after some moves."""
    to = {move.group: move.to for move in moves}
    return tuple((group, to.get(group, slot)) for group, slot in groups)


def _asked(command: AdaptationCommand) -> tuple[int | None, int]:
    """The slot and the bytes that the journal keeps of what was asked for."""
    match command:
        case MoveCommand():
            return command.move.to, command.move.bytes
        case SlotsCommand():
            return None, sum(move.bytes for move in command.moves)
        case SpillCommand() | BudgetCommand():
            return command.slot, command.bytes
        case SplitCommand() | MergeCommand():
            return None, 0


def _obey(pending: _PendingAssignment, command: AdaptationCommand) -> str | None:
    """Take the command into what is pending, or say why not."""
    match command:
        case MoveCommand():
            return _move(pending, command)
        case SlotsCommand():
            return _slots(pending, command)
        case SpillCommand():
            return _spill(pending, command)
        case SplitCommand():
            return _split(pending, command)
        case MergeCommand():
            return _merge(pending, command)
        case BudgetCommand():
            return _budget(pending, command)


def _stale(state: JournalState, command: AdaptationCommand, now: str) -> str | None:
    version = command.assignment_version
    if version is not None and version != state.assignment_version:
        return f"decided on assignment {version}; it is {state.assignment_version} now"
    known, last = command.epoch, state.policy_epoch
    if command.kind == "spill" and command.policy and known is not None and known < last:
        return f"decided after epoch {known}; in epoch {last} a policy was obeyed"
    if command.expires_at and _time(now) >= _time(command.expires_at):
        return f"expired at {command.expires_at}"
    return None


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _move(pending: _PendingAssignment, command: MoveCommand) -> str | None:
    if pending.rearranged:
        return "the number of slots is being changed"
    move = command.move
    owner = pending.owners.get(move.group)
    if owner is None:
        return f"{pending.named(move.group)} is no group"
    if problem := _in_use(pending, command, [move.group], [owner, move.to]):
        return problem
    if owner == move.to:
        return f"{pending.named(move.group)} is at slot {owner} already"
    if not 0 <= move.to < pending.slots:
        return f"there is no slot {move.to}; there are {pending.slots}"
    if pending.counts[owner] == 1:
        return f"slot {owner} would own no group; change the number of slots instead"
    pending.owners[move.group] = move.to
    pending.counts[owner] -= 1
    pending.counts[move.to] += 1
    pending.take(command, [move.group], [owner, move.to])
    pending.queue[move.group] = move.model_copy(update={"decision": command.decision})
    return None


def _slots(pending: _PendingAssignment, command: SlotsCommand) -> str | None:
    if pending.queue:
        return "groups are moving; the number of slots can change when that is done"
    if command.slots == pending.slots:
        return f"there are {pending.slots} slots already"
    # What does not move is touched too: shares are worked out over all slots.
    if problem := _in_use(pending, command, [], range(pending.slots)):
        return problem
    for slot in range(command.slots, pending.slots):
        if slot in pending.forced:
            return f"slot {slot} is told to spill, and would end"
    counts = pending.counts.copy()
    owners = dict(pending.owners)
    numbered = pending.slots
    if len({move.group for move in command.moves}) < len(command.moves):
        return "a group is named twice"
    for move in command.moves:
        owner = owners.get(move.group)
        if owner is None or owner == move.to or not 0 <= move.to < command.slots:
            return f"{pending.named(move.group)} cannot move to slot {move.to}"
        if problem := _in_use(pending, command, [move.group], []):
            return problem
        owners[move.group] = move.to
        # Slot numbers stay contiguous: only the next one begins, and only the last one ends.
        begins, ends = counts[move.to] == 0, counts[owner] == 1
        if (begins and move.to != numbered) or (ends and owner != numbered + begins - 1):
            return f"after the move of {pending.named(move.group)} slot numbers would have a gap"
        counts[owner] -= 1
        counts[move.to] += 1
        numbered += begins - ends
    if numbered != command.slots:
        return f"the moves do not lead to {command.slots} slots"
    if command.policy and (problem := _overfull(pending, command)):
        return problem
    every = range(max(pending.slots, command.slots))
    pending.take(command, (move.group for move in command.moves), every)
    pending.owners, pending.counts = owners, counts
    for move in command.moves:
        pending.queue[move.group] = move.model_copy(update={"decision": command.decision})
    pending.rearranged = True
    return None


def _overfull(pending: _PendingAssignment, command: SlotsCommand) -> str | None:
    """Which slot would get more than its budget holds, or None: it would only spill it.

    A person may want that all the same. A slot that begins has the smallest budget that there is.
    """
    held = {slot: each.state_bytes for slot, each in pending.memory.items()}
    budgets = {n: pending.budgets.get(n, each.budget_bytes) for n, each in pending.memory.items()}
    came: Counter[int] = Counter()
    for move in command.moves:
        came[move.to] += move.bytes
        came[pending.owners[move.group]] -= move.bytes
    for slot, more in sorted(came.items()):
        budget = budgets.get(slot, min(budgets.values(), default=0))
        if more > 0 and budget and held.get(slot, 0) + more > budget:
            return (
                f"slot {slot} would hold {held.get(slot, 0) + more:,} bytes, over its budget of "
                f"{budget:,}"
            )
    return None


def _spill(pending: _PendingAssignment, command: SpillCommand) -> str | None:
    if pending.rearranged:
        return "the number of slots is being changed"
    slot = command.slot
    if not 0 <= slot < pending.slots:
        return f"there is no slot {slot} to spill; there are {pending.slots}"
    if problem := _in_use(pending, command, [], [slot]):
        return problem
    if slot in pending.forced:
        return f"slot {slot} is told to spill already"
    if command.policy and (others := pending.relieving - {command.decision}):
        return f"another decision of a policy, {min(others)}, is obeyed in this epoch"
    pending.forced[slot] = command.bytes
    pending.take(command, [], [slot])
    return None


def _split(pending: _PendingAssignment, command: SplitCommand) -> str | None:
    group = command.group
    if group not in pending.owners:
        return f"{pending.named(group)} is no group"
    if problem := _in_use(pending, command, [group], [pending.owners[group]]):
        return problem
    if group.depth >= DEEPEST:
        return f"{pending.named(group)} has {DEEPEST} bits, which is as deep as groups go"
    slot = pending.owners.pop(group)
    halves = _halves(group)
    pending.owners |= dict.fromkeys(halves, slot)
    pending.counts[slot] += 1
    pending.take(command, halves, [slot])
    return None


def _merge(pending: _PendingAssignment, command: MergeCommand) -> str | None:
    group = command.group
    if group.depth >= DEEPEST:
        return f"{pending.named(group)} has no halves"
    if len(joins_of(group, len(pending.joins))) > 1:
        return f"the halves of {pending.named(group)} are of different joins"
    halves = _halves(group)
    if any(half not in pending.owners for half in halves):
        return f"the halves of {pending.named(group)} are not two groups"
    slots = {pending.owners[half] for half in halves}
    if len(slots) > 1:
        return f"the halves of {pending.named(group)} are at different slots"
    if problem := _in_use(pending, command, halves, list(slots)):
        return problem
    for half in halves:
        del pending.owners[half]
    slot = slots.pop()
    pending.owners[group] = slot
    pending.counts[slot] -= 1
    pending.take(command, [group], [slot])
    return None


def _budget(pending: _PendingAssignment, command: BudgetCommand) -> str | None:
    slot = command.slot
    if slot not in pending.present:
        return f"there is no slot {slot}; there are {len(pending.present)}"
    if not command.bytes:
        pending.budgets.pop(slot, None)
        return None
    if slot in pending.memory and (problem := _no_room(pending, slot, command.bytes)):
        return problem
    pending.budgets[slot] = command.bytes
    return None


def _no_room(pending: _PendingAssignment, slot: int, wanted: int) -> str | None:
    """Why the slot's host has no room for a larger budget, or None."""
    mine = pending.memory[slot]
    shared = {n: each for n, each in pending.memory.items() if each.host == mine.host}
    free = [each.free_bytes for each in shared.values() if each.free_bytes is not None]
    budgets = {n: pending.budgets.get(n, each.budget_bytes) for n, each in shared.items()}
    if not free or wanted <= budgets[slot]:
        return None
    room = min(free) + sum(each.folder_bytes for each in shared.values())
    others = sum(budgets.values()) - budgets[slot]
    if wanted + others <= room:
        return None
    where = f"host {mine.host}" if mine.host else "the host"
    return (
        f"slot {slot} can have {max(room - others, 0):,} bytes at most: {where} has {room:,} for "
        f"state, and the budgets of its other slots take {others:,}"
    )


def _halves(group: Prefix) -> list[Prefix]:
    return [Prefix(group.depth + 1, 2 * group.value + bit) for bit in (0, 1)]


def _in_use(
    pending: _PendingAssignment,
    command: AdaptationCommand,
    groups: Iterable[Prefix],
    slots: Iterable[int],
) -> str | None:
    """Why one of these cannot be adapted now, or None."""
    mine = command.decision
    for slot in slots:
        if slot in pending.busy:
            return f"slot {slot} still takes part in an earlier adaptation"
        if pending.deciders.get(slot, mine) != mine:
            return f"slot {slot} takes part in another decision, {pending.deciders[slot]}"
    for group in groups:
        if group in pending.queue or group in pending.touched:
            return f"{pending.named(group)} is named by an earlier command"
    return None
