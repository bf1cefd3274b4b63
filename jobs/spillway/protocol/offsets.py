"""Arithmetic of Kafka offsets: per topic, one exclusive end offset a partition.

A topic may gain partitions while the journal lives; a partition that an older record does not
know began at offset 0, so shorter lists are padded with zeros.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest

from spillway_schemas.journal import Offsets


def padded(offsets: Offsets, like: Offsets) -> Offsets:
    """`offsets` with the topics and the number of partitions of `like`, zeros where unknown."""
    out: Offsets = {}
    for topic, ends in like.items():
        known = offsets.get(topic, [])
        out[topic] = known + [0] * (len(ends) - len(known))
    return out


def offset_of(offsets: Offsets, topic: str, partition: int) -> int:
    """That of one partition; 0 where it is not known."""
    ends = offsets.get(topic, [])
    return ends[partition] if partition < len(ends) else 0


def greater(a: Offsets, b: Offsets) -> Offsets:
    """Partition by partition the greater offset."""
    return {topic: [max(x, y) for x, y in both] for topic, both in _both(a, b)}


def least(a: Offsets, b: Offsets) -> Offsets:
    """Partition by partition the lesser offset."""
    return {topic: [min(x, y) for x, y in both] for topic, both in _both(a, b)}


def reaches(a: Offsets, b: Offsets) -> bool:
    """Whether `a` is at or beyond `b` on every partition."""
    return all(x >= y for _, both in _both(a, b) for x, y in both)


def wider(a: Offsets, b: Offsets) -> Offsets:
    """The topics of both, each with the greater number of partitions (values of no meaning)."""
    return {topic: max(a.get(topic, []), b.get(topic, []), key=len) for topic in {**a, **b}}


def partitions(offsets: Offsets) -> Iterable[tuple[str, int, int]]:
    """Every (topic, partition, offset)."""
    return ((t, p, end) for t, ends in offsets.items() for p, end in enumerate(ends))


def rows_between(start: Offsets, end: Offsets) -> int:
    """Offsets from `start` to `end`: an upper bound of the rows between them."""
    return sum(e - s for s, e in _pairs(start, end))


def towards(start: Offsets, end: Offsets, rows: int) -> Offsets:
    """Where an epoch ends that begins at `start`, on the way to `end` in epochs of at most `rows`.

    `end`, where it is no further. Else the epochs on the way are of one size, and each partition
    gives the part of them that it has of the whole, so that all arrive together.
    """
    whole = rows_between(start, end)
    if whole <= rows or not reaches(end, start):
        return end
    share = -(-whole // -(-whole // rows))
    first = padded(start, end)
    taken, seen = 0, 0
    out: Offsets = {}
    for topic, ends in end.items():
        out[topic] = []
        for s, e in zip(first[topic], ends, strict=True):
            seen += e - s
            upto = seen * share // whole  # of the partitions so far, so that nothing is lost
            out[topic].append(s + upto - taken)
            taken = upto
    return out


def _both(a: Offsets, b: Offsets) -> Iterable[tuple[str, Iterable[tuple[int, int]]]]:
    """Each topic of either, with both offsets of each partition."""
    topics = a if a.keys() == b.keys() else {**a, **b}
    return ((t, zip_longest(a.get(t, ()), b.get(t, ()), fillvalue=0)) for t in topics)


def _pairs(start: Offsets, end: Offsets) -> Iterable[tuple[int, int]]:
    first = padded(start, end)
    return ((s, e) for t, ends in end.items() for s, e in zip(first[t], ends, strict=True))
