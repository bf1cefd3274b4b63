"""On which slots the groups of each join begin: `plan.distribution`. Pure: a tree in, slots out.

Source: Liu, Zhu, Jbantova, Momberger & Rundensteiner, DAX, VLDB 2005 demonstration, slide 6. There
an operator is on one machine. Here a join may have groups on several slots, and every slot has some
group; so what DAX does with operators is done with a join's *places*, the slots that have its
groups.

`all`: every join has groups on all slots. Not of DAX, whose operators are not partitioned there.

`random`: "iteratively takes each query operator and places it on the query processor with the least
number of operators". Here joins come in a drawn order, and ties are drawn. Slots that are left over
go to the joins with the fewest slots, in the same way.

`balanced-network-aware`: "takes each query plan and creates sub-plans where neighbouring operators
are grouped together", to minimise network connectivity. Here the tree is cut into sub-plans. Each
gets slots of its own, as many as its load asks for; where slots are fewer than sub-plans, some
share one. Of all cuts with even loads that one is taken in which most rows stay at their slot.

The slide's text gives both goals without saying which belongs to which strategy; so we read it.

What rows a join gives is not known before there are any, so it is estimated (`Tree`). The slides
say neither how loads are counted nor what "balanced" allows: see docs/decisions/0025.

Invariants of what is returned: a join has one slot at least, each slot has one join at least.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from spillway_schemas.hash_space import ROOT

Places = tuple[tuple[int, ...], ...]
"""Of each join, children first, the slots that have its groups, ascending."""

MOST_LOAD = 1.25
"""A slot may have this many times the average of the expected load."""
MOST_CUTS = 8
"""Edges that may be cut, those with the fewest rows: of a tree of nine joins all. 2^8 cuts take a
tenth of a second."""


@dataclass(frozen=True)
class Tree:
    """The joins of a query, children first, and the rows that are expected of them.

    Assumption, where nothing is said: each stream gives one row in the same time, and a join gives
    as many rows as come to it.
    """

    parents: tuple[int, ...]
    """The join that reads each join; `ROOT`: none."""
    streams: tuple[int, ...]
    """How many streams each join reads itself."""
    told: Mapping[int, float]
    """Of some joins the rows that they give where a stream gives one: what is known better."""

    @cached_property
    def _flows(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        come = [float(each) for each in self.streams]
        gives: list[float] = []
        for join, parent in enumerate(self.parents):  # children come first
            gives.append(self.told.get(join, come[join]))
            if parent != ROOT:
                come[parent] += gives[join]
        return tuple(come), tuple(gives)

    @property
    def gives(self) -> tuple[float, ...]:
        """Rows that each join gives where a stream gives one."""
        return self._flows[1]

    @cached_property
    def loads(self) -> tuple[float, ...]:
        """Rows that come to each join and rows that it gives, as policies count work."""
        return tuple(map(sum, zip(*self._flows, strict=True)))

    @cached_property
    def edges(self) -> tuple[int, ...]:
        """The joins that another one reads: each stands for the edge to its reader."""
        return tuple(join for join, parent in enumerate(self.parents) if parent != ROOT)


def distribution(
    kind: str, tree: Tree, slots: int, seed: int = 0, most_load: float = MOST_LOAD
) -> Places:
    """The slots of each join's groups. `kind`: a value of `plan.distribution`.

    Raises ValueError for another one, and for less than one slot.
    """
    if slots < 1:
        raise ValueError(f"there must be one slot or more, not {slots}")
    every = tuple(range(slots))
    match kind:
        case "random":
            return _random(len(tree.parents), slots, seed)
        case "balanced-network-aware":
            return _network_aware(tree, slots, most_load)
        case "all":
            return (every,) * len(tree.parents)
    raise ValueError(f"there is no distribution {kind!r}")


def _random(joins: int, slots: int, seed: int) -> Places:
    draw = random.Random(seed)
    places: list[set[int]] = [set() for _ in range(joins)]
    held = [0] * slots
    for join in draw.sample(range(joins), joins):
        slot = _fewest(draw, held)
        places[join].add(slot)
        held[slot] += 1
    for slot in draw.sample(range(slots), slots):
        if not held[slot]:
            places[_fewest(draw, list(map(len, places)))].add(slot)
    return tuple(tuple(sorted(each)) for each in places)


def _fewest(draw: random.Random, counts: Sequence[int]) -> int:
    """Who has the fewest; one of them is drawn."""
    least = min(counts)
    return draw.choice([at for at, each in enumerate(counts) if each == least])


def _network_aware(tree: Tree, slots: int, most_load: float) -> Places:
    """Of all cuts of the tree into two sub-plans or more those that give no slot more than
    `most_load` times the average load, or else those with the least; of these that in which the
    fewest rows go from slot to slot; then the one with the fewest pairs of slots that exchange
    rows; then the evenest, and the first.
    """
    places: Places = (tuple(range(slots)),) * len(tree.parents)
    if slots == 1:
        return places
    best: tuple[float, ...] = ()
    few = sorted(sorted(tree.edges, key=lambda join: tree.gives[join])[:MOST_CUTS])
    for number in range(1, len(few) + 1):
        for cut in combinations(few, number):
            found = _placed(tree, _sub_plans(tree, frozenset(cut)), slots)
            most = unevenness(tree, found, slots)
            crossing, pairs = exchanged(tree, found)
            score = (max(most, most_load), round(crossing, 9), float(pairs), most)
            if not best or score < best:
                places, best = found, score
    return places


def _sub_plans(tree: Tree, cut: frozenset[int]) -> list[int]:
    """Of each join the number of its sub-plan, when the edges from some joins are cut."""
    top = list(range(len(tree.parents)))
    for join in reversed(tree.edges):  # parents come last
        if join not in cut:
            top[join] = top[tree.parents[join]]
    number = {each: n for n, each in enumerate(dict.fromkeys(top))}
    return [number[each] for each in top]


def _placed(tree: Tree, sub_plans: Sequence[int], slots: int) -> Places:
    """Slots for each sub-plan: one, and each further one where a slot has the greatest load.

    Where slots are fewer, the sub-plan with the greatest load comes first, and each goes to the
    slot that has the least until then.
    """
    load = [0.0] * (1 + max(sub_plans))
    for join, number in enumerate(sub_plans):
        load[number] += tree.loads[join]
    if len(load) > slots:
        held = [(0.0, 0)] * slots  # and how many: one without a load fills a slot, too
        at = [0] * len(load)
        for number in sorted(range(len(load)), key=lambda number: -load[number]):
            slot = held.index(min(held))
            at[number] = slot
            held[slot] = held[slot][0] + load[number], held[slot][1] + 1
        return tuple((at[number],) for number in sub_plans)
    width = [1] * len(load)
    for _ in range(slots - len(load)):
        most = max(range(len(load)), key=lambda number: load[number] / width[number])
        width[most] += 1
    first = [sum(width[:number]) for number in range(len(width))]
    return tuple(tuple(range(first[n], first[n] + width[n])) for n in sub_plans)


def unevenness(tree: Tree, places: Places, slots: int) -> float:
    """The greatest expected load of a slot over the average; 1: they are even."""
    load = [0.0] * slots
    for join, mine in enumerate(places):
        for slot in mine:
            load[slot] += tree.loads[join] / len(mine)
    return round(max(load) * slots / (sum(load) or 1.0), 9)


def exchanged(tree: Tree, places: Places) -> tuple[float, int]:
    """Rows that go from one slot to another, where a stream gives one; and from how many slots to
    how many others, in pairs.

    A join's rows have all hashes of the join that reads it, so from each slot they go to all slots
    of that join alike. Rows of streams come from Kafka, whatever the distribution.
    """
    crossing, pairs = 0.0, set()
    for join in tree.edges:
        of, to = places[join], places[tree.parents[join]]
        both = len(set(of) & set(to))
        crossing += tree.gives[join] * (1 - both / (len(of) * len(to)))
        pairs |= {(a, b) for a in of for b in to if a != b}
    return crossing, len(pairs)


def told_rows(text: str) -> dict[str, float]:
    """`plan.rows` by the joins' names. The settings have checked how it is written."""
    return {name: float(rows) for name, _, rows in _assigned(text)}


def _assigned(text: str) -> Iterable[tuple[str, str, str]]:
    return (each.strip().partition("=") for each in text.split(",") if each.strip())
