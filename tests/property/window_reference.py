"""The reference of windows over whole days: from what Kafka holds, where epochs ended, and the
words of the rules. It knows nothing of `spillway_schemas.windows`, nor of what a journal says of
time.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from spillway_schemas.query import Query

Place = tuple[str, int]
"""A topic and one of its partitions."""


@dataclass(frozen=True)
class Arrival:
    """A row: where it lies, its own time and Kafka's in us, and its epoch and session."""

    place: Place
    offset: int
    time_us: int
    kafka_us: int
    epoch: int
    session: int


def time_of(value: bytes) -> int:
    """The time of a row, in us since 1970."""
    return round(datetime.fromisoformat(json.loads(value)["at"]).timestamp() * 1_000_000)


def rejected(
    query: Query, rows: Sequence[Arrival], sessions: Sequence[int], partitions: int = 2
) -> set[Arrival]:
    """Rows that were late, or ahead. `sessions`: the epoch in which each session begins;
    `partitions`: of each topic."""
    rules = query.event_time
    assert rules is not None
    ahead = {row for row in rows if row.time_us - row.kafka_us > rules.ahead_us}
    timed = [row for row in rows if row.place[0] in rules.topics]
    places = list(itertools.product(rules.topics, range(partitions)))
    late = set()
    last = max((row.epoch for row in rows), default=-1)
    clock = [
        max((row.kafka_us // 1000 for row in rows if row.epoch <= epoch), default=0)
        for epoch in range(last + 1)
    ]
    for number, begins in enumerate(sessions):
        watermark = None
        for epoch in range(begins, last + 1):
            mine = [row for row in timed if row.session == number and row not in ahead]
            if watermark is not None:
                late |= {r for r in mine if r.epoch == epoch and r.time_us < watermark}
            past = [row for row in mine if row.epoch <= epoch]
            if not past:
                continue
            begun = min(row.epoch for row in past)
            found = []
            for place in places:
                came = [row for row in past if row.place == place]
                alive = [
                    row.epoch
                    for row in timed
                    if row.place == place
                    and row not in ahead
                    and begins <= row.epoch <= epoch
                    and row.session in (number, number - 1)
                ]
                heard = clock[max([begun, *alive])]
                idle = rules.idle_after_ms
                if idle is not None and clock[epoch] - heard > idle:
                    continue
                found.append(max((row.time_us for row in came), default=None))
            if found and None not in found:
                least = min(found) - rules.lateness_us
                watermark = least if watermark is None else max(watermark, least)
    return (late | ahead) & set(timed)


@dataclass(frozen=True)
class Bounds:
    """What a join says of the times of its rows, in us; leaves by their place in a result."""

    below: tuple[tuple[int, ...], ...]
    """The leaves below each input."""
    width_us: int | None
    bands_us: tuple[tuple[int, int], ...] | None
    """Of each input but the first."""


def bounds_of(query: Query) -> list[Bounds]:
    """Of the joins that have a window or bands."""
    tree, place = query.tree, {leaf: n for n, leaf in enumerate(query.inputs)}
    found = []
    for join in tree.joins:
        said = query.joins[join.name]
        width = bands = None
        if said.window is not None:
            width = int(said.window.removesuffix(" seconds")) * 1_000_000
        if said.within is not None:
            ends = [said.within[name].split("..") for name in join.inputs[1:]]
            low_high = [[int(end.split()[0]) * 1_000_000 for end in each] for each in ends]
            bands = tuple((low, high) for low, high in low_high)
        below = tuple(tuple(place[leaf] for leaf in tree.below(each)) for each in join.inputs)
        if width is not None or bands is not None:
            found.append(Bounds(below, width, bands))
    return found


def in_time(bounds: Sequence[Bounds], times: Sequence[int]) -> bool:
    """Whether the rows of a result lie within the windows of all joins. `times`: of each leaf."""
    for join in bounds:
        below = [[times[leaf] for leaf in leaves] for leaves in join.below]
        every = list(itertools.chain(*below))
        if join.width_us is not None and max(every) - min(every) > join.width_us:
            return False
        for others, (low, high) in zip(below[1:], join.bands_us or (), strict=False):
            if not all(low <= o - f <= high for o in others for f in below[0]):
                return False
    return True


def kept(results: Counter[Any], query: Query, times: Mapping[Any, int]) -> Counter[Any]:
    """Of results by the coordinates of their rows, those within the windows. `times`: by (topic,
    partition, offset)."""
    topics = {leaf: query.topic(leaf) for leaf in query.inputs}
    bounds = bounds_of(query)
    return Counter(
        {
            result: n
            for result, n in results.items()
            if in_time(bounds, [times[topics[leaf], p, o] for leaf, p, o in result])
        }
    )
