"""Garbage: which files under a table's folder may be deleted. The rules are pure.

A file that a table's current version does not name is an *orphan*: an abandoned attempt's, an
entry that lost its race, one that compaction has replaced, or one whose rows were dropped. It may
go only when nothing can ever name it again:

| written by | may go when |
|---|---|
| a step in epoch e | every journaled commit of epochs <= e is in every table, and e is journaled |
| cleanup of a session | the session is cleaned |
| a correction of a session, revision r | the table has the session's revision r |
| compaction v | the table's compaction transaction has reached v |
| an append of number n | the table's own transaction has reached n |
| anybody else | never: `vacuum` reports it |

and only when it is older than a minimum age, and was not removed from the table within that
age: readers of an older version may be reading it.

The order in which the facts are gathered matters (`vacuum`): first what is settled, then the
listing of files, last what the tables name. So a file that becomes part of a table while vacuum
runs is either not listed, or seen as named, or not settled.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow.parquet as pq

from spillway.storage import FileInfo
from spillway.tables.damage import LOG, last_checkpoint, log_name, log_versions
from spillway.tables.log import Table
from spillway_schemas.filenames import correction_app, origin

MIN_AGE_S = 24 * 3600.0
"""Default minimum age of what vacuum deletes, in seconds: longer than any reader reads."""


@dataclass(frozen=True)
class Settled:
    """What can no longer change. Gathered before files are listed."""

    epoch: int
    """Greatest epoch such that all journaled commits up to it are in all tables; -1 none."""
    cleaned: frozenset[str]
    """Sessions that are cleaned."""
    transactions: Mapping[str, Mapping[str, int]]
    """Per table: of `compaction`, of the table's own numbers and of each corrected session's
    revisions, the last transaction."""


@dataclass(frozen=True)
class Sorted:
    """What the rules say about a table's orphans."""

    delete: list[FileInfo] = field(default_factory=list)
    keep: list[FileInfo] = field(default_factory=list)
    """Orphans that may not go yet."""
    foreign: list[FileInfo] = field(default_factory=list)
    """Files that spillway did not write. A person decides."""


def sort_orphans(
    table: str,
    listed: Iterable[FileInfo],
    named: Iterable[str],
    removed_s: Mapping[str, float],
    settled: Settled,
    *,
    now_s: float,
    min_age_s: float = MIN_AGE_S,
) -> Sorted:
    """Apply the rules to the files listed under one table's folder. Pure.

    `named`: paths that the table's current version names; `removed_s`: when a path was removed
    from the table (s since 1970), at least for the last `min_age_s`.
    """
    current = set(named)
    result = Sorted()
    for info in listed:
        if info.name in current or info.name.split("/", 1)[0] == LOG:
            continue
        if origin(info.name) is None:
            result.foreign.append(info)
            continue
        old = now_s - max(info.modified_s, removed_s.get(info.name, 0.0)) >= min_age_s
        may_go = old and _decided(table, info.name, settled)
        (result.delete if may_go else result.keep).append(info)
    return result


def _decided(table: str, path: str, settled: Settled) -> bool:
    """Whether nothing can name this file any more that does not name it now."""
    made = origin(path)
    if made is None:
        return False
    transactions = settled.transactions.get(table, {})
    match made.writer:
        case "epoch":
            return made.number <= settled.epoch
        case "cleanup":
            return made.session in settled.cleaned
        case "correct":
            return made.number <= transactions.get(correction_app(made.session), -1)
        case "compact":
            return made.number <= transactions.get("compaction", -1)
        case "entry":
            return made.number <= transactions.get(table, -1)


def removals(table: Table) -> dict[str, float]:
    """When paths were removed from the table (s since 1970), for the last `REMOVED_KNOWN_S`."""
    found: dict[str, float] = {}
    place = table.place
    checkpoint = last_checkpoint(place)
    if checkpoint >= 0:
        with place.open(log_name(checkpoint, "checkpoint.parquet")) as file:
            columns = ["remove.path", "remove.deletionTimestamp"]
            kept = pq.read_table(file, columns=columns)
        # A checkpoint of a table from which nothing was ever removed has no such column.
        for row in kept.to_pylist() if "remove" in kept.column_names else []:
            if row["remove"] is not None and row["remove"]["path"] is not None:
                found[row["remove"]["path"]] = row["remove"]["deletionTimestamp"] / 1000
    for version in log_versions(place):
        if version <= checkpoint:
            continue
        for line in place.read(log_name(version)).splitlines():
            if line.startswith(b'{"remove"'):
                removed = json.loads(line)["remove"]
                found[removed["path"]] = removed["deletionTimestamp"] / 1000
    return found
