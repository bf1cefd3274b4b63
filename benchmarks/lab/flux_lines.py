"""One line of a figure of Flux's: a cluster, what befalls it, and a policy in rounds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from benchmarks.lab.flux_cluster import (
    LOADED,
    MB,
    SERVICE_S,
    STEP_S,
    Buffer,
    FluxCluster,
)
from benchmarks.lab.workload import F64
from spillway.policy.flux import next_collection_s
from spillway.policy.registry import POLICIES
from spillway.policy.view import MoveGroup, View
from spillway_schemas.journal import Prefix
from spillway_schemas.setting_fields import RebalanceSettings

GB = 1024 * MB
GROUP_KEYS = 16_384
"""Groups of the paper's group-by: keys, spread over the partition groups."""
SETTINGS = {**RebalanceSettings().model_dump(), "threshold": 1.0}
"""The system's own, but that a slot spills when its memory is full, as there."""


@dataclass(frozen=True)
class FluxLine:
    """A cluster and what befalls it."""

    name: str
    policy: str = ""
    """None when empty: nothing moves."""
    slots: int = 32
    groups_of_slot: int = 64
    group_bytes: float = 800e3
    buffer: Buffer = field(default_factory=lambda: Buffer(2048))
    skewed: bool = False
    """Keys follow an 80/20 distribution, at every scale; else all are alike."""
    loaded: int = 0
    """Slots that an external process slows down from `at_s` on."""
    busiest: bool = False
    """The slot with the most popular key is among them."""
    memory: tuple[tuple[int, float], ...] = ()
    """(Slots, bytes): so many slots have so much memory from `at_s` on; first these, then the next
    ones."""
    at_s: float = 1.0
    rotating_s: float = 0.0
    """The external process runs so long on each slot in turn."""
    delta_min_s: float = 0.01
    noise: float = 0.0
    """What the system's policies allow for; 0: they are the paper's."""
    seconds: float = 60.0
    tail_s: float = 10.0
    """Of the end, over which the steady state is taken."""


@dataclass(frozen=True)
class FluxOutcome:
    """What a line came to. Everything is the model's but `decision_ms`, which is measured."""

    name: str
    throughput: list[float]
    """Tuples a second, in each second."""
    latency_s: list[float]
    """Mean time that a tuple lies on disk or is being processed, in each second."""
    steady: float
    """Tuples a second at the end."""
    steady_latency_s: float
    whole: float
    """Tuples a second, of the whole run."""
    moved: int
    last_move_s: float
    """When the last group arrived; 0: none did."""
    moving: float
    """The part of the time in which groups were under way."""
    rounds: int
    decision_ms: float
    """The longest that the policy took."""
    cpu_s: float


def shares(line: FluxLine) -> F64:
    """(g,) the part of the tuples that each group gets."""
    groups = line.slots * line.groups_of_slot
    if not line.skewed:
        return np.full(groups, 1 / groups)
    # 80 % of the tuples have 20 % of the keys, and so on within these: F(x) = x^(ln .8 / ln .2).
    edges = (np.arange(GROUP_KEYS + 1) / GROUP_KEYS) ** (np.log(0.8) / np.log(0.2))
    keys = np.random.default_rng(7).permutation(np.diff(edges))
    at = np.arange(GROUP_KEYS) * groups // GROUP_KEYS
    return np.bincount(at, keys, groups).astype(np.float64)


