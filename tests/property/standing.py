"""A system that stands still, under a policy: nothing comes, and groups keep their size and load.

`Still` holds the truth; `view` is what a policy sees of it, with noise if wanted; `obey` carries
out advice as the stream would. The policies, their guards and `rearranged` are the real ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from spillway.policy.distribution import Places
from spillway.policy.flux import collection_s
from spillway.policy.guards import guarded
from spillway.policy.registry import POLICIES, settings_for_policies
from spillway.policy.slots import rearranged
from spillway.policy.view import (
    F64,
    I64,
    Advice,
    ForceSpill,
    MergeGroups,
    MoveGroup,
    SetSlots,
    SplitGroup,
    View,
    occupancy,
)
from spillway.stream.genesis import placed_out
from spillway_schemas.hash_space import ROOT
from spillway_schemas.journal import Prefix
from spillway_schemas.settings import Settings

ROWS = 100_000
"""Rows a look that one slot works through, when it works all the time."""
EPOCHS = 10
"""In the time that a look covers."""


@dataclass
class Still:
    """Groups with sizes and loads, at slots with budgets."""

    groups: list[Prefix]
    slot: I64
    bytes: F64
    load: F64
    """(g,) of one slot's time."""
    results: F64
    """(g,) of the current generation, and in the time of a look."""
    budget: I64
    speed: F64
    """(s,) how fast each slot works; 1: as others."""
    cores: int
    session_bytes: int = 0
    parents: tuple[int, ...] = (ROOT,)
    """Of the joins that the groups are of."""
    left_share: float = 0.0
    """What is still to come of the session, as a share of what came."""
    spilled: F64 = field(default_factory=lambda: np.zeros(0))
    now_s: float = 0.0
    moved_s: float = float("-inf")
    forced_s: float = float("-inf")
    tuned_s: float = float("-inf")
    forced_bytes: int = 0
    looks: int = 0

    def __post_init__(self) -> None:
        self.spilled = np.zeros(len(self.groups))
        self.session_bytes = self.session_bytes or int(self.bytes.sum())

    def view(self, noise: float = 0.0, seed: int = 0) -> View:
        """What a policy sees; each figure of each group is off by at most `noise`."""
        rng = np.random.default_rng((seed, self.looks))

        def seen(values: F64) -> F64:
            return values * (1 + noise * rng.uniform(-1, 1, len(values)))

        load = seen(self.load)
        slots = len(self.budget)
        busy = np.bincount(self.slot, weights=load, minlength=slots) / self.speed
        epochs = seen(np.ones(EPOCHS))[:, None] * busy[None, :]
        span = 30.0
        results = seen(self.results)
        return View(
            groups=tuple(self.groups),
            slot=self.slot,
            bytes=seen(self.bytes).astype(np.int64),
            results=results.astype(np.int64),
            processed=(load * ROWS).astype(np.int64),
            # As many came all the time.
            came=(self.load * ROWS * (3600.0 / span)).astype(np.int64),
            spilled=self.spilled > 0,
            budget=self.budget,
            idle_s=span * np.clip(1 - busy, 0, 1),
            sampled=np.bincount(self.slot, weights=results, minlength=slots).astype(np.int64),
            # Where all slots together cannot keep up, epochs are full.
            occupancy=occupancy(epochs, 1.0, np.full(EPOCHS, bool(busy.mean() > 1))),
            collection_s=span,
            since_move_s=self.now_s - self.moved_s,
            since_forced_s=self.now_s - self.forced_s,
            since_tuned_s=self.now_s - self.tuned_s,
            session_bytes=self.session_bytes,
            elapsed_s=3600.0,
            left_s=3600.0 * self.left_share,
            forced_bytes=self.forced_bytes,
            cores=self.cores,
            seed=self.looks,
            spilled_bytes=self.spilled.astype(np.int64),
            rate=results / span if len(self.parents) > 1 else np.zeros(0),
            parents=self.parents,
        )

    def decide(self, name: str, settings: Settings, noise: float = 0.0, seed: int = 0) -> Advice:
        """What the controller would ask for."""
        view, policy = self.view(noise, seed), POLICIES[name]
        given = settings_for_policies(settings)
        rebalance = settings.rebalance
        round_s = None
        if policy.in_rounds:
            since = min(view.since_move_s, self.now_s)
            moved = None if np.isinf(self.moved_s) else 2.0
            round_s = collection_s(rebalance.collection_s, moved, since, rebalance.delta_min_s)
        advice = policy.advise(view, given)
        return guarded(view, advice, rebalance.min_span_s, rebalance.min_gain, round_s)

    def obey(self, advice: Advice) -> None:
        """Carry it out, in order."""
        index = {group: g for g, group in enumerate(self.groups)}
        cut: dict[int, list[tuple[Prefix, int, float]]] = {}
        for each in advice.suggestions:
            match each:
                case MoveGroup():
                    assert self.slot[index[each.group]] == each.source
                    self.slot[index[each.group]] = each.to
                    self.moved_s = self.now_s
                case ForceSpill():
                    self._spill(each.slot, each.bytes)
                    self.forced_s = self.now_s
                case SetSlots():
                    self._set_slots(each.slots)
                    self.moved_s = self.now_s
                case SplitGroup():
                    g, (depth, value) = index[each.group], each.group
                    cut[g] = [(Prefix(depth + 1, 2 * value + bit), g, 0.5) for bit in (0, 1)]
                    self.tuned_s = self.now_s
                case MergeGroups():
                    depth, value = each.group
                    halves = [index[Prefix(depth + 1, 2 * value + bit)] for bit in (0, 1)]
                    cut[halves[0]] = [(each.group, g, 1.0) for g in halves]
                    cut[halves[1]] = []
                    self.tuned_s = self.now_s
        if cut:
            self._recut(cut)

    def _spill(self, slot: int, wanted: int) -> None:
        """The least productive groups, until enough left memory."""
        mine = np.flatnonzero((self.slot == slot) & (self.bytes > 0))
        order = mine[np.argsort(self.results[mine] / self.bytes[mine], kind="stable")]
        up_to = np.cumsum(self.bytes[order])
        gone = order[: int(np.searchsorted(up_to, wanted)) + 1]
        self.forced_bytes += wanted
        self.spilled[gone] += self.bytes[gone]
        self.bytes[gone] = self.results[gone] = 0

    def _set_slots(self, slots: int) -> None:
        owners = zip(self.groups, self.slot.tolist(), strict=True)
        sizes = dict(zip(self.groups, self.bytes.astype(np.int64).tolist(), strict=True))
        to = {move.group: move.to for move in rearranged(owners, sizes, slots)}
        index = {group: g for g, group in enumerate(self.groups)}
        for group, slot in to.items():
            self.slot[index[group]] = slot
        more = max(slots - len(self.budget), 0)
        self.budget = np.pad(self.budget[:slots], (0, more), constant_values=self.budget.min())
        self.speed = np.pad(self.speed[:slots], (0, more), constant_values=1.0)

    def _recut(self, cut: dict[int, list[tuple[Prefix, int, float]]]) -> None:
        """Each group named becomes the (prefix, of which group, what share of it) given."""
        parts: dict[Prefix, list[tuple[int, float]]] = {}
        for g, group in enumerate(self.groups):
            for prefix, source, share in cut.get(g, [(group, g, 1.0)]):
                parts.setdefault(prefix, []).append((source, share))
        self.groups = sorted(parts, key=lambda group: group.lo)
        whole = [parts[group] for group in self.groups]
        self.slot = np.array([self.slot[of[0][0]] for of in whole])
        for name in ("bytes", "load", "results", "spilled"):
            old = getattr(self, name)
            setattr(self, name, np.array([sum(old[g] * w for g, w in of) for of in whole]))

    def wait(self, seconds: float) -> None:
        """Time passes; nothing else does."""
        self.now_s += seconds
        self.looks += 1


