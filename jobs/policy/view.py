"""What an adaptation policy sees, and what it says. Pure.

A policy is a function from a `View` (and its settings) to an `Advice`: what it suggests, and
what it looked at and did not suggest, with the figures that decided. Both are shown to people.

Slots are numbered 0 .. s-1; arrays over slots have the length s, arrays over groups the length g.
All figures are finite; a policy never sees NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from schemas.journal import Prefix

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]


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
    hot_share: F64 = field(default_factory=lambda: np.zeros(0))
    """(g,) the share of the rows that the group's most frequent key has, 0 where it was not
    looked at; empty: not known."""
    hot_key: tuple[str, ...] = ()
    """(g,) that key; empty: not known."""

    @property
    def slots(self) -> int:
        """How many slots there are."""
        return len(self.budget)

    @property
    def memory(self) -> I64:
        """(s,) bytes in memory of each slot."""
        held: I64 = np.zeros(self.slots, dtype=np.int64)
        np.add.at(held, self.slot, self.bytes)
        return held

    def of_slot(self, slot: int) -> I64:
        """Indices of a slot's groups, ascending."""
        return np.flatnonzero(self.slot == slot)


@dataclass(frozen=True)
class MoveGroup:
    """Move a group from its slot to another."""

    group: Prefix
    source: int
    to: int
    bytes: int
    why: str


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


def too_soon(view: View, min_span_s: float) -> str:
    """That groups moved a short while ago."""
    return f"the last was {view.since_move_s:.0f} s ago, under {min_span_s:g} s"


def name(group: Prefix) -> str:
    """A group as people write it."""
    return f"{group.depth}/{group.value}"
