"""What an adaptation policy sees, and what it says. Pure.

A policy is a function from a `View` (and its settings) to an `Advice`: what it suggests, and
what it looked at and did not suggest, with the figures that decided. Both are shown to people.

Slots are numbered 0 .. s-1; arrays over slots have the length s, arrays over groups the length g.
All figures are finite; a policy never sees NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from spillway_schemas.hash_space import ROOT, group_text, join_numbers, spaces
from spillway_schemas.journal import Prefix

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

NOISE = 0.05
"""Figures of a moment differ from the lasting ones by as much: no policy shall move to and fro
for that."""
IDLE = 0.05
"""Utilisations that differ by less are alike, and of a slot that works less no speed is told."""
CALM_S = 60.0
"""Between an adaptation and the next that figures off by `NOISE` may explain."""
THRESHOLD = 0.8
"""Of its budget, at which a slot spills."""


@dataclass(frozen=True)
class View:
    """The groups and slots at one moment."""

    groups: tuple[Prefix, ...]
    slot: I64
    """(g,) each group's slot."""
    bytes: I64
    """(g,) bytes in memory."""
    results: I64
    """(g,) results of the current generation."""
    processed: I64
    """(g,) rows that came in the collection time."""
    spilled: Bool
    """(g,) whether a generation of the open session is on disk."""
    budget: I64
    """(s,) bytes of memory."""
    idle_s: F64
    """(s,) idle seconds of the collection time."""
    sampled: I64
    """(s,) results in the sampling time (the collection time)."""
    occupancy: F64
    """(s,) average buffer occupancy over the reorganisation epoch, 0 to 1."""
    collection_s: float
    """Seconds that `processed`, `idle_s` and `sampled` were collected over."""
    since_move_s: float = float("inf")
    """Seconds since the last relocation was decided."""
    since_forced_s: float = float("inf")
    """Seconds since a policy last told a slot to spill."""
    since_tuned_s: float = float("inf")
    """Seconds since a policy last split or merged a group."""
    session_bytes: int = 0
    """State that the session has made so far, in memory and spilled."""
    elapsed_s: float = 0.0
    """Seconds of the session so far."""
    left_s: float = 0.0
    """Seconds until its close."""
    forced_bytes: int = 0
    """What policies have forced to spill in this session."""
    cores: int = 0
    """Cores of all executors; 0: not known."""
    seed: int = 0
    """For policies that draw; the epoch, so that the same view gives the same advice."""
    rate: F64 = field(default_factory=lambda: np.zeros(0))
    """(g,) results per second lately; empty: not known."""
    loss: F64 = field(default_factory=lambda: np.zeros(0))
    """(g,) results that each group would give up were it spilled now; empty: not known, then what
    its current generation has given."""
    hot_share: F64 = field(default_factory=lambda: np.zeros(0))
    """(g,) the share of the rows that the group's most frequent key has, 0 where it was not
    looked at; empty: not known."""
    hot_key: tuple[str, ...] = ()
    """(g,) that key; empty: not known."""
    spilled_bytes: I64 = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """(g,) what spills wrote to disk of each group, to wait for cleanup; empty: not known."""
    came: I64 = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """(g,) rows that came since the session began; empty: not known."""
    parents: tuple[int, ...] = (ROOT,)
    """Of each join of the query, children first, the join that reads it. The groups are those of
    all joins; a join's `rate` is of the rows that its parent gets."""
    joins: tuple[str, ...] = ()
    """Their names; empty: not known."""
    swing: float = 1.0
    """What a group has in memory at least, of what it has at most, while nothing changes: rows of
    windows leave by slices. 1: no join has a window."""

    def named(self, group: Prefix) -> str:
        """A group as people know it."""
        return group_text(group, self.joins) if self.joins else group.text

    @property
    def slots(self) -> int:
        """How many slots there are."""
        return len(self.budget)

    @cached_property
    def join(self) -> I64:
        """(g,) each group's join."""
        return join_numbers(self.groups, len(self.parents))

    @cached_property
    def depth(self) -> I64:
        """(g,) by how many bits each group is a part of its join."""
        whole = np.array([space.depth for space in spaces(len(self.parents))], dtype=np.int64)
        depths: I64 = np.array([group.depth for group in self.groups], dtype=np.int64)
        return depths - whole[self.join]

    @cached_property
    def work(self) -> F64:
        """(g,) rows that came and results that were made, per second and lately."""
        work: F64 = self.processed / max(self.collection_s, 1e-9)
        return work + self.rate if len(self.rate) else work

    @property
    def growth(self) -> float:
        """Bytes of state that a second of the session has made, on average so far.

        From less than a second none can be told.
        """
        return self.session_bytes / max(self.elapsed_s, 1.0)

    @property
    def output_rate(self) -> F64:
        """(s,) in the sampling time."""
        return output_rate(self.sampled, np.bincount(self.slot, minlength=self.slots))

    @cached_property
    def memory(self) -> I64:
        """(s,) bytes in memory of each slot."""
        return self.by_slot(self.bytes)

    @cached_property
    def fill(self) -> F64:
        """(s,) the share of its budget that each slot has in memory."""
        share: F64 = self.memory / self.budget
        return share

    @cached_property
    def loss_per_byte(self) -> F64:
        """(g,) what policies rank groups by where memory is short; 0 for a group without state."""
        loss = self.loss if len(self.loss) else self.results
        each: F64 = loss / np.maximum(self.bytes, 1)
        return each

    @cached_property
    def sizes(self) -> I64:
        """(g,) bytes of each group's whole state: in memory, and spilled."""
        return self.bytes + self.spilled_bytes if len(self.spilled_bytes) else self.bytes

    @cached_property
    def state(self) -> I64:
        """(s,) bytes of the whole state of each slot's groups: in memory, and spilled.

        Spilled rows lie in one table and belong to no slot; they count where their group is.
        """
        return self.by_slot(self.sizes)

    @cached_property
    def has_spilled(self) -> Bool:
        """(s,) whether a slot's groups have anything on disk."""
        return self.by_slot(self.spilled.astype(np.int64)) > 0

    def lacks(self, share: float) -> Bool:
        """(s,) whether a slot has spilled what it could not have in `share` of its budget again.

        Spilled rows stay on disk until cleanup. What Flux asks, whether every partition is
        resident again, is answered by whether it could be: its own spilled partitions come back
        as soon as there is room. Where it is not known how much was spilled, it does not fit.
        """
        known = self.state > self.memory
        lacking: Bool = self.has_spilled & ~(known & (self.state <= share * self.budget))
        return lacking

    def fits(self, share: float) -> bool:
        """Whether no slot lacks room in `share` of its budget for what it has spilled."""
        return not self.lacks(share).any()

    def by_slot(self, weights: I64) -> I64:
        """(s,) sums of whole numbers (g,)."""
        held: I64 = np.zeros(self.slots, dtype=np.int64)
        np.add.at(held, self.slot, weights)
        return held

    @cached_property
    def _in_order(self) -> tuple[I64, I64]:
        """Groups by slot, and where each slot begins: (g,), (s + 1,)."""
        order: I64 = np.argsort(self.slot, kind="stable")
        return order, np.searchsorted(self.slot[order], np.arange(self.slots + 1))

    def of_slot(self, slot: int) -> I64:
        """Indices of a slot's groups, ascending."""
        order, begins = self._in_order
        return order[begins[slot] : begins[slot + 1]]


