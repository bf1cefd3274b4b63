"""What can go wrong with the warehouse, and what each error means for whoever meets it."""

from __future__ import annotations

from spillway_schemas.exits import FAILED, NOTHING_YET, USAGE


class WarehouseError(Exception):
    """Base of the errors below; the message says what to do."""


class NoWarehouse(WarehouseError):
    """There is no warehouse (or not this table) at that place yet."""

    exit_code = NOTHING_YET


class NothingYet(WarehouseError):
    """The journal is empty: no stream has run on this warehouse yet."""

    exit_code = NOTHING_YET

    def __init__(self, place: str) -> None:
        super().__init__(
            f"the journal of {place} is empty: start `spillway stream`, or name another "
            "warehouse.root"
        )


class WrongTable(WarehouseError):
    """A table is there but is not the one that was asked for (columns, partitions, protocol)."""

    exit_code = USAGE


class UnknownEntry(WarehouseError):
    """An entry of the journal that this version cannot read, because another one wrote it."""

    exit_code = USAGE

    def __init__(self, n: int, problem: str) -> None:
        super().__init__(
            f"entry {n} of the journal is none that this version knows: {problem}. Another version "
            "of spillway wrote it: use that one or a newer one for this warehouse. Nothing was "
            "changed"
        )


class TableConflict(WarehouseError):
    """The commit did *not* happen: another writer took the same application transaction."""


class JournalConflict(TableConflict):
    """The entry was *not* appended: the journal holds something that the caller has not read.

    Another driver has taken over: whoever meets this ends itself.
    """


class OutcomeUnknown(WarehouseError):
    """Whether the commit happened cannot be known now. Whoever meets this ends itself.

    The next start reads the table and knows.
    """


class FileMismatch(WarehouseError):
    """A file that a journal entry names is not there, or not as the entry describes it."""


class DamagedTable(WarehouseError):
    """A table's log is torn, as after a loss of power. `spillway doctor --repair` mends it."""


class TableReplaced(WarehouseError):
    """A table was restored or replaced while this process had it open: what it has seen is of a
    table that is gone. The next start sees the one that is there now."""

    exit_code = FAILED


class DamagedArchive(WarehouseError):
    """Archived journal entries are missing or damaged: only a backup has them.

    Whoever reads on from a snapshot does not need them.
    """
