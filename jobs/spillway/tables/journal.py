"""The journal: what counts. One commit per entry, numbered without gaps.

`append` is the building block of "one driver": exactly the next number, checked and committed
on the handle as it was last used. Nothing here refreshes before a commit; see `log` for why a
refresh in between would let a driver that was taken over go on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from spillway.protocol.redo import Apply, redo
from spillway.protocol.snapshot import chosen, snapshot_of, text_digest
from spillway.protocol.state import JournalState, fold
from spillway.tables.archive import Archive
from spillway.tables.compaction import cut
from spillway.tables.errors import UnknownEntry
from spillway.tables.log import Table
from spillway.tables.numbered import Numbered
from spillway.tables.snapshots import Snapshots
from spillway_schemas.commands import first_problem
from spillway_schemas.journal import (
    HEAD,
    Claim,
    Epoch,
    EpochHead,
    Genesis,
    Sealed,
    entry_from,
    entry_texts,
)
from spillway_schemas.snapshot import JournalSnapshot

AT_ONCE = 1_000
"""Entries that are texts of Python at the same time: some MB."""

Texts = list[tuple[str, str | None]]
"""Entries as they are kept: heads and files."""


class Part(NamedTuple):
    """A session's entries, which the table holds: those up to its seal that are no older one's."""

    session: str
    first: int
    last: int


class Journal:
    """The journal as one process sees it: the table, and the archive of what it held before.

    Without `snapshots` all of it is read. A journal that was never archived needs no `archive`.
    """

    def __init__(
        self,
        table: Table,
        snapshots: Snapshots[JournalSnapshot] | None = None,
        archive: Archive | None = None,
    ) -> None:
        self._table = table
        self._rows = Numbered(table, archive)
        self._snapshots = snapshots
        self._archive = archive

    def first_n(self) -> int:
        """Return the number of the first entry that the table itself holds; 0 when it is empty."""
        return self._rows.first()

    def last_n(self) -> int:
        """Return the number of the last entry as seen; -1 for an empty journal."""
        return self._rows.last()

    def refresh(self) -> None:
        """See what other drivers have appended.

        Read what is new before appending again: `append` of a number that somebody else took
        raises `JournalConflict` also after a refresh.
        """
        self._rows.refresh()

    def append(self, entry: Genesis | Claim | Epoch, *more: Genesis | Claim | Epoch) -> None:
        """Append exactly entry `entry.n`, durably; with `more`, those that follow it: all or none.

        Raises `JournalConflict` when it is not the one after the last that this handle has seen,
        or another driver took the number; `OutcomeUnknown` when nobody can say whether the entry
        is in the journal. In both cases the driver ends itself.
        """
        self._rows.append_as(entry.n, *map(journal_row, (entry, *more)))

    def read(self, from_n: int = 0) -> list[Genesis | Claim | Epoch]:
        """Return the entries from number `from_n` on, in order, as seen (no refresh).

        Raises `UnknownEntry`.
        """
        return _entries(self._texts(from_n), from_n)

    def heads(self, from_n: int = 0) -> Iterator[tuple[str, Genesis | Claim | EpochHead]]:
        """The entries from a number on without their files, each with its text, in order, as seen.

        A few files of the table are held at a time. Raises `UnknownEntry`.
        """
        n = from_n
        for rows in self._rows.parts(from_n - 1, columns=["entry"]):
            for some in rows.to_batches(max_chunksize=AT_ONCE):
                for text in some["entry"].to_pylist():
                    with _known(n):
                        head = HEAD.validate_json(text)
                    yield text, head
                    n += 1

    def read_session(self, sealed: Sealed) -> list[Genesis | Claim | Epoch]:
        """Return the entries from a sealed session's first epoch on, in order, as seen."""
        return self.read_after(sealed.base)

    def read_after(self, epoch: int) -> list[Genesis | Claim | Epoch]:
        """Return the entries of all epochs after one, in order, as seen.

        Epoch e is never before entry e + 1: the genesis comes before all of them. With each claim
        it is one later; so entries of the archive are read only when the table begins after it.
        """
        first, begins = self._rows.first(), epoch + 2
        if begins < first and self._first_epoch(first) <= epoch + 1:
            begins = first
        return self.read(begins)

    def read_on(
        self, applied: Mapping[str, int] | None = None
    ) -> tuple[JournalState | None, list[Genesis | Claim | Epoch]]:
        """The state of the newest snapshot that holds, and the entries after it, as seen.

        None and all entries where no snapshot holds. `applied`: per table the epoch of its last
        application transaction; with it, the state is one up to which no table lacks a commit.
        """
        texts: dict[int, Texts] = {}

        def entry(n: int) -> str:
            texts[n] = self._texts(n)
            return text_digest(texts[n][0][0])

        newest = self._snapshots.newest(self.last_n()) if self._snapshots else ()
        state = chosen(newest, entry, applied)
        if state is None:
            return None, self.read()
        return state, _entries(texts[state.n][1:], state.n + 1)

    def state(self) -> JournalState | None:
        """What is true after the last entry, as seen; None for an empty journal."""
        state, entries = self.read_on()
        for entry in entries:
            state = fold(state, entry)
        return state

    def last_epoch(self) -> int:
        """Return the number of the last epoch, as seen; -1 when there is none."""
        return _last_epoch(*self.read_on())

    def owed(self, applied: Mapping[str, int]) -> tuple[int, tuple[Apply, ...]]:
        """The number of the last epoch, and the commits that tables lack, as seen.

        `applied`: per table the epoch of its last application transaction.
        """
        state, entries = self.read_on(applied)
        return _last_epoch(state, entries), redo(entries, applied)

    def sealed(self) -> dict[str, Sealed]:
        """The sealed sessions by date, as seen."""
        state, entries = self.read_on()
        before = {} if state is None else dict(state.sealed)
        after = [each.sealed for each in entries if isinstance(each, Epoch) and each.sealed]
        return before | {each.session: each for each in after}

    def geneses(self) -> list[Genesis]:
        """What the warehouse was, in order, as seen: by its first query, by each changed one."""
        state, entries = self.read_on()
        found = [] if state is None else [*state.before, state.genesis]
        for each in entries:
            if isinstance(each, Genesis):
                found.append(each)
            elif isinstance(each, Claim) and each.begins is not None:
                found.append(each.begins)
        return found

    def keep(self, state: JournalState) -> None:
        """Keep a snapshot of the state after entry `state.n`, which this handle has seen.

        Raises OSError, and `DamagedTable` for an entry that cannot be read.
        """
        if self._snapshots is None:
            raise ValueError("this handle of the journal has no place for snapshots")
        text, _ = self._texts(state.n)[0]  # another driver's may be seen behind it
        self._snapshots.write(snapshot_of(state, text_digest(text)))

    def held(self, ended: Sequence[Sealed]) -> list[Part]:
        """The entries of these sessions that the table itself holds, in order, as seen.

        `ended`: the first sessions of the journal, in the order of their seals.
        """
        found: list[Part] = []
        first = self._rows.first()
        waiting = list(reversed(ended))
        for rows in self._rows.parts(first - 1, columns=["n", "epoch"]):
            for n, epoch in zip(rows["n"].to_pylist(), rows["epoch"].to_pylist(), strict=True):
                while waiting and epoch is not None and waiting[-1].epoch < epoch:
                    waiting.pop()  # it is in the archive
                if not waiting:
                    return found
                if waiting[-1].epoch == epoch:
                    found.append(Part(waiting.pop().session, first, n))
                    first = n + 1
        return found

    def archive(self, parts: Sequence[Part]) -> list[int] | None:
        """Move these entries, which `held` gave, to a file each; return the files' bytes.

        None, and the table is as it was, when somebody else has taken files out of it meanwhile.
        Killed at any moment, it leaves the entries in both places or in the archive. Raises
        StorageError when the disk is full, `OutcomeUnknown`.
        """
        if self._archive is None:
            raise ValueError("this handle of the journal has no place for an archive")
        sizes = [self._archive.keep(*part, partial(self._up_to, part)) for part in parts]
        # From here on each of them is durable: the archive alone would do.
        return sizes if cut(self._table, parts[-1].last) else None

    def check(self) -> None:
        """Read every entry that this handle has seen, a few files at a time.

        Raises `DamagedTable` for one that is missing or cannot be read, `DamagedArchive`.
        """
        for _ in self._rows.parts():
            pass

    def _first_epoch(self, from_n: int) -> float:
        """The first epoch from an entry on, as seen; infinite when there is none."""
        for rows in self._rows.parts(from_n - 1, columns=["epoch"]):
            if (epoch := pc.min(rows["epoch"]).as_py()) is not None:
                return int(epoch)
        return math.inf

    def _up_to(self, part: Part) -> Iterator[pa.Table]:
        """The rows of these entries, in order, a few at a time."""
        for rows in self._rows.parts(part.first - 1):
            wanted = rows.filter(pc.field("n") <= part.last)
            if wanted:
                yield wanted
            if len(wanted) < len(rows):
                return

    def _texts(self, from_n: int) -> Texts:
        """The entries from a number on as they were written, in order, as seen."""
        rows = self._rows.read(from_n - 1, columns=["entry", "files"])
        return list(zip(rows["entry"].to_pylist(), rows["files"].to_pylist(), strict=True))


def _last_epoch(state: JournalState | None, entries: list[Genesis | Claim | Epoch]) -> int:
    before = -1 if state is None else state.epoch
    return max((each.epoch for each in entries if isinstance(each, Epoch)), default=before)


def _entries(texts: Texts, from_n: int) -> list[Genesis | Claim | Epoch]:
    found = []
    for n, (head, files) in enumerate(texts, from_n):
        with _known(n):
            found.append(entry_from(head, files))
    return found


@contextmanager
def _known(n: int) -> Iterator[None]:
    """Around the reading of entry `n`: raises `UnknownEntry` when its JSON is another version's."""
    try:
        yield
    except ValueError as error:
        what = first_problem(error) if isinstance(error, ValidationError) else str(error)
        raise UnknownEntry(n, what) from error


def journal_row(entry: Genesis | Claim | Epoch) -> dict[str, Any]:
    """An entry as a row of the table, without its number."""
    head, files = entry_texts(entry)
    return {
        "kind": entry.kind,
        "epoch": entry.epoch if isinstance(entry, Epoch) else None,
        "term": 0 if isinstance(entry, Genesis) else entry.term,
        "written_at": datetime.fromisoformat(entry.written_at).astimezone(UTC),
        "entry": head,
        "files": files,
    }
