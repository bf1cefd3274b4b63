"""Flux's cluster on a virtual clock: producers, a skew buffer, consumers, moves and disks.

Source: Flux (UCB/CSD-2-1205), sections 3 to 6. A model of flows: in each step of `STEP_S` the
tuples of a group are a number that need not be whole. What happens in a step:

1. Producers fill the buffer with tuples in fixed proportions, as far as there is room. In the skew
   buffer of Flux (`shared`) it is for whatever comes. With Exchange (`apart`) each slot has its
   share, and the first that is full stops them all. In this system (`epochs`) a buffer's tuples are
   an epoch: the next ones come when all slots are done with these.
2. Each slot works off what the buffer has for its groups, at most what its speed allows: that is
   head-of-line blocking, for a slow slot's tuples fill the buffer and the others starve. What it
   could not use of its time is idle.
3. Groups that move give nothing until they have moved: the tuples that are under way are worked
   off, the state goes over a network of two bounds, and both ends pay for each row of the history.
4. A slot whose groups do not fit into its memory writes groups to disk, and then lets the groups on
   disk take turns (section 6.1): one is written, another read, its spooled input processed, and
   after `t_gap` the next. While it reads and writes it does nothing else. A group on disk is read,
   and its spooled input processed, before it moves.

Counts of a collection time are drawn: a sample of few tuples says little, as there.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from benchmarks.lab.workload import F64, I64
from spillway.policy.view import Bool, MoveGroup

STEP_S = 0.005
PRODUCE_S = 0.5e-6
SERVICE_S = 45e-6 + PRODUCE_S
"""Of a tuple: 45 us to process it and 0.5 us to produce another."""
LOADED = 0.43
"""Speed of a slot beside a process that computes for 100 us and sleeps for 50: the paper measured
that it takes 57 % of the throughput."""
TUPLE_BYTES = 80
UNDER_WAY = 2 * 1024 // TUPLE_BYTES
"""Tuples in the connection of a pair of machines: two packets of 1 KB."""
TUPLE_MOVE_S = 0.2e-6
"""To quiesce and to install a tuple of a history."""
PAIR_BYTES_S = 250e6 / 8
CROSS_BYTES_S = 500e6 / 8
"""Of all moves together, on `CROSS_SLOTS` slots; in proportion on more."""
CROSS_SLOTS = 32
NOTHING = 1e-6
"""Fewer tuples are none."""
MB = 1 << 20
DISK_BYTES_S = 20 * MB
SEEK_S = 0.005
SPOOL_BYTES = 64 << 10
"""Of spooled tuples so many are written at once. The paper does not say."""


def until_full(share: F64, held: F64, connection: float, room: float) -> float:
    """How many tuples more there is room for, `share` of them for each slot, (s,).

    A slot's connection takes `connection` tuples; what is over, of all slots, takes `room`. `held`:
    (s,) what is there.
    """
    over = held - connection
    free = room - float(np.maximum(over, 0.0).sum())
    if free < 0:
        return 0.0
    full_at = np.maximum(-over, 0.0) / np.maximum(share, 1e-12)
    order = np.argsort(full_at)
    full_at, share = full_at[order], share[order]
    # After the k-th connection is full, the room goes by the shares of the first k.
    rate = share.cumsum()
    used = rate * full_at - (share * full_at).cumsum()
    last = int(np.searchsorted(used, free, side="right")) - 1
    return float(full_at[last] + (free - used[last]) / max(float(rate[last]), 1e-12))


@dataclass(frozen=True)
class Buffer:
    """Room for tuples between producers and consumers."""

    tuples: float
    """Of each producer."""
    kind: Literal["shared", "apart", "epochs"] = "shared"


@dataclass
class Move:
    """A group under way."""

    group: int
    to: int
    quiet_s: float
    """Until the tuples that are under way are worked off, and it is read if it is on disk."""
    left_bytes: float


@dataclass
class Disk:
    """A slot's groups that are not in memory, and what it is doing about them."""

    inactive: deque[int] = field(default_factory=deque)
    """On disk, the one that is next to come back first."""
    active: deque[int] = field(default_factory=deque)
    """In memory, the one that is next to go first."""
    busy_until_s: float = 0.0
    """Reading or writing until then."""
    turn_at_s: float = 0.0
    """When the next one comes back."""


