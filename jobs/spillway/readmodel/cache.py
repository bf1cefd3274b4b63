"""What one look at a warehouse remembers for the next: the read model, reasons counted per file.

Model: a small JSON file in the variable folder, named by the warehouse's place; where there is
none, the read model that the warehouse keeps beside its tables. Both are caches and nothing more:
they may be deleted at any time, two processes may write them at once (the last one wins, whole),
and where neither can be written every look reads the whole journal.

Invariant: a read model is used only when the journal's entry of its number has the text that it
was made from. Attempts and manifests have fresh names in every entry, so another warehouse at the
same place, or a journal that was repaired, is noticed and everything is read again.
"""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ValidationError

from spillway.allocators import uncollected
from spillway.places import var_folder
from spillway.private import open_private, private_folder
from spillway.readmodel.hottest import HotKey
from spillway.readmodel.joins import JoinFigures
from spillway.readmodel.kept import MOST_ENTRIES, begun, followed, following, keep_found
from spillway.readmodel.model import KeptReadModel, ReadModel
from spillway.tables import NothingYet, Warehouse

VERSION = 12
"""Raised when `KeptReadCache` changes its meaning."""
SAVE_EVERY = 50
"""Entries that are read again at most, after a start."""


class KeptReadCache(BaseModel):
    """The cache file's contents."""

    version: int = VERSION
    model: KeptReadModel | None = None
    reasons: dict[str, dict[str, int]] = {}


@dataclass
class ReadCache:
    """What is true of the journal up to an entry, and what else is slow to find again."""

    model: ReadModel | None = None
    """None before the first look, and while the journal is empty."""
    reasons: dict[str, dict[str, int]] = field(default_factory=dict)
    """Per data file of `quarantine`: rows by reason."""
    joins: tuple[str, list[JoinFigures]] | None = None
    """A tree's joins, and the digest of the entry after which they were looked at; not saved."""
    hot_keys: tuple[str, list[HotKey]] | None = None
    """The hottest keys, and the digest of the entry after which they were looked at; not saved."""
    saved_n: int = -1


def caught_up(warehouse: Warehouse, memory: ReadCache) -> ReadModel:
    """The memory's model with every entry that is new since; all of them when it does not fit.

    Raises `NothingYet` for an empty journal.
    """
    warehouse.journal.refresh()
    known, entries = memory.model, None
    if known is not None:
        entries = following(warehouse, known.state.n, known.entry)
        if entries is None:
            memory.reasons, memory.saved_n = {}, -1
    if entries is None:
        known, entries = begun(warehouse)
    first = -1 if known is None else known.state.n
    memory.model = model = followed(known, entries)
    if model is None:
        raise NothingYet(warehouse.place.path())
    if model.state.n - first > MOST_ENTRIES:
        with contextlib.suppress(OSError):  # a reader need not be able to write there
            keep_found(warehouse, model)
    return model


def memory_file(place: str) -> Path:
    """The file for the warehouse at `place`."""
    name = hashlib.sha256(place.encode()).hexdigest()[:16]
    return var_folder() / "status" / f"{name}.json"


def load(place: str) -> ReadCache:
    """What was remembered of the warehouse at `place`; an empty memory when there is nothing."""
    try:
        with uncollected():
            kept = memory_file(place).read_bytes()
            _, _, text = kept.partition(b"\n")
            if kept != with_digest(text):  # sealed sessions are parsed when they are asked for
                return ReadCache()
            found = KeptReadCache.model_validate_json(text)
    except (OSError, ValidationError):
        return ReadCache()
    if found.version != VERSION or found.model is None:
        return ReadCache()
    model = ReadModel.restored(found.model)
    return ReadCache(model, found.reasons, saved_n=model.state.n)


def save(memory: ReadCache, place: str) -> None:
    """Remember, when enough is new since the last time. Never raises for lack of a folder."""
    model = memory.model
    if model is None or model.state.n - memory.saved_n < SAVE_EVERY:
        return
    memory.saved_n = model.state.n
    kept = KeptReadCache(model=model.kept(), reasons=memory.reasons)
    path = memory_file(place)
    fresh = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}")  # pids repeat in containers
    try:
        private_folder(path.parent)
        with open(fresh, "wb", opener=open_private) as file:
            file.write(with_digest(kept.model_dump_json().encode()))
        fresh.replace(path)
    except OSError:  # a cache that cannot be kept costs time, not truth
        with contextlib.suppress(OSError):
            fresh.unlink()


def with_digest(text: bytes) -> bytes:
    """A memory's file: the SHA-256 of the JSON on a line of its own, then the JSON."""
    return hashlib.sha256(text).hexdigest().encode() + b"\n" + text
