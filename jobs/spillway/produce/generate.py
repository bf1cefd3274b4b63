"""Generation: a scenario as chunks of messages, a pure function of scenario and seed.

Model: each stream is cut into chunks of `CHUNK_ROWS` rows. A chunk's rows depend on the scenario,
the stream's name and the chunk's number only, so any process can make any chunk, and the same
seed gives the same messages in the same order. What a chunk must know of those before it (when it
begins, how far the key sequences have come) is in its plan, which is made first and is small.

Poisson arrivals are exact: the time that `CHUNK_ROWS` arrivals take is gamma distributed, and
within it the arrivals are sorted uniform numbers.

A row is drawn in this order: arrival, key, `ts` (earlier for a late row), text, malformed or not,
and last whether it is a repetition of one of the `REPEAT_WITHIN` rows before it. A stream of fields
has a key of each of its domains, drawn for itself; the first one is the Kafka key.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spillway.produce.keys import Domain, Draws, Seed, domain
from spillway.produce.messages import broken, messages, own_messages, places_of
from spillway_schemas.scenario import KEYS, MADE_UP, MalformedKind, Scenario

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

CHUNK_ROWS = 50_000
REPEAT_WITHIN = 1_000

_ARRIVAL, _PART, _LATE, _TEXT, _BREAK, _REPEAT, _KEYS, _OTHER_DOMAIN = range(8)
"""Branches of the tree of random numbers."""

Domains = Mapping[str, Domain]


@dataclass(frozen=True)
class ChunkPlan:
    """Where a chunk begins."""

    number: int
    rows: int
    begins_s: float
    """Seconds after the scenario's start."""
    positions: tuple[int, ...]
    """Of each part of the hash range: how many of its keys were drawn before."""


@dataclass(frozen=True)
class GeneratedRows:
    """Rows of one stream, in the order of arrival."""

    stream: str
    topic: str
    keys: I64
    """Positions in the stream's first domain, int64 (n,)."""
    values: pa.Array
    """Arrow binary (n,); null is a tombstone."""
    due_s: F64
    """Arrival in seconds after the scenario's start, float64 (n,), ascending."""
    valid: npt.NDArray[np.bool_]
    """False: malformed."""
    malformed: dict[MalformedKind, int]
    late: int
    repeated: int

    def __len__(self) -> int:
        return len(self.keys)