@dataclass
class FluxCluster:
    """The state of everything. Groups (g,), slots (s,)."""

    slots: int
    share: F64
    """(g,) of the tuples."""
    group_bytes: float
    buffer: Buffer
    seed: int = 1
    now_s: float = 0.0
    done: float = 0.0
    """Tuples that were processed."""
    waited: float = 0.0
    """Tuples on disk, times the seconds that they lay there."""
    moved: int = 0

    def __post_init__(self) -> None:
        groups = len(self.share)
        self.slot: I64 = np.arange(groups) * self.slots // groups
        self.speed = np.full(self.slots, 1 / SERVICE_S)
        self.memory = np.full(self.slots, np.inf)
        self.queued: F64 = np.zeros(groups)
        self.spooled: F64 = np.zeros(groups)
        self.on_disk: Bool = np.zeros(groups, dtype=np.bool_)
        self.moving: dict[int, Move] = {}
        self.catching_up: dict[int, tuple[float, float, float]] = {}
        """Groups whose spooled tuples are being processed: how many, from when, until when."""
        self.disks = [
            Disk(active=deque(np.flatnonzero(self.slot == s).tolist())) for s in range(self.slots)
        ]
        self.rng = np.random.default_rng(self.seed)
        self.collect()

    def collect(self) -> None:
        """Count from now on."""
        self.idle_s = np.zeros(self.slots)
        self.processed: F64 = np.zeros(len(self.share))
        self.since_s = self.now_s

    @property
    def sample(self) -> I64:
        """(g,) tuples counted since `collect`: drawn, for the model has flows."""
        return self.rng.poisson(self.processed).astype(np.int64)

    def _by_slot(self, counts: F64) -> F64:
        """(s,) sums of what groups have."""
        return np.bincount(self.slot, counts, self.slots).astype(np.float64)

    # --- a step -----------------------------------------------------------------------------

    def step(self) -> float:
        """The next step; how many tuples were processed in it."""
        self._produce()
        able = np.full(self.slots, STEP_S)
        for s in range(self.slots):
            if self._short(s):
                able[s] = self._disk(s)
        done = self._work(able) + self._catch_up()
        self._carry()
        self.now_s += STEP_S
        self.done += done
        self.waited += float(self.spooled.sum()) * STEP_S
        return done

    def _produce(self) -> None:
        mine = self._by_slot(self.share)
        held = self._by_slot(self.queued)
        room, connection = self.buffer.tuples * self.slots, float(self.slots * UNDER_WAY)
        most = self.slots * STEP_S / PRODUCE_S
        if self.buffer.kind == "epochs":  # which lie in Kafka
            more = room if float(held.sum()) < NOTHING else 0.0
        elif self.buffer.kind == "shared":
            more = min(until_full(mine, held, connection, room), most)
        else:
            more = min(until_full(mine, held, connection + room / self.slots, 0.0), most)
        self.queued += self.share * more

    def _work(self, able_s: F64) -> float:
        """Work off what is there. `able_s`: (s,) time of the step that is free for it."""
        ready = self.queued.copy()
        ready[list(self.moving)] = 0.0
        away = self.on_disk & (ready > 0)
        if away.any():  # tuples of groups on disk are spooled, which is work of another kind
            each_s = TUPLE_BYTES / DISK_BYTES_S + SEEK_S * TUPLE_BYTES / SPOOL_BYTES
            spool = self._by_slot(ready * away)
            part = np.minimum(able_s / np.maximum(spool * each_s, 1e-12), 1.0)
            went = ready * away * part[self.slot]
            self.spooled += went
            self.queued -= went
            able_s = np.maximum(able_s - part * spool * each_s, 0.0)
            ready[away] = 0.0
        mine = self._by_slot(ready)
        most = self.speed * able_s
        share = np.minimum(most / np.maximum(mine, 1e-12), 1.0)
        went = ready * share[self.slot]
        self.queued -= went
        self.processed += went
        used = np.minimum(mine, most)
        self.idle_s += able_s - used / self.speed
        return float(used.sum())

    # --- moves ------------------------------------------------------------------------------

    def start(self, moves: list[tuple[int, MoveGroup]]) -> None:
        """Begin to move groups, each with its number."""
        for group, move in moves:
            under_way = self.slots * UNDER_WAY
            quiet_s = under_way / float(self.speed[move.source])
            disk = self.disks[move.source]
            if self.on_disk[group]:
                disk.inactive.remove(group)
                at = max(disk.busy_until_s, self.now_s) + SEEK_S + self.group_bytes / DISK_BYTES_S
                disk.busy_until_s = at + self._begin_to_catch_up(group, move.source, at)
            quiet_s += max(disk.busy_until_s - self.now_s, 0.0)
            self.moving[group] = Move(group, move.to, quiet_s, self.group_bytes)

    def _carry(self) -> None:
        going = [each for each in self.moving.values() if each.quiet_s <= 0]
        cross = CROSS_BYTES_S * max(self.slots / CROSS_SLOTS, 1.0)
        rate = min(PAIR_BYTES_S, cross / max(len(going), 1))
        for each in list(self.moving.values()):
            if each.quiet_s > 0:
                each.quiet_s -= STEP_S
                continue
            each.left_bytes -= rate * STEP_S
            if each.left_bytes <= 0:
                self._arrive(each)

    def _arrive(self, move: Move) -> None:
        group, source = move.group, int(self.slot[move.group])
        pay_s = TUPLE_MOVE_S * self.group_bytes / TUPLE_BYTES
        for slot in (source, move.to):
            disk = self.disks[slot]
            disk.busy_until_s = max(disk.busy_until_s, self.now_s) + pay_s
        for queue in (self.disks[source].inactive, self.disks[source].active):
            if group in queue:
                queue.remove(group)
        self.on_disk[group] = False
        self.slot[group] = move.to
        self.disks[move.to].active.append(group)
        del self.moving[group]
        self.moved += 1

    # --- disks ------------------------------------------------------------------------------

    def held(self, slot: int) -> float:
        """Bytes in a slot's memory."""
        return len(self.disks[slot].active) * self.group_bytes

    def _short(self, slot: int) -> bool:
        disk = self.disks[slot]
        return bool(
            disk.inactive or self.held(slot) > self.memory[slot] or disk.busy_until_s > self.now_s
        )

    def _disk(self, slot: int) -> float:
        """What a slot does about its memory; the time of the step that is left for tuples."""
        disk = self.disks[slot]
        while disk.busy_until_s < self.now_s + STEP_S:
            at = max(disk.busy_until_s, self.now_s)
            io_s = SEEK_S + self.group_bytes / DISK_BYTES_S
            fits = self.held(slot) + self.group_bytes <= self.memory[slot]
            if self.held(slot) > self.memory[slot]:
                self._spill(slot)
                disk.busy_until_s = at + io_s
                disk.turn_at_s = disk.busy_until_s
            elif disk.inactive and (fits or at >= disk.turn_at_s):
                if not fits:
                    self._spill(slot)
                    io_s *= 2
                group = disk.inactive.popleft()
                disk.active.append(group)
                self.on_disk[group] = False
                pending_s = self._begin_to_catch_up(group, slot, at + io_s)
                disk.busy_until_s = at + io_s + pending_s
                # t_gap is the time that it took to read the group, the paper's rule of thumb.
                disk.turn_at_s = disk.busy_until_s + SEEK_S + self.group_bytes / DISK_BYTES_S
            else:
                break
        free: float = min(max(self.now_s + STEP_S - disk.busy_until_s, 0.0), STEP_S)
        return free

    def _spill(self, slot: int) -> None:
        disk = self.disks[slot]
        waiting = [g for g in disk.active if g not in self.moving]
        group = waiting[0] if waiting else disk.active[0]
        disk.active.remove(group)
        disk.inactive.append(group)
        self.on_disk[group] = True

    def _begin_to_catch_up(self, group: int, slot: int, at_s: float) -> float:
        """From a time on process what was spooled of a group that was read; how long it takes."""
        pending = float(self.spooled[group])
        takes_s = pending * (1 / float(self.speed[slot]) + TUPLE_BYTES / DISK_BYTES_S)
        if pending:
            self.catching_up[group] = pending, at_s, at_s + takes_s
        return takes_s

    def _catch_up(self) -> float:
        """Process spooled tuples for a step; how many."""
        done = 0.0
        for group, (pending, from_s, until_s) in list(self.catching_up.items()):
            part_s = min(self.now_s + STEP_S, until_s) - max(self.now_s, from_s)
            part = pending * max(part_s, 0.0) / (until_s - from_s)
            if self.now_s + STEP_S >= until_s:
                part = float(self.spooled[group])
                del self.catching_up[group]
            self.spooled[group] -= part
            self.processed[group] += part
            done += part
        return done
