"""What the joins below the root gave of old, made again: for state above the leaves that was lost.

Model: Kafka has the rows of leaves only. What a join gave in a session is made again from all rows
of the leaves below it, without output: combinations of one *generation* of the join, for only those
had met in memory. When a row came is known to the nearest cut: the session's cut epochs e_0 < e_1 <
... are *marks*, and a row's *interval* is the number of marks before it (0: it came in e_0 or
earlier). A cut at mark k divides intervals up to k from those after it. What comes out of a
combination came when its last part did, so its interval is the greatest of its parts'.

A replayed row has its interval where a new one has its Kafka time.

Known limitation: a slot's share of all rows of a session is held at once, spilled or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spillway.engine.groups import I64, U64, CutIndex, GroupMap
from spillway.engine.join.kernel import Rows, join_batches
from spillway.engine.join.tree import Hash, TreeSpec
from spillway.engine.state.runs import merge
from spillway.engine.state.slices import are_over, least_of
from spillway.engine.wire.blocks import Block, rows_by_slot
from spillway_schemas.journal import Prefix
from spillway_schemas.windows import BEGINNING_US


@dataclass(frozen=True)
class SessionReplay:
    """What an epoch makes again of one session. Picklable."""

    joins: frozenset[int]
    """Those whose rows are made again."""
    slots: frozenset[int]
    """Those that have lost theirs."""
    cuts: tuple[tuple[Prefix, int], ...]
    """All cuts of the session so far, each with the number of its mark."""
    marks: int
    """How many marks there are."""
    expired_by_us: int = BEGINNING_US
    """The watermark by which rows had expired."""


class Generations:
    """In which generation of its join a row of some hash and interval is."""

    def __init__(self, replay: SessionReplay) -> None:
        self.marks = replay.marks
        self.cuts = CutIndex(replay.cuts, replay.marks + 1)

    def of(self, hashes: U64, intervals: I64) -> I64:
        """The cuts of each hash before its interval, int64 (n,)."""
        return self.cuts.count(hashes, intervals)

    def now(self, hashes: U64) -> I64:
        """All cuts of each hash, int64 (n,): the generation that is in memory."""
        return self.of(hashes, np.full(len(hashes), self.marks))


def replayed(
    spec: TreeSpec,
    groups: GroupMap,
    replays: Mapping[str, SessionReplay],
    level: int,
    rows: Mapping[str, Sequence[Sequence[Rows]]],
    batch_bytes: int,
    hash_: Hash,
) -> Iterator[Block]:
    """What the joins of a level gave of old, for the joins above: rows to `restore` in slots that
    have lost them, and to `replay` on the way to joins that have.

    `rows`: per session and input of the tree, the replayed rows that came to this slot.
    """
    for name, inputs in sorted(rows.items()):
        replay = replays[name]
        generations = Generations(replay)
        for join in spec.at_level(level):
            if join in replay.joins:
                mine = [list(inputs[i]) for i in spec.inputs_of(join)]
                yield from _again(
                    spec, groups, replay, generations, name, join, mine, batch_bytes, hash_
                )


def _again(
    spec: TreeSpec,
    groups: GroupMap,
    replay: SessionReplay,
    generations: Generations,
    session: str,
    join: int,
    rows: Sequence[Sequence[Rows]],
    batch_bytes: int,
    hash_: Hash,
) -> Iterator[Block]:
    up = spec.upward[join]
    assert up is not None, "the root's results are in their table"
    parent = spec.operators[up.input]
    for new in by_generation(rows, generations):
        for batch in join_batches(
            spec.joins[join], [[] for _ in new], new, batch_bytes=batch_bytes, sample_every=1
        ):
            found = spec.rows_up(join, batch, hash_)
            if parent in replay.joins:
                yield from rows_by_slot(
                    spec, up.input, groups, found, session=session, kind="replay"
                )
            lost = np.isin(groups.slot_of(found.key_hash), sorted(replay.slots))
            assert found.kafka_ms is not None
            held = generations.of(found.key_hash, found.kafka_ms) == generations.now(found.key_hash)
            if spec.inputs[up.input].timed:
                least_us = least_of(spec, up.input, found.table)
                held &= ~are_over(spec, up.input, least_us, replay.expired_by_us)
            at = np.flatnonzero(lost & held)
            if len(at):
                kept = Rows(found.key_hash[at], found.table.take(pa.array(at)))
                yield from rows_by_slot(
                    spec, up.input, groups, kept, session=session, kind="restore"
                )


def by_generation(
    rows: Sequence[Sequence[Rows]], generations: Generations
) -> Iterator[list[list[Rows]]]:
    """The rows of each input apart by generation: sorted runs of one generation at a time."""
    merged = [merge(pieces) if any(len(p.key_hash) for p in pieces) else None for pieces in rows]
    if any(each is None for each in merged):
        return  # an input without rows: there is no combination at all
    whole = [each for each in merged if each is not None]
    numbers = [generations.of(each.key_hash, _intervals(each)) for each in whole]
    orders = [np.argsort(number, kind="stable") for number in numbers]
    counted = [number[order] for number, order in zip(numbers, orders, strict=True)]
    for number in _common(counted):
        yield [
            [_taken(each, order[np.searchsorted(n, number) : np.searchsorted(n, number, "right")])]
            for each, order, n in zip(whole, orders, counted, strict=True)
        ]


def _common(numbers: Iterable[I64]) -> list[int]:
    """Generations that every input has rows of."""
    found: set[int] | None = None
    for each in numbers:
        mine = set(np.unique(each).tolist())
        found = mine if found is None else found & mine
    return sorted(found or ())


def _intervals(rows: Rows) -> I64:
    assert rows.kafka_ms is not None, "replayed rows have their interval there"
    return rows.kafka_ms


def _taken(rows: Rows, at: I64) -> Rows:
    """Some rows, in the order of their hashes still."""
    return Rows(rows.key_hash[at], rows.table.take(pa.array(at)), _intervals(rows)[at])
