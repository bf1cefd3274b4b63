"""Which table commits the journal still owes.

A table is committed only when an entry names a file for it, so "behind" is judged by the last
such entry, not by the last epoch. Redo goes in order of epochs: a power loss may take several
table commits, and a table's application transaction only ever rises.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spillway_schemas.journal import Claim, Epoch, FileRecord, Genesis


@dataclass(frozen=True)
class Apply:
    """Commit exactly these files to the table with the application transaction `epoch`."""

    table: str
    epoch: int
    files: tuple[FileRecord, ...]


def applies_of(entry: Epoch) -> tuple[Apply, ...]:
    """The table commits that one entry asks for. `spill` first: results never run ahead of it."""
    by_table: dict[str, list[FileRecord]] = {}
    for file in entry.files:
        by_table.setdefault(file.table, []).append(file)
    order = sorted(by_table, key=lambda t: (t != "spill", t))
    return tuple(Apply(table, entry.epoch, tuple(by_table[table])) for table in order)


def redo(
    entries: Iterable[Genesis | Claim | Epoch], applied: Mapping[str, int]
) -> tuple[Apply, ...]:
    """Every commit that is owed, oldest epoch first.

    `applied`: per table the epoch of its last application transaction, -1 for none; a table that
    is not named counts as -1.
    """
    return tuple(
        apply
        for entry in entries
        if isinstance(entry, Epoch)
        for apply in applies_of(entry)
        if apply.epoch > applied.get(apply.table, -1)
    )


def settled_epoch(
    entries: Sequence[Genesis | Claim | Epoch], applied: Mapping[str, int], before: int = -1
) -> int:
    """The greatest epoch such that all journaled commits up to it are made; -1 for none.

    `before`: the last epoch before these entries, up to which all are made.
    """
    last = max((entry.epoch for entry in entries if isinstance(entry, Epoch)), default=before)
    return min([last, *(apply.epoch - 1 for apply in redo(entries, applied))])
