"""What a cleanup has to do, from the journal and the tables' state. Pure.

Invariants:

* A session is cleaned only when the journal has sealed it and every table holds all that the
  journal names up to the seal: then nothing of it can change any more.
* The files that are read are the session's files in the `spill` table, which must be exactly
  those that the journal names: one missing would lose results, one too many would invent some.
* Number n always means `Sealed.ranges[n]`. Tasks hold consecutive numbers in ascending order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spillway.engine.spill.generations import GenerationEnds, VoidedCuts
from spillway.engine.spill.source import SpillIndex
from spillway.engine.spill.spillfile import SpillFile
from spillway.protocol.recovery import Restore, voided
from spillway.protocol.redo import Apply, redo
from spillway.protocol.seal import not_sealed
from spillway.protocol.state import JournalState, check_query, genesis_of
from spillway_schemas.commands import CommandLine
from spillway_schemas.exits import FAILED
from spillway_schemas.filenames import origin
from spillway_schemas.hash_space import join_of
from spillway_schemas.journal import Claim, Epoch, Genesis, Prefix, Sealed
from spillway_schemas.losses import AcceptedLoss

LEAST_TASKS_PER_CORE = 2
MOST_TASKS_PER_CORE = 6
"""So that one long task does not leave the other cores idle for long."""

READ_TWICE = 0.25
"""The part of the spilled bytes that tasks may read once more: a row group that reaches over a
task's border is read by the tasks on both sides. With 62 files of 3,000,000 rows, 13 tasks took 1.5
times the CPU of 4 (`python -m benchmarks.cleanup --generations 31 --tasks 13`)."""

TASK_BYTES = 2 * 2**20
"""Smaller shares of the spilled rows are not worth a task."""

MOST_TASK_BYTES = 512 * 2**20
"""Larger ones would leave whoever watches without progress."""


class CleanupRefused(Exception):
    """Cleanup cannot be done now; says why and what to do."""

    exit_code = FAILED


def sealed_session(
    state: JournalState, session: str, fingerprint: str, commands: Iterable[CommandLine]
) -> Sealed:
    """The session's sealed record. Raises `AnotherQuery`, and `CleanupRefused` when there is none.

    `fingerprint` is the query's; an empty one is not compared. `commands`: those that the journal
    has not seen.
    """
    if problem := not_sealed(state, session, commands):
        raise CleanupRefused(problem)
    if fingerprint:
        check_query(genesis_of(state, state.sealed[session]), fingerprint)
    return state.sealed[session]


def owed(
    entries: Iterable[Genesis | Claim | Epoch], applied: Mapping[str, int], epoch: int
) -> tuple[Apply, ...]:
    """The table commits up to `epoch` that have not been made yet."""
    return tuple(apply for apply in redo(entries, applied) if apply.epoch <= epoch)


def spill_files(
    entries: Iterable[Genesis | Claim | Epoch],
    in_table: Mapping[str, int],
    session: str,
) -> tuple[SpillFile, ...]:
    """The session's spill files. `in_table`: path to bytes of its files in the `spill` table.

    Raises `CleanupRefused` when table and journal do not name the same files.
    """
    # What a cleanup has stored for the joins above is no entry's.
    in_table = {path: size for path, size in in_table.items() if not _made_by_cleanup(path)}
    named = {
        file.path: file
        for entry in entries
        if isinstance(entry, Epoch)
        for file in entry.files
        if file.table == "spill" and file.partition.get("session_date") == session
    }
    for where, paths in (
        ("the journal names but the spill table does not", named.keys() - in_table.keys()),
        ("the spill table names but the journal does not", in_table.keys() - named.keys()),
    ):
        if paths:
            raise CleanupRefused(
                f"{len(paths)} spill file(s) of session {session} {where}, {min(paths)} among "
                "them: something other than spillway has written the tables. Restore them"
            )
    return tuple(
        SpillFile(path, size, named[path].digest) for path, size in sorted(in_table.items())
    )


def generations_of(
    entries: Iterable[Genesis | Claim | Epoch], sealed: Sealed, *, windowed: bool
) -> tuple[GenerationEnds | None, VoidedCuts | None]:
    """The session's cuts by hash: those that hold, for rows that were spilled before their
    generation ended (of a query without windows there are none), and those that were taken back."""
    epochs = [entry for entry in entries if isinstance(entry, Epoch)]
    void = voided(sealed.session, epochs)
    cuts = [cut for each in epochs for cut in (*each.deferred, *each.cuts)]
    made = {cut.generation for cut in cuts if cut.session == sealed.session}
    ends = GenerationEnds(sorted(made - void), sealed.epoch) if windowed else None
    return ends, VoidedCuts(sorted(void), sealed.epoch) if void else None


def doubtful_topics(
    sealed: Sealed, loss: AcceptedLoss | None, again: Restore | None
) -> frozenset[str]:
    """The topics that may have rows which are in no file: lost before they were read, or with a
    slot. Of a loss that was accepted while the session was open, whichever of its rows were read.

    `loss`: all that is accepted; `again`: without what is lost. What Kafka lost of other rows does
    not matter, for cleanup does not read them there.
    """
    open_ = loss.ranges if loss is not None and sealed.lost_to else []
    lossy = again.lossy if again is not None else ()
    return frozenset({each.topic for each in open_} | {topic for topic, _ in lossy})


def _made_by_cleanup(path: str) -> bool:
    made = origin(path)
    return made is not None and made.writer == "cleanup"


def stored_files(in_table: Mapping[str, int]) -> tuple[SpillFile, ...]:
    """Of a session's files in the `spill` table, those of a cleanup: missing results of joins below
    the root, as rows of the joins above. No journal has their digests."""
    made = sorted(path for path in in_table if _made_by_cleanup(path))
    return tuple(SpillFile(path, in_table[path]) for path in made)


def stages(ranges: Sequence[Prefix], parents: Sequence[int]) -> list[list[int]]:
    """The joins that have ranges, in order, in stages: those below a join come in stages before."""
    found: list[list[int]] = []
    for join in sorted({join_of(each, len(parents)) for each in ranges}):
        # Ranges are numbered join after join, so a stage is of neighbours.
        if found and all(parents[each] != join for each in found[-1]):
            found[-1].append(join)
        else:
            found.append([join])
    return found


@dataclass(frozen=True)
class Share:
    """Consecutive units of work that one task does."""

    units: tuple[tuple[int, Prefix], ...]
    """(n, range), ascending in both."""
    bytes: int
    """Estimate of what is spilled there."""

    @property
    def last(self) -> int:
        """The greatest n."""
        return self.units[-1][0]


def shares(
    units: Sequence[tuple[int, Prefix]],
    index: SpillIndex,
    cores: int,
    *,
    task_bytes: int = TASK_BYTES,
) -> list[Share]:
    """Cut units of work, (n, range) of one join, into tasks of about equal bytes: as many as keep
    the cores busy, but beyond `LEAST_TASKS_PER_CORE` no more than `READ_TWICE` allows.

    The bounds hold on average: a single task may have less than `task_bytes` or more than
    `MOST_TASK_BYTES`, and tasks may read twice more than `READ_TWICE` where the borders that they
    get are crossed by more row groups than most."""
    sizes = [int(index.groups.bytes_within(prefix.lo, prefix.hi)) for _, prefix in units]
    total = sum(sizes)
    across = bytes_across(index, [prefix for _, prefix in units])
    tasks = max(1, min(_tasks(total, across, cores), total // task_bytes))
    found: list[Share] = []
    held: list[tuple[int, Prefix]] = []
    size = before = task = 0
    for unit, own in zip(units, sizes, strict=True):
        # A unit belongs where its middle lies. A task reads its ranges in hash order: it ends where
        # the numbering leaves that order.
        mine = min(tasks - 1, (2 * before + own) * tasks // (2 * total)) if total else 0
        if held and (mine != task or unit[1].lo < held[-1][1].hi):
            found.append(Share(tuple(held), size))
            held, size = [], 0
        held.append(unit)
        task = mine
        size += own
        before += own
    if held:
        found.append(Share(tuple(held), size))
    return found


def _tasks(total: int, across: float, cores: int) -> int:
    """Into how many tasks so many bytes are cut, of which `across` lie across each border."""
    cores = max(1, cores)
    affordable = 1 + READ_TWICE * total / across if across else math.inf
    tasks = min(MOST_TASKS_PER_CORE * cores, max(LEAST_TASKS_PER_CORE * cores, affordable))
    return max(int(tasks), -(-total // MOST_TASK_BYTES))


def bytes_across(index: SpillIndex, ranges: Sequence[Prefix]) -> float:
    """Bytes of the row groups that reach over a border between two of the ranges: the mean."""
    borders = [each.lo for each in ranges[1:]]
    return sum(map(index.groups.bytes_across, borders)) / max(1, len(borders))
