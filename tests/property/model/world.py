"""What exists in the simulated world, and what survives.

A row is `(input, key, where)`; a key is a number of `KEY_BITS` bits, the top bits of its 64-bit
hash, so it is of one join. A value of a Kafka partition gives the key of a leaf's row, or is
`REJECTED` (breaks the contract), or `GAP` (an offset without a value: a control record, an aborted
batch). By which key a join's result goes on in the join above is a column of its first leaf's row.

Durability. A process that dies loses nothing; power loss takes every file that was not synced,
the journal's entries that were not synced, and any number of the newest commits of any table
(worse than what `spillway.tables` does, which syncs every commit: DESIGN.md allows it).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from random import Random

import numpy as np
import pyarrow as pa

from spillway.engine.groups import U64
from spillway.engine.join.kernel import Rows
from spillway.engine.join.spec import InputSpec, JoinSpec
from spillway.engine.join.tree import one_join
from spillway.engine.state.arrangement import RunWindow
from spillway.engine.state.statefiles import Manifest
from spillway_schemas.commands import Command
from spillway_schemas.hash_space import ROOT, levels, spaces
from spillway_schemas.journal import HASH_BITS, Claim, Epoch, Genesis, Offsets, Prefix
from spillway_schemas.losses import LostRange

WAREHOUSE = "w"
SPEC = one_join(
    JoinSpec(
        0,
        pa.schema([pa.field("key", pa.int64(), nullable=False)]),
        (InputSpec("all", pa.schema([])), InputSpec("none", pa.schema([]))),
    )
)
"""Rows of all inputs lie in one arrangement here, the first one's: they go and move alike."""
KEY_BITS = 8
REJECTED = -1
GAP = -2

Identity = tuple[tuple[int, int], ...]
"""A result of a join: (partition, offset) of the row of each leaf below it."""
Row = tuple[int, int, Identity]
"""The number of an input, a key, and what it is made of: of a leaf's row its own place."""
Entry = Genesis | Claim | Epoch


class DeferredRow(tuple[int, int, Identity]):
    """A `Row` that a cleanup has read again: no step spilled it."""


TABLES = ("results", "spill", "quarantine")
APP = "spillway"
COMPACTION = "compaction"


@cache
def covers(prefix: Prefix, key: int) -> bool:
    """Whether a hash range holds a key's hash."""
    return (key << (HASH_BITS - KEY_BITS)) >> (HASH_BITS - prefix.depth) == prefix.value


def date(index: int) -> str:
    """The session number `index`."""
    return f"2026-01-{index + 1:02d}"


def digest(topic: int, partition: int, offset: int, value: int) -> int:
    """A digest of one value and its place. Sums of it tell a value's place, as the product's do."""
    mixed = (value + 3) * 0x9E3779B97F4A7C15
    for each in (offset, topic, partition):
        mixed = ((mixed ^ mixed >> 29) + each + 1) * 0xBF58476D1CE4E5B9 % 2**64
    return mixed ^ mixed >> 32


@dataclass(frozen=True)
class Tree:
    """The joins of a schedule's query, children first. `joins`: what each reads, leaves by their
    numbers, join k as `~k`. Inputs of all joins are numbered through."""

    joins: tuple[tuple[int, ...], ...]

    @cached_property
    def inputs(self) -> tuple[tuple[int, int], ...]:
        """(join, what it reads) of each input."""
        return tuple((join, each) for join, mine in enumerate(self.joins) for each in mine)

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """The join that reads each join; the root: `ROOT`."""
        by = {~each: join for join, each in self.inputs if each < 0}
        return tuple(by.get(join, ROOT) for join in range(len(self.joins)))

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """How many joins lie on the longest way below each join, itself included."""
        return levels(self.parents)

    @property
    def root(self) -> int:
        """The last one."""
        return len(self.joins) - 1

    @cached_property
    def readers(self) -> dict[int, int]:
        """The input that reads each leaf, and each join (`~k`)."""
        return {each: number for number, (_, each) in enumerate(self.inputs)}

    def inputs_of(self, join: int) -> list[int]:
        """The numbers of a join's inputs."""
        return [number for number, (reader, _) in enumerate(self.inputs) if reader == join]

    def at_level(self, level: int) -> frozenset[int]:
        """The joins of a level."""
        return frozenset(join for join, each in enumerate(self.levels) if each == level)

    def key(self, join: int, value: int) -> int:
        """The key that a value is in a join."""
        space = spaces(len(self.joins))[join]
        return space.value << KEY_BITS - space.depth | value >> space.depth

    def join_of(self, key: int) -> int:
        """The join that a key is of."""
        return _join_of(len(self.joins), key)


@cache
def _join_of(joins: int, key: int) -> int:
    return next(join for join, space in enumerate(spaces(joins)) if covers(space, key))


