"""The read models that a warehouse keeps beside its tables, for those who look for the first time.

The stream keeps one when it keeps a snapshot of the journal: so a first look reads a few hundred
entries, not all that there ever were. A reader that had to read many keeps what it has found, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from spillway.protocol.snapshot import text_digest
from spillway.readmodel.model import KeptReadModel, ReadModel
from spillway.tables import Snapshots, Warehouse
from spillway_schemas.journal import Claim, Epoch, EpochHead, Genesis

FOLDER = "readmodels"

MOST_ENTRIES = 2048
"""Entries that the stream reads at most to keep one. More of them (after an upgrade, or where the
folder was lost) would hold it up for seconds; the next look makes up for that."""

Entries = Iterator[tuple[str, Genesis | Claim | Epoch | EpochHead]]
"""Entries in order, each with the text of its head."""


def keep(warehouse: Warehouse) -> None:
    """Keep the model of all entries the warehouse's handle has seen, unless there are too many.

    Raises OSError, and `DamagedTable` for an entry that cannot be read.
    """
    known, entries = begun(warehouse)
    first = 0 if known is None else known.state.n
    if warehouse.journal.last_n() - first <= MOST_ENTRIES:
        model = followed(known, entries)
        if model is not None:
            keep_found(warehouse, model)


def keep_found(warehouse: Warehouse, model: ReadModel) -> None:
    """Keep this model, which follows from the journal as seen. Raises OSError."""
    _place(warehouse).write(model.kept())


def begun(warehouse: Warehouse) -> tuple[ReadModel | None, Entries]:
    """The newest model that fits the journal as seen, if there is one, and the entries after it."""
    journal = warehouse.journal
    for kept in _place(warehouse).newest(journal.last_n()):
        entries = following(warehouse, kept.n, kept.journal.entry)
        if entries is not None:
            return ReadModel.restored(kept), entries
    return None, journal.heads()


def following(warehouse: Warehouse, n: int, digest: str) -> Entries | None:
    """The entries after entry `n`; None when that is not the one with this digest.

    It is read again: it says whether what is known is of this journal. A journal that is shorter
    was made anew or repaired. None as well for an entry that is in the archive: the warehouse keeps
    later models than that.
    """
    if not warehouse.journal.first_n() <= n <= warehouse.journal.last_n():
        return None
    entries = warehouse.journal.heads(n)
    text, _ = next(entries)
    return entries if text_digest(text) == digest else None


def followed(model: ReadModel | None, entries: Entries) -> ReadModel | None:
    """The model after the entries; None: there was none, and there are none."""
    for text, entry in entries:
        if model is not None:
            model.add(text, entry)
        elif isinstance(entry, Genesis):
            model = ReadModel.of(text, entry)
        else:
            raise ValueError(f"the journal begins with a {entry.kind}, entry {entry.n}")
    return model


def _place(warehouse: Warehouse) -> Snapshots[KeptReadModel]:
    return warehouse.snapshots(FOLDER, KeptReadModel)