class StreamGenerator:
    """One stream of a scenario."""

    def __init__(self, scenario: Scenario, stream: str, domains: Domains | None = None):
        self.scenario = scenario
        self.stream = stream
        self.topic = scenario.topic(stream)
        self._described = scenario.streams[stream]
        self._volume = scenario.volume(stream)
        # By name, not by place: another stream in the scenario changes nothing here.
        self._seed = Seed(scenario.seed, (zlib.crc32(stream.encode()),))
        alternate = (
            scenario.keys.alternate if scenario.keys and KEYS in self._described.domains else None
        )
        self._alternate = alternate
        self._parts = alternate.ranges if alternate else 1
        self._domains = {
            name: domains[name] if domains is not None else domain(scenario.domain(name))
            for name in self._described.domains
        }
        self._draws = {name: self._drawn(name) for name in self._described.domains}

    def _drawn(self, name: str) -> list[Draws]:
        """The keys of one domain that come next, for each part of its hash range."""
        seed = self._seed.child(_KEYS)
        if name != KEYS:
            seed = seed.child(_OTHER_DOMAIN, zlib.crc32(name.encode()))
        return [
            Draws(self._domains[name], self.scenario.distribution(self.stream, name), part, seed)
            for part in range(self._parts if name == KEYS else 1)
        ]

    @property
    def domain(self) -> Domain:
        """The domain of the Kafka keys."""
        return self._domains[self._described.domains[0]]

    @cached_property
    def record_keys(self) -> pa.Array:
        """The Kafka key of each key of that domain: Arrow strings."""
        texts = self._described.fields.values()
        face = next((text for text in texts if text not in MADE_UP), f"{KEYS}.symbol")
        return pc.cast(self._face(face, None), pa.string())

    def _face(self, text: str, keys: I64 | None) -> pa.Array:
        """What a field shows of these keys of its domain, or of all of them."""
        name, _, face = text.partition(".")
        found = self._domains[name]
        column = found.symbols if face == "symbol" else pa.array(found.ids)
        return column if keys is None else column.take(pa.array(keys))

    @property
    def rows(self) -> int:
        """How many rows the stream has."""
        return sum(plan.rows for plan in self.plan)

    @cached_property
    def plan(self) -> list[ChunkPlan]:
        """Every chunk's beginning."""
        plans: list[ChunkPlan] = []
        most_rows = self._volume.rows if self._volume.rows is not None else sys.maxsize
        end_s = self._volume.duration_s if self._volume.rows is None else None
        begins, made = 0.0, 0
        positions = np.zeros(self._parts, dtype=np.int64)
        while made < most_rows and (end_s is None or begins < end_s):
            number = len(plans)
            due, ends = self._arrivals(number, begins)
            rows = min(CHUNK_ROWS, most_rows - made)
            if end_s is not None:
                rows = int(np.searchsorted(due, end_s))
            if rows:
                plans.append(ChunkPlan(number, rows, begins, tuple(positions.tolist())))
            if rows < CHUNK_ROWS:
                break
            if self._parts == 1:
                positions = positions + rows
            else:
                positions = positions + np.bincount(
                    self._part_of(number, due), minlength=self._parts
                )
            begins, made = ends, made + rows
        return plans

    def chunk(self, number: int) -> GeneratedRows:
        """Make one chunk."""
        plan = self.plan[number]
        n = plan.rows
        due = self._arrivals(number, plan.begins_s)[0][:n]
        keys = self._keys(plan, due)
        ts_us, late = self._timestamps(number, due)
        values = self._values(plan, due, keys, ts_us)
        values, kinds = self._break_some(number, values)
        origin = self._repeat_some(number, n)
        repeated = int((origin != np.arange(n)).sum())
        if repeated:
            values, keys, kinds = values.take(pa.array(origin)), keys[origin], kinds[origin]
            late = late[origin]
        names = list(self.scenario.malformed)
        counts = np.bincount(kinds + 1, minlength=len(names) + 1)[1:]
        return GeneratedRows(
            stream=self.stream,
            topic=self.topic,
            keys=keys,
            values=values,
            due_s=due,
            valid=kinds < 0,
            malformed={k: int(c) for k, c in zip(names, counts, strict=True) if c},
            late=int(late.sum()),
            repeated=repeated,
        )

    def keys_of(self, number: int) -> I64:
        """The keys of a chunk's valid rows, without making their texts."""
        plan = self.plan[number]
        due = self._arrivals(number, plan.begins_s)[0][: plan.rows]
        origin = self._repeat_some(number, plan.rows)
        kept = self._kinds(number, plan.rows)[origin] < 0
        return np.asarray(self._keys(plan, due)[origin][kept])

    # ------------------------------------------------------------------------------ the steps

    def _arrivals(self, number: int, begins_s: float) -> tuple[F64, float]:
        """Arrivals of a full chunk, and when the next chunk begins."""
        rate = self._volume.rate
        if self._described.arrival == "constant":
            due = (np.arange(CHUNK_ROWS) + number * CHUNK_ROWS) / rate
            return due, (number + 1) * CHUNK_ROWS / rate
        rng = self._seed.rng(_ARRIVAL, number)
        length = rng.gamma(CHUNK_ROWS) / rate
        inside = np.sort(rng.random(CHUNK_ROWS - 1)) * length
        return begins_s + np.append(inside, length), begins_s + length

    def _part_of(self, number: int, due: F64) -> I64:
        """Which part of the hash range each row's key is drawn from."""
        alternate = self._alternate
        if alternate is None:
            return np.zeros(len(due), dtype=np.int64)
        rng = self._seed.rng(_PART, number)
        busy = (due // alternate.every_s).astype(np.int64) % self._parts
        share = alternate.factor / (alternate.factor + self._parts - 1)
        # The same number of draws whatever the rows: a chunk cut short has the same rows.
        elsewhere = rng.random(CHUNK_ROWS)[: len(due)] >= share
        step = rng.integers(1, self._parts, CHUNK_ROWS)[: len(due)]
        return np.asarray(np.where(elsewhere, (busy + step) % self._parts, busy))

    def _keys(self, plan: ChunkPlan, due: F64) -> I64:
        return self._keys_of_domain(self._described.domains[0], plan, due)

    def _keys_of_domain(self, name: str, plan: ChunkPlan, due: F64) -> I64:
        """Positions in a domain of a chunk's keys, int64 (n,)."""
        draws = self._draws[name]
        if len(draws) == 1:
            return draws[0].take(sum(plan.positions), len(due))
        parts = self._part_of(plan.number, due)
        keys = np.empty(len(due), dtype=np.int64)
        for part, first in enumerate(plan.positions):
            rows = np.flatnonzero(parts == part)
            keys[rows] = draws[part].take(first, len(rows))
        return keys

    def _values(self, plan: ChunkPlan, due: F64, keys: I64, ts_us: I64) -> pa.Array:
        """The messages of a chunk."""
        rng = self._seed.rng(_TEXT, plan.number)
        if self._described.kind is not None:
            return messages(self._described.kind, self._face(f"{KEYS}.symbol", keys), ts_us, rng)
        drawn = {
            name: keys if position == 0 else self._keys_of_domain(name, plan, due)
            for position, name in enumerate(self._described.domains)
        }
        shown = {
            text: self._face(text, drawn[text.partition(".")[0]])
            for text in self._described.fields.values()
            if text not in MADE_UP
        }
        return own_messages(self._described.fields, shown, ts_us, rng)

    def _timestamps(self, number: int, due: F64) -> tuple[I64, npt.NDArray[np.bool_]]:
        start_us = round(self.scenario.start.timestamp() * 1_000_000)
        ts_us = start_us + np.floor(due * 1_000_000).astype(np.int64)
        late = self.scenario.late
        if late is None or not late.share:
            return ts_us, np.zeros(len(due), dtype=np.bool_)
        rng = self._seed.rng(_LATE, number)
        chosen = rng.random(CHUNK_ROWS)[: len(due)] < late.share
        by_us = np.ceil(rng.random(CHUNK_ROWS)[: len(due)] * late.by_s * 1_000_000)
        return np.asarray(ts_us - np.where(chosen, by_us, 0).astype(np.int64)), chosen

    def _kinds(self, number: int, rows: int) -> I64:
        """For each row the number of its way to be malformed; -1: it is not."""
        shares = list(self.scenario.malformed.values())
        if not shares:
            return np.full(rows, -1, dtype=np.int64)
        drawn = self._seed.rng(_BREAK, number).random(CHUNK_ROWS)[:rows]
        kinds = np.searchsorted(np.cumsum(shares), drawn, side="right")
        return np.where(kinds == len(shares), -1, kinds).astype(np.int64)

    def _break_some(self, number: int, values: Any) -> tuple[Any, I64]:
        kinds = self._kinds(number, len(values))
        rows = np.flatnonzero(kinds >= 0)
        if not len(rows):
            return values, kinds
        names = list(self.scenario.malformed)
        places = places_of(self._described.fields) if self._described.fields else None
        bad = pa.array(
            [
                broken(names[kind], message, places)
                for kind, message in zip(
                    kinds[rows].tolist(), values.take(pa.array(rows)).to_pylist(), strict=True
                )
            ],
            pa.binary(),
        )
        mask = np.zeros(len(values), dtype=np.bool_)
        mask[rows] = True
        return pc.replace_with_mask(values, pa.array(mask), bad), kinds

    def _repeat_some(self, number: int, rows: int) -> I64:
        """For each row the row whose message it carries: its own number when not repeated."""
        origin = np.arange(rows)
        repeated = self.scenario.repeated
        if repeated is None or not repeated.share:
            return origin
        rng = self._seed.rng(_REPEAT, number)
        again = rng.random(CHUNK_ROWS)[:rows] < repeated.share
        back = rng.random(CHUNK_ROWS)[:rows]
        own = np.flatnonzero(~again)
        earlier = np.searchsorted(own, origin[again])
        possible = earlier > 0
        chosen = np.flatnonzero(again)[possible]
        reach = np.minimum(earlier[possible], REPEAT_WITHIN)
        origin[chosen] = own[earlier[possible] - 1 - (back[chosen] * reach).astype(np.int64)]
        return origin


def sources(scenario: Scenario) -> list[StreamGenerator]:
    """Every stream of a scenario, over the same domains."""
    names = dict.fromkeys(name for each in scenario.streams.values() for name in each.domains)
    shared = {name: domain(scenario.domain(name)) for name in names}
    return [StreamGenerator(scenario, stream, shared) for stream in scenario.streams]