@dataclass(frozen=True)
class MoveGroup:
    """Move a group from its slot to another."""

    group: Prefix
    source: int
    to: int
    bytes: int
    why: str
    sure: bool = True
    """Whether it would be suggested, too, if every figure were off by `NOISE`."""


@dataclass(frozen=True)
class ForceSpill:
    """Spill at least so many bytes at a slot."""

    slot: int
    bytes: int
    why: str


@dataclass(frozen=True)
class SplitGroup:
    """Cut a group in two by one more bit."""

    group: Prefix
    why: str


@dataclass(frozen=True)
class MergeGroups:
    """Make one group of the two halves of a range."""

    group: Prefix
    why: str


@dataclass(frozen=True)
class SetSlots:
    """Change the number of slots."""

    slots: int
    why: str


Suggestion = MoveGroup | ForceSpill | SplitGroup | MergeGroups | SetSlots


@dataclass(frozen=True)
class Declined:
    """What a policy looked at and did not suggest."""

    what: str
    why: str


@dataclass(frozen=True)
class Advice:
    """What a policy says."""

    suggestions: tuple[Suggestion, ...] = ()
    declined: tuple[Declined, ...] = ()
    whole: bool = False
    """Whether the suggestions are parts of one: guards let all of them pass or none."""


def output_rate(results: I64, groups: I64) -> F64:
    """(s,) results of some time for each group of a slot (TR-05-04, section 6)."""
    rate: F64 = results / np.maximum(groups, 1)
    return rate


def occupancy(busy_s: F64, interval_s: float, full: Bool) -> F64:
    """(s,) average buffer occupancy of slots, 0 to 1, from their busy seconds (e, s) by epoch.

    In the paper (windowed joins, section IV-C) a slave's input buffer is what a distribution
    epoch leaves over. Here the rows wait in Kafka for all slots together, and an epoch ends when
    its last slot is done; so what a slot leaves over is the part of its work that did not fit
    into `interval_s`, the time between the beginnings of two epochs: an epoch's work that takes
    one and a half intervals leaves half an interval's rows in the buffer. Where epochs follow
    each other at once (`interval_s` 0) each is as long as the slots need on average.

    An epoch that read as many rows as it might, `full` (e,), left more of them in Kafka. Their
    number says nothing of who holds them up, but the work does: the buffer of the slot that
    works longest is full, another's as much as it works in comparison.
    """
    if not busy_s.size:
        return np.zeros(busy_s.shape[1])
    interval = np.full(len(busy_s), interval_s) if interval_s > 0 else busy_s.mean(axis=1)
    over = busy_s / np.maximum(interval, 1e-9)[:, None] - 1
    longest = np.maximum(busy_s.max(axis=1, keepdims=True), 1e-9)
    over = np.where(full[:, None], busy_s / longest, over)
    mean: F64 = np.clip(over, 0.0, 1.0).mean(axis=0)
    return mean


def declined(what: str, why: str) -> Advice:
    """Nothing is suggested, for one reason."""
    return Advice(declined=(Declined(what, why),))


def from_both_ends(order: I64) -> list[tuple[int, int]]:
    """Slots in pairs: the first of `order` with the last, the second with the last but one, ..."""
    half = len(order) // 2
    return list(zip(order[:half].tolist(), order[::-1][:half].tolist(), strict=True))


def surely_below(less: float, share: float, more: float) -> bool:
    """Whether `less` is below `share` of `more`, though both may be off by `NOISE`."""
    return less * (1 + NOISE) < share * more * (1 - NOISE)


def too_soon(view: View, min_span_s: float) -> str:
    """That groups moved a short while ago."""
    return f"the last was {view.since_move_s:.0f} s ago, not over {min_span_s:g} s"
