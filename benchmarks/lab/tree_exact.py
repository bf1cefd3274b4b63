"""How many rows the joins of a chain must give, from counts alone: no code of the engine. Pure.

Model: a chain is joins of which each reads streams and, but for the first, the join before it. One
stream of each, the *carrier*, has the key of the join above as well. A row that a join gives at run
time is given in the epoch of its newest part, whatever was spilled before: so what a join gives is
told by a table of counts, by epoch and by the key of the join above. That table is what comes into
the join above, like the arrivals of a stream.

Within a generation of a group (the epochs between two of its cuts; a cut of an epoch takes that
epoch's rows with it) a key's combinations of the other inputs are the product of their counts so
far. A carrier's row is joined with all of these in the epoch in which it comes, and afterwards with
those that each epoch adds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from benchmarks.lab.tree_workload import TreeDay
from benchmarks.lab.workload import I64
from spillway.engine.groups import GroupMap

Cut = tuple[int, int, int]
"""(join, its group, epoch)."""

CHAIN: tuple[tuple[tuple[str, str, str], dict[str, str]], ...] = (
    (("c", "c1", "c2"), {"a": "a1", "b": "b1"}),
    (("d", "d1", "d2"), {}),
    (("e", "e1", ""), {}),
)
"""Of each join its carrier, with its column of the join's key and the one of the join above, and
the other streams with their columns."""


@dataclass(frozen=True)
class Level:
    """One join of a day; `k` values of its key, `n` rows of its carrier, `e` epochs."""

    group: I64
    """(k,) each value's group."""
    others: tuple[I64, ...]
    """(k, e) arrivals of the streams beside the carrier."""
    key: I64
    """(n,) of the carrier's rows: which value they have,"""
    above: I64
    """(n,) which value of the key of the join above (of the root's: their group),"""
    epoch: I64
    """(n,) and when they come."""
    epochs: int
    nexts: int
    """How many values `above` may have."""

    @cached_property
    def carried(self) -> I64:
        """(k, e) arrivals of the carrier."""
        return _tally(self.key, self.epoch, len(self.group), self.epochs)

    @property
    def streams(self) -> tuple[I64, ...]:
        """(k, e) arrivals of all streams that the join reads."""
        return (*self.others, self.carried)


@dataclass(frozen=True)
class Counted:
    """What comes at run time."""

    given: tuple[I64, ...]
    """Of each join (e, values of the key above): the rows that it gives. The last one are the
    results, by the root's groups."""
    held: tuple[I64, ...]
    """Of each join (inputs, e): rows in memory at the end of each epoch; streams come first, the
    carrier the last of them, then the join below."""

    @property
    def results(self) -> I64:
        """(e,) results of each epoch."""
        found: I64 = self.given[-1].sum(axis=1)
        return found


def levels(day: TreeDay) -> tuple[Level, ...]:
    """The joins of a day of `CHAIN`."""
    spec = day.query.spec
    assigned = day.of_all_joins(GroupMap.initial(day.groups, 1))
    columns: list[list[tuple[str, str]]] = [[] for _ in CHAIN]
    for join, ((carrier, key, above), others) in enumerate(CHAIN):
        columns[join] += [(carrier, key), *others.items()]
        if above:
            columns[join + 1].append((carrier, above))
    values = [
        np.unique(np.concatenate([day.streams[stream].keys(name) for stream, name in each]))
        for each in columns
    ]
    groups = [
        assigned.group_of(spec.hashes(join, [pa.array(each)])) - join * day.groups
        for join, each in enumerate(values)
    ]
    found = []
    for join, ((carrier, key, above), others) in enumerate(CHAIN):
        rows = day.streams[carrier]
        own = np.searchsorted(values[join], rows.keys(key))
        found.append(
            Level(
                groups[join],
                tuple(
                    _tally(
                        np.searchsorted(values[join], day.streams[stream].keys(name)),
                        day.streams[stream].epoch,
                        len(values[join]),
                        day.epochs,
                    )
                    for stream, name in others.items()
                ),
                own,
                np.searchsorted(values[join + 1], rows.keys(above)) if above else groups[join][own],
                rows.epoch,
                day.epochs,
                len(values[join + 1]) if above else day.groups,
            )
        )
    return tuple(found)


def counted(chain: Sequence[Level], groups: int, cuts: Iterable[Cut] = ()) -> Counted:
    """What comes at run time, given the cuts. `groups`: of each join."""
    wanted = set(cuts)
    given: list[I64] = []
    held: list[I64] = []
    for join, level in enumerate(chain):
        begins = _begins(groups, level.epochs, [(g, e) for j, g, e in wanted if j == join])
        begin = begins[level.group]
        below = [given[-1].T] if given else []
        held.append(np.stack([_staying(each, begin) for each in (*level.streams, *below)]))
        given.append(_given(level, [*level.others, *below], begin[:, :-1]))
    return Counted(tuple(given), tuple(held))


def _begins(groups: int, epochs: int, cuts: Iterable[tuple[int, int]]) -> I64:
    """(g, e + 1) the epoch in which the generation begins that epoch e's rows come into."""
    found = np.zeros((groups, epochs + 1), dtype=np.int64)
    for group, epoch in cuts:
        if epoch < epochs:  # the epoch after the last one is the seal's
            found[group, epoch + 1] = epoch + 1
    return np.maximum.accumulate(found, axis=1)


def _given(level: Level, others: Sequence[I64], begin: I64) -> I64:
    """(e, values above) the rows that a join gives. `begin`: (k, e)."""
    product = np.ones_like(begin)
    for arrived in others:
        product *= _so_far(arrived, begin)
    before = np.zeros_like(product)
    before[:, 1:] = np.where(begin[:, 1:] == begin[:, :-1], product[:, :-1], 0)
    added = product - before
    found = np.zeros((level.epochs, level.nexts), dtype=np.int64)
    for epoch in range(level.epochs):
        came, end = np.searchsorted(level.epoch, (epoch, epoch + 1))
        now = slice(came, end)
        np.add.at(found[epoch], level.above[now], product[level.key[now], epoch])
        key = level.key[:came]
        there = np.flatnonzero(level.epoch[:came] >= begin[key, epoch])
        np.add.at(found[epoch], level.above[there], added[key[there], epoch])
    return found


def _so_far(arrived: I64, begin: I64) -> I64:
    """(k, e) rows of the generation of epoch e that have come until its end."""
    total = np.concatenate([np.zeros_like(arrived[:, :1]), arrived.cumsum(axis=1)], axis=1)
    found: I64 = total[:, 1:] - np.take_along_axis(total, begin, axis=1)
    return found


def _staying(arrived: I64, begin: I64) -> I64:
    """(e,) rows that are there at the end of each epoch, its cuts made. `begin`: (k, e + 1)."""
    total = np.concatenate([np.zeros_like(arrived[:, :1]), arrived.cumsum(axis=1)], axis=1)
    left = total[:, 1:] - np.take_along_axis(total, begin[:, 1:], axis=1)
    found: I64 = left.sum(axis=0)
    return found


def _tally(key: I64, epoch: I64, keys: int, epochs: int) -> I64:
    """(k, e) how often each key comes in each epoch."""
    found: I64 = np.bincount(key * epochs + epoch, minlength=keys * epochs)
    return found.reshape(keys, epochs)