class Conflict(Exception):
    """A table's commit met a concurrent one of the same application."""


class DataLost(Exception):
    """Kafka does not hold the rows that were asked for."""


class Killed(Exception):
    """The host under a task is gone."""


@dataclass
class Stored:
    """A data file of the warehouse."""

    table: str
    rows: list[tuple[str, int, object]]
    """Session, generation (spill) or 0, and the content: an `Identity` or a `Row`."""
    synced: bool = False


@dataclass(frozen=True)
class Commit:
    """One commit of a table: files added and removed, with its application transaction."""

    app: str
    version: int
    added: tuple[str, ...]
    removed: tuple[str, ...] = ()


@dataclass
class Table:
    """Delta's semantics, as far as the protocol leans on them (see DESIGN.md, "Tables")."""

    log: list[Commit] = field(default_factory=list)
    durable: int = 0
    """Commits that power loss cannot take."""

    def snapshot(self) -> int:
        """A handle: what it knows of the log."""
        return len(self.log)

    def version_of(self, app: str, handle: int | None = None) -> int:
        """The last application transaction that a handle knows, -1 for none."""
        for commit in reversed(self.log[:handle]):
            if commit.app == app:
                return commit.version
        return -1

    def commit(self, handle: int, commit: Commit) -> None:
        """Commit through a handle. A concurrent change of the same application id conflicts."""
        for other in self.log[handle:]:
            if other.app == commit.app:
                raise Conflict
        self.log.append(commit)

    def files(self) -> dict[str, int]:
        """Files in the newest version, each with how often it was added."""
        out: dict[str, int] = {}
        for commit in self.log:
            for path in commit.removed:
                out.pop(path, None)
            for path in commit.added:
                out[path] = out.get(path, 0) + 1
        return out


class Listed(list[Row]):
    """Rows in a list, where the engine has an Arrow table: all that it does with one is slice."""

    def slice(self, first: int, length: int) -> Listed:
        """Some of the rows."""
        return Listed(self[first : first + length])


def packed(rows: Iterable[Row]) -> Rows:
    """Rows as the engine holds them: sorted by hash."""
    table = Listed(sorted(rows, key=lambda row: row[1]))
    return Rows(hashes_of([row[1] for row in table]), table)


def hashes_of(keys: Sequence[int]) -> U64:
    """The hashes of keys, (n,)."""
    hashes: U64 = np.array(keys, dtype=np.uint64) << np.uint64(HASH_BITS - KEY_BITS)
    return hashes


@dataclass
class Folder:
    """A slot's folder on one host: state files under names that are never used again."""

    runs: dict[str, RunWindow] = field(default_factory=dict)
    manifests: dict[str, Manifest] = field(default_factory=dict)

    def sizes(self) -> dict[str, int]:
        """A listing: every file's bytes."""
        return {
            **{name: part.bytes for name, part in self.runs.items()},
            **dict.fromkeys(self.manifests, 1),
        }

    def delete(self, name: str) -> None:
        """Remove a file."""
        self.runs.pop(name, None)
        self.manifests.pop(name, None)


@dataclass
class Host:
    """A host's memory; `life` counts how often it was lost."""

    folders: dict[int, Folder] = field(default_factory=dict)
    life: int = 0

    def folder(self, slot: int) -> Folder:
        """The folder of a slot on this host."""
        return self.folders.setdefault(slot, Folder())