@dataclass
class Controller:
    """Flux's rounds: a collection time, then at most one move for each pair of slots."""

    cluster: FluxCluster
    policy: str
    delta_min_s: float
    noise: float = 0.0
    delta_s: float = 0.0
    rounds: int = 0
    moving_s: float = 0.0
    last_s: float = 0.0
    longest_s: float = 0.0
    began_s: float | None = None
    """When the moves began that are under way."""
    answered_s: float | None = None
    """When the last slot answers a question that was asked: each finishes a read or write first."""

    def __post_init__(self) -> None:
        self.delta_s = self.delta_min_s
        groups = len(self.cluster.share)
        depth = groups.bit_length() - 1
        self.groups = tuple(Prefix(depth, value) for value in range(groups))

    def look(self) -> None:
        """After a step."""
        cluster = self.cluster
        if self.began_s is not None:
            self.moving_s += STEP_S
            if cluster.moving:
                return
            self.last_s = cluster.now_s
            moved_s = cluster.now_s - self.began_s
            self.delta_s = next_collection_s(self.delta_s, moved_s, self.delta_min_s)
            self.began_s = None
            cluster.collect()
        elif self.answered_s is None and cluster.now_s - cluster.since_s >= self.delta_s:
            self.answered_s = max(disk.busy_until_s for disk in cluster.disks)
        if self.answered_s is not None and cluster.now_s >= self.answered_s:
            self.answered_s = None
            self._round()

    def _round(self) -> None:
        cluster = self.cluster
        view = self._view()
        began = time.perf_counter()
        policy = POLICIES[self.policy]
        advice = policy.decide(view, noise=self.noise, **policy.given(SETTINGS))
        self.longest_s = max(self.longest_s, time.perf_counter() - began)
        self.rounds += 1
        moves = [each for each in advice.suggestions if isinstance(each, MoveGroup)]
        if moves:
            cluster.start([(each.group.value, each) for each in moves])
            self.began_s = cluster.now_s
        else:
            self.delta_s = next_collection_s(self.delta_s, None, self.delta_min_s)
            cluster.collect()

    def _view(self) -> View:
        cluster = self.cluster
        sizes = np.full(len(cluster.share), round(cluster.group_bytes))
        memory = np.minimum(cluster.memory, GB)
        return View(
            groups=self.groups,
            slot=cluster.slot.copy(),
            bytes=np.where(cluster.on_disk, 0, sizes),
            results=np.zeros(len(sizes), dtype=np.int64),
            processed=cluster.sample,
            spilled=cluster.on_disk.copy(),
            spilled_bytes=np.where(cluster.on_disk, sizes, 0),
            budget=memory.astype(np.int64),
            idle_s=cluster.idle_s.copy(),
            sampled=np.zeros(cluster.slots, dtype=np.int64),
            occupancy=np.zeros(cluster.slots),
            collection_s=max(cluster.now_s - cluster.since_s, STEP_S),
            elapsed_s=cluster.now_s,
            seed=self.rounds,
        )


def run_flux(line: FluxLine, progress: Callable[[float], None] = lambda _: None) -> FluxOutcome:
    """Run the line."""
    began = time.process_time()
    cluster = FluxCluster(line.slots, shares(line), line.group_bytes, line.buffer)
    controller = (
        Controller(cluster, line.policy, line.delta_min_s, line.noise) if line.policy else None
    )
    befallen = _order(line, cluster)
    steps, per_s = round(line.seconds / STEP_S), round(1 / STEP_S)
    done, waited = np.zeros(steps), np.zeros(steps)
    for number in range(steps):
        if line.rotating_s:
            turn = int(number * STEP_S / line.rotating_s) % line.slots
            cluster.speed[:] = 1 / SERVICE_S
            cluster.speed[turn] *= LOADED
        elif number == round(line.at_s / STEP_S):
            cluster.speed[befallen[: line.loaded]] *= LOADED
            first = 0
            for count, bytes_ in line.memory:
                cluster.memory[befallen[first : first + count]] = bytes_
                first += count
        before = cluster.waited
        done[number] = cluster.step()
        waited[number] = cluster.waited - before
        if controller is not None:
            controller.look()
        if number % 200 == 0:
            progress(number / steps)
    tail = round(line.tail_s / STEP_S)
    by_second = done[: steps // per_s * per_s].reshape(-1, per_s).sum(axis=1)
    lying = waited[: steps // per_s * per_s].reshape(-1, per_s).sum(axis=1)
    return FluxOutcome(
        name=line.name,
        throughput=[round(each, 1) for each in by_second.tolist()],
        latency_s=[
            round(SERVICE_S + w / max(d, 1e-9), 9)
            for w, d in zip(lying.tolist(), by_second.tolist(), strict=True)
        ],
        steady=round(float(done[-tail:].sum()) / line.tail_s, 1),
        steady_latency_s=SERVICE_S + float(waited[-tail:].sum() / max(done[-tail:].sum(), 1e-9)),
        whole=round(float(done.sum()) / line.seconds, 1),
        moved=cluster.moved,
        last_move_s=round(controller.last_s, 2) if controller else 0.0,
        moving=round(controller.moving_s / line.seconds, 3) if controller else 0.0,
        rounds=controller.rounds if controller else 0,
        decision_ms=round(controller.longest_s * 1000, 1) if controller else 0.0,
        cpu_s=round(time.process_time() - began, 1),
    )


def _order(line: FluxLine, cluster: FluxCluster) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Slots in the order in which they are befallen."""
    order = np.random.default_rng(3).permutation(line.slots)
    if line.busiest:
        busiest = int(cluster.slot[cluster.share.argmax()])
        order = np.concatenate([[busiest], order[order != busiest]])
    return order