def in_tree(slots: int, seed: int, places: Places, parents: tuple[int, ...]) -> Still:
    """A system of several joins: `places` are the slots that each join's groups are on, as many
    for each join as `drawn` gives one."""
    one = drawn(slots, seed)
    rng = np.random.default_rng(seed)
    joins, each = len(parents), len(one.groups)
    weights = np.repeat(rng.uniform(0.3, 1, joins), each)

    def of_all(values: F64) -> F64:
        return np.tile(values, joins) * weights * rng.uniform(0.5, 1.5, joins * each)

    owned = placed_out(each, places)
    sizes, load = of_all(one.bytes), of_all(one.load) / joins
    slot = np.array([slot for _, slot in owned])
    held = np.bincount(slot, weights=sizes, minlength=slots)
    return Still(
        groups=[group for group, _ in owned],
        slot=slot,
        bytes=sizes,
        load=load,
        results=load * ROWS * np.repeat(rng.uniform(0.5, 2, joins), each),
        budget=np.maximum(held.mean() / rng.uniform(0.3, 0.95), held * 1.02).astype(np.int64),
        speed=one.speed,
        cores=slots + 4,
        parents=parents,
        left_share=one.left_share,
    )


def drawn(slots: int, seed: int) -> Still:
    """A system as a day leaves it: groups of unlike sizes and loads, slots unlike by chance.

    From 2 to 8 groups a slot; sizes and loads within a factor of three, each apart from the other;
    slots hold 30 to 95 % of their budgets, and work 20 to 140 % of the time, on average; in every
    third system hosts differ in memory and speed.
    """
    rng = np.random.default_rng(seed)
    depth = int(np.ceil(np.log2(max(slots * int(rng.choice([2, 4, 8])), 2))))
    number = 1 << depth
    slot = np.arange(number) * slots // number
    sizes = rng.uniform(1, 3, number) * 1e6
    load = rng.uniform(1, 3, number)
    if seed % 2:
        load *= rng.uniform(0.3, 1.7, slots)[slot]
    load *= rng.uniform(0.2, 1.4) / np.bincount(slot, weights=load, minlength=slots).mean()
    held = np.bincount(slot, weights=sizes, minlength=slots)
    budget = np.full(slots, held.mean() / rng.uniform(0.3, 0.95))
    speed = np.ones(slots)
    if seed % 3 == 0:
        budget *= rng.uniform(1, 1.5, slots)
        speed = rng.uniform(0.7, 1, slots)
    results = sizes * rng.uniform(0.1, 4.0, slots)[slot] * rng.uniform(0.5, 1.5, number)
    return Still(
        groups=[Prefix(depth, v) for v in range(number)],
        slot=slot,
        bytes=sizes,
        load=load,
        results=results,
        budget=np.maximum(budget, held * 1.02).astype(np.int64),
        speed=speed,
        cores=slots + 4,
        left_share=float(rng.uniform(0, 0.4)),
    )