@dataclass
class World:
    """Everything that is outside of the processes."""

    rng: Random
    tree: Tree
    keys: list[int]
    """Values that the rows have."""
    log: list[list[list[int]]]
    """Leaf -> partition -> values, as they were when they came."""
    hosts: list[Host]
    journal: list[Entry]
    journal_durable: int = 1
    replaced: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """(Leaf, partition, offset) -> the value that is there now: somebody refilled the topic."""
    first: dict[tuple[int, int], int] = field(default_factory=dict)
    """(Leaf, partition) -> the first offset that Kafka still holds."""
    store: dict[str, Stored] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=lambda: {name: Table() for name in TABLES})
    commands: list[Command] = field(default_factory=list)
    accepted: dict[str, list[LostRange]] = field(default_factory=dict)
    """What the sessions table says of losses of sealed sessions (a row that is durable at once)."""
    cleaned: set[str] = field(default_factory=set)
    """Sessions that the sessions table calls cleaned (a row that is durable at once)."""
    dropped: dict[str, Counter[tuple[str, int]]] = field(default_factory=dict)
    """Files that were (or were about to be) dropped -> their rows per session and generation."""
    snapshots: list[str] = field(default_factory=list)
    """Of the journal's state, as JSON, the newest last; a loss of power takes none of them."""
    placement: dict[int, int] = field(default_factory=dict)
    """Slot -> the host that last held its state: what the anchors' preferences say."""
    trace: list[str] | None = None
    names: int = 0

    def say(self, text: str) -> None:
        """A line of the readable trace."""
        if self.trace is not None:
            self.trace.append(text)

    def fresh(self) -> int:
        """A number that was never given before."""
        self.names += 1
        return self.names

    def topic(self, index: int) -> str:
        """The topic of a leaf."""
        return f"t{index}"

    def row(self, leaf: int, value: int, partition: int, offset: int) -> Row:
        """A leaf's row."""
        reader = self.tree.readers[leaf]
        return reader, self.tree.key(self.tree.inputs[reader][0], value), ((partition, offset),)

    def lifted(self, join: int, identity: Identity) -> Row:
        """A result of a join as a row of the join above."""
        reader = self.tree.readers[~join]
        partition, offset = identity[0]
        value = self.keys[(7 * partition + 3 * offset + join) % len(self.keys)]
        return reader, self.tree.key(self.tree.inputs[reader][0], value), identity

    def ends(self) -> Offsets:
        """Kafka's current ends."""
        return {self.topic(i): [len(p) for p in parts] for i, parts in enumerate(self.log)}

    def beginning(self) -> Offsets:
        """The first offsets that Kafka still holds."""
        return {
            self.topic(i): [self.first.get((i, p), 0) for p in range(len(parts))]
            for i, parts in enumerate(self.log)
        }

    def applied(self) -> dict[str, int]:
        """Per table, the epoch of its last application transaction."""
        return {name: table.version_of(APP) for name, table in self.tables.items()}

    def read(self, start: Offsets, end: Offsets) -> Iterator[tuple[int, int, int, int]]:
        """(leaf, partition, offset, value) of all values between, gaps left out."""
        for i, parts in enumerate(self.log):
            first, last = start.get(self.topic(i), []), end[self.topic(i)]
            for p, stop in enumerate(last):
                values = parts[p]
                for o in range(first[p] if p < len(first) else 0, stop):
                    if values[o] != GAP:
                        yield i, p, o, values[o]

    def fetch(
        self, start: Offsets, end: Offsets, fails_on_data_loss: bool
    ) -> Iterator[tuple[int, int, int, int]]:
        """The same as Kafka gives it today. Raises DataLost, or leaves out what is gone."""
        for (i, p), first in self.first.items() if fails_on_data_loss else ():
            begin, stop = start.get(self.topic(i), []), end[self.topic(i)]
            if p < len(stop) and (begin[p] if p < len(begin) else 0) < min(first, stop[p]):
                raise DataLost(f"{self.topic(i)}/{p} begins at {first}")
        for i, p, o, value in self.read(start, end):
            if o >= self.first.get((i, p), 0):
                yield i, p, o, self.replaced.get((i, p, o), value)

    def refill(self, index: int, partition: int, keys: Sequence[int]) -> None:
        """Replace all that is durably journaled of a partition by as many other rows."""
        epochs = [e for e in self.journal[: self.journal_durable] if isinstance(e, Epoch)]
        if not epochs:
            return
        ends = epochs[-1].end[self.topic(index)]
        values = self.log[index][partition][: ends[partition] if partition < len(ends) else 0]
        for offset, value in enumerate(values):
            if value != GAP:
                self.replaced[index, partition, offset] = self.rng.choice(keys)
        self.say(f"{self.topic(index)}/{partition} is refilled up to {len(values)}")

    def cut(self, index: int, partition: int) -> None:
        """Retention takes the first rows of a partition."""
        first = self.rng.randint(0, len(self.log[index][partition]))
        self.first[index, partition] = max(first, self.first.get((index, partition), 0))
        self.say(f"{self.topic(index)}/{partition} begins at {first}")

    def sync_journal(self, n: int) -> None:
        """Make the journal durable up to entry `n`, whoever wrote the entries before it."""
        self.journal_durable = max(self.journal_durable, n + 1)

    def lose_host(self, index: int) -> None:
        """All that a host held in memory is gone, and every task on it."""
        self.hosts[index] = Host(life=self.hosts[index].life + 1)

    def lose_power(self) -> None:
        """Every process and all memory is gone, and what was not synced may be."""
        rng = self.rng
        for index in range(len(self.hosts)):
            self.lose_host(index)
        keep = rng.randint(self.journal_durable, len(self.journal))
        lost = [f"journal -{len(self.journal) - keep}"]
        del self.journal[keep:]
        self.journal_durable = keep
        for name, table in self.tables.items():
            kept = rng.randint(table.durable, len(table.log)) if rng.random() < 0.7 else None
            if kept is not None and kept < len(table.log):
                lost.append(f"{name} -{len(table.log) - kept}")
                del table.log[kept:]
            table.durable = len(table.log)
        for path in [path for path, file in self.store.items() if not file.synced]:
            del self.store[path]
        self.say(f"POWER LOSS: {', '.join(lost)}")
