"""What one look at a warehouse remembers for the next: the tally, and reasons counted per file.

Model: a small JSON file in the variable folder, named by the warehouse's place. It is a cache and
nothing more: it may be deleted at any time, two processes may write it at once (the last one
wins, whole), and a folder that cannot be written means that every look reads the whole journal.

Invariant: a memory is used only when the journal's entry of its number has the text that the
memory was made from. Attempts, manifests and files have fresh names in every entry, so another
warehouse at the same place, or a journal that was repaired, is noticed and everything is read
again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from jobs.places import var_folder
from jobs.private import open_private, private_folder
from jobs.protocol.snapshot import text_digest
from jobs.report.tally import Tally
from jobs.tables import Warehouse
from jobs.tables.numbered import Numbered

VERSION = 6
"""Raised when `Memory` or `Tally` change their meaning."""
SAVE_EVERY = 50
"""Entries that are read again at most, after a start."""

AT_ONCE = 1_000
"""Entries that are texts of Python at the same time: some MB."""


class Memory(BaseModel):
    """Sums of the journal up to `tally.n`, and what else is slow to find again."""

    version: int = VERSION
    digest: str = ""
    """SHA-256 of the text of entry `tally.n`."""
    tally: Tally = Tally()
    reasons: dict[str, dict[str, int]] = {}
    """Per data file of `quarantine`: rows by reason."""
    commands_n: int = -1
    """Number up to which every command was answered (or has expired)."""
    saved_n: int = -1

    def follows(self, text: str) -> bool:
        """Whether `text` is the entry that this memory ends with."""
        return self.digest == text_digest(text)


def caught_up(warehouse: Warehouse, memory: Memory) -> Tally:
    """The memory's tally with every entry that is new since; all of them when it does not fit."""
    journal = Numbered(warehouse.table("journal"))
    journal.refresh()
    known = memory.tally.n
    # The entry that the memory ends with is read again: it says whether the memory is of this
    # journal. A journal that is shorter than the memory was made anew or repaired.
    texts = _texts(journal, known - 1) if 0 <= known <= journal.last() else iter(())
    if known >= 0 and not memory.follows(next(texts, "")):
        memory.tally, memory.reasons, memory.saved_n, memory.commands_n = Tally(), {}, -1, -1
        known = -1
    newest = ""
    for newest in texts if known >= 0 else _texts(journal, -1):
        memory.tally.add(from_json(newest))
    if newest:
        memory.digest = text_digest(newest)
    return memory.tally


def _texts(journal: Numbered, after: int) -> Iterator[str]:
    """The entries above a number, in order; a few files of them are held at a time."""
    for part in journal.parts(after):
        for some in part.select(["entry"]).to_batches(max_chunksize=AT_ONCE):
            yield from some["entry"].to_pylist()


def memory_file(place: str) -> Path:
    """The file for the warehouse at `place`."""
    name = hashlib.sha256(place.encode()).hexdigest()[:16]
    return var_folder() / "status" / f"{name}.json"


def load(place: str) -> Memory:
    """What was remembered of the warehouse at `place`; an empty memory when there is nothing."""
    try:
        found = Memory.model_validate_json(memory_file(place).read_bytes())
    except (OSError, ValidationError):
        return Memory()
    return found if found.version == VERSION else Memory()


def save(memory: Memory, place: str) -> None:
    """Remember, when enough is new since the last time. Never raises for lack of a folder."""
    if memory.tally.n - memory.saved_n < SAVE_EVERY:
        return
    memory.saved_n = memory.tally.n
    path = memory_file(place)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        private_folder(path.parent)
        with open(fresh, "w", opener=open_private) as file:
            file.write(memory.model_dump_json())
        fresh.replace(path)
    except OSError:  # a cache that cannot be kept costs time, not truth
        with contextlib.suppress(OSError):
            fresh.unlink()
