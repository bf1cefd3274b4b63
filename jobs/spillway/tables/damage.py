"""Torn transaction logs: finding them, and taking the torn end away.

delta-rs publishes a log entry by a link to a finished file, so a running system never shows
half an entry. After a loss of power an entry that was not synced may be empty, cut short or
full of zero bytes. delta-rs loads an *empty* last entry silently and would commit on top of it.
So every opening checks the log from the last checkpoint on: no gap, every line is JSON, the
description of the commit is there, and there are as many actions as it says.

`repair` moves the first bad entry, and every entry after it, into `_damaged/` of the
warehouse. Why nothing is lost by that, as long as `warehouse.fsync` was on:

* A commit is acknowledged only after every log entry up to its own was synced. So neither the
  torn entry nor any after it was ever acknowledged.
* A data table's commit is made again from the journal (redo), cleanup's by running cleanup
  again, a compaction need not be made again, and `seal` or `verify` never told anybody that
  they were done.
* A journal entry is synced before any table is committed, so a torn one was followed by
  nothing, and its epoch never happened: its input is read again.

With `fsync` off the last point may not hold. `repair` therefore refuses to shorten the
journal when a table has an epoch, or a session a cleanup, that the shortened journal would not
know (`Warehouse.check`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from spillway.storage import Folder
from spillway.tables.errors import DamagedTable

LOG = "_delta_log"
COUNTS = {"add": "spillwayAdds", "remove": "spillwayRemoves", "txn": "spillwayTransactions"}
"""Per kind of action: the key in a commit's description that says how many there are."""

_WHOLE = b'{"commitInfo":{}}'
_ENTRY = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint.*\.parquet")


def log_name(version: int, suffix: str = "json") -> str:
    """Name of a file of the log, relative to the table's folder."""
    return f"{LOG}/{version:020d}.{suffix}"


def last_checkpoint(place: Folder) -> int:
    """Version of the table's newest checkpoint; -1 when there is none. Raises `DamagedTable`."""
    name = f"{LOG}/_last_checkpoint"
    if place.size(name) is None:
        files = checkpoint_files(place)
        return int(files[-1][len(LOG) + 1 :][:20]) if files else -1
    try:
        return int(json.loads(place.read(name))["version"])
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedTable(f"{place.path(name)} is torn: run `spillway doctor --repair`") from error


def entry_problem(text: bytes) -> str | None:
    """Return what is wrong with one log entry; None when it is whole."""
    if not text.strip():
        return "it is empty"
    try:
        actions = [json.loads(line) for line in text.decode().splitlines() if line.strip()]
    except ValueError:
        return "it is cut short or overwritten"
    if not all(isinstance(action, dict) and action for action in actions):
        return "it holds something that is no action"
    described = [action["commitInfo"] for action in actions if "commitInfo" in action]
    if not described:
        return "it has no description"
    for kind, key in COUNTS.items():
        said = described[0].get(key)
        found = sum(kind in action for action in actions)
        if said is not None and said != found:
            return f"it should hold {said} {kind!r} actions and holds {found}"
    return None


def first_gap(versions: Sequence[int], checkpoint: int) -> tuple[int, str] | None:
    """Return the first version after the checkpoint that is missing, as `first_bad` does. Pure."""
    return first_bad(versions, checkpoint, lambda _: _WHOLE)


def first_bad(versions: Sequence[int], checkpoint: int, texts: Any) -> tuple[int, str] | None:
    """Return the first bad version after the checkpoint and what is wrong with it. Pure.

    `versions`: all that exist, ascending; `texts(v)` gives the bytes of one.
    """
    expected = max(checkpoint, -1) + 1
    for version in versions:
        if version < expected:
            continue
        if version > expected:
            return expected, "it is not there, but later ones are"
        if problem := entry_problem(texts(version)):
            return version, problem
        expected = version + 1
    return None


def is_table(place: Folder) -> bool:
    """Whether there is a table: a log with an entry or a checkpoint, whole or torn."""
    names = place.child(LOG).names()
    return any(_ENTRY.fullmatch(name) or _CHECKPOINT.fullmatch(name) for name in names)


def log_versions(place: Folder) -> list[int]:
    """Versions of all log entries, ascending."""
    names = place.child(LOG).names()
    return sorted(int(match[1]) for name in names if (match := _ENTRY.fullmatch(name)))


def checkpoint_files(place: Folder) -> list[str]:
    """Names of the log's checkpoint files, relative to the table's folder, oldest first."""
    names = place.child(LOG).names()
    return sorted(f"{LOG}/{name}" for name in names if _CHECKPOINT.fullmatch(name))


def check_log(place: Folder, name: str) -> None:
    """Raise `DamagedTable` when the log is torn after its last checkpoint.

    Where no file is ever torn, only whether one is missing is looked at.
    """
    versions, checkpoint = log_versions(place), last_checkpoint(place)
    if place.is_atomic:
        bad = first_gap(versions, checkpoint)
    else:
        bad = first_bad(versions, checkpoint, lambda v: place.read(log_name(v)))
    if bad:
        version, problem = bad
        raise DamagedTable(
            f"the table {name!r} is damaged: log entry {place.path(log_name(version))}: {problem}. "
            "Stop everything that uses the warehouse and run `spillway doctor --repair`"
        )
