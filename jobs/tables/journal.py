"""The journal: what counts. One commit per entry, numbered without gaps.

`append` is the building block of "one driver": exactly the next number, checked and committed
on the handle as it was last used. Nothing here refreshes before a commit; see `log` for why a
refresh in between would let a driver that was taken over go on.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from jobs.tables.log import Table
from jobs.tables.numbered import Numbered
from schemas.journal import ENTRY, Claim, Epoch, Genesis


class Journal:
    """The `journal` table as one process sees it."""

    def __init__(self, table: Table) -> None:
        self._rows = Numbered(table)

    def last_n(self) -> int:
        """Return the number of the last entry as seen; -1 for an empty journal."""
        return self._rows.last()

    def refresh(self) -> None:
        """See what other drivers have appended.

        Read what is new before appending again: `append` of a number that somebody else took
        raises `JournalConflict` also after a refresh.
        """
        self._rows.refresh()

    def append(self, entry: Genesis | Claim | Epoch) -> None:
        """Append exactly entry `entry.n`, durably.

        Raises `JournalConflict` when it is not the one after the last that this handle has seen,
        or another driver took the number; `OutcomeUnknown` when nobody can say whether the entry
        is in the journal. In both cases the driver ends itself.
        """
        self._rows.append_as(entry.n, _row(entry))

    def read(self, from_n: int = 0) -> list[Genesis | Claim | Epoch]:
        """Return the entries from number `from_n` on, in order, as seen (no refresh)."""
        texts = self._rows.read(from_n - 1)["entry"].to_pylist()
        return [ENTRY.validate_json(text) for text in texts]


def _row(entry: Genesis | Claim | Epoch) -> dict[str, Any]:
    return {
        "kind": entry.kind,
        "epoch": entry.epoch if isinstance(entry, Epoch) else None,
        "term": 0 if isinstance(entry, Genesis) else entry.term,
        "written_at": datetime.fromisoformat(entry.written_at).astimezone(UTC),
        "entry": ENTRY.dump_json(entry).decode(),
    }
