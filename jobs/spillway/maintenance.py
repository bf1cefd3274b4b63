"""`spillway maintain`: the night's upkeep of the tables. No Spark, no Kafka.

In this order, table by table, and the deleting last:

1. *drop* what is kept no longer: spilled rows and statistics of days that are proved complete
   (`spillway.tables.retention` says which, and why nobody misses them);
2. *merge* what is small, where nobody writes any more (`spillway.tables.compaction`);
3. *delete* the files that no table names (`spillway.tables.garbage`): those that were dropped and
   merged a day ago or earlier, and what attempts left behind.

Failure paths:

* *Killed at any moment*: each step is commits that happen or do not. What a merge has written and
  not committed is an orphan, which a later run deletes. The next run finds what is left to do.
* *Two at once, or a stream that compacts at the same time*: of two that take files out of one
  table one is refused, looks again and goes on with what is left (`ATTEMPTS` times; then it
  leaves the table to the others and says so). The stream never fails because of it: its journal
  loses nothing, an append to a table that has just lost files is repeated at once, and where it
  compacts, it does without.
* *The disk is full*: the error goes up; free some space and start it again. Dropping and deleting
  need next to none, merging needs room for one merged file beside what it replaces.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from spillway.report.words import bytes_text, times_text
from spillway.tables import ActiveFile, Warehouse
from spillway.tables.compaction import DEEP, deep_plan, drop, merge
from spillway.tables.definitions import NUMBERED_NAMES
from spillway.tables.garbage import MIN_AGE_S
from spillway.tables.log import Table
from spillway.tables.retention import droppable, expired

if TYPE_CHECKING:
    from rich.table import Table as Shown

ATTEMPTS = 5
"""Times that a table is looked at again when somebody else takes files out of it."""


@dataclass
class Amount:
    """So many files."""

    files: int = 0
    bytes: int = 0

    @classmethod
    def of(cls, files: Iterable[Any]) -> Amount:
        """Count what has `bytes`."""
        sizes = [file.bytes for file in files]
        return cls(len(sizes), sum(sizes))


@dataclass
class Maintained:
    """What was done to one table, or would be. Bytes are those of the files that go."""

    table: str
    dropped: Amount = field(default_factory=Amount)
    dropped_rows: int = 0
    sessions: list[str] = field(default_factory=list)
    """Whose rows were dropped."""
    merged: Amount = field(default_factory=Amount)
    into: int = 0
    """Files that the merged ones have become."""
    deleted: Amount = field(default_factory=Amount)
    waiting: Amount = field(default_factory=Amount)
    """Files that no table names and that may not be deleted yet."""
    foreign: list[str] = field(default_factory=list)
    """Files that are not spillway's: a person decides."""


@dataclass
class Report:
    """What a run has done, or would do."""

    dry_run: bool
    keep_spilled_days: int
    keep_statistics_days: int
    tables: list[Maintained] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was left undone, and why."""
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """As `spillway maintain --json` prints it."""
        return asdict(self)


def maintain(
    warehouse: Warehouse,
    *,
    keep_spilled_days: int,
    keep_statistics_days: int,
    dry_run: bool = False,
    now_s: float | None = None,
    min_age_s: float = MIN_AGE_S,
) -> Report:
    """Drop, merge and delete what is due; say what. `dry_run` changes nothing.

    Safe beside a stream, a cleanup and another run of itself.
    Raises StorageError when the disk is full, `OutcomeUnknown`, `DamagedTable`.
    """
    began = time.monotonic()
    now_s = time.time() if now_s is None else now_s
    report = Report(dry_run, keep_spilled_days, keep_statistics_days)
    events = warehouse.sessions.read()
    known = sorted({event.session for event in events})
    cleaned = {event.session for event in events if event.event == "cleaned"}
    gone = {
        "spill": expired(events, now_s, keep_spilled_days),
        "statistics": expired(events, now_s, keep_statistics_days),
    }
    for name in warehouse.names:
        table, done = warehouse.table(name), Maintained(name)
        report.tables.append(done)
        if name in gone and not _drop(table, gone[name], known, done, dry_run):
            report.notes.append(_left(name, "to drop"))
        over = None if name in NUMBERED_NAMES else cleaned - gone.get(name, frozenset())
        if name in DEEP and not _merge(table, over, done, dry_run):
            report.notes.append(_left(name, "to merge"))
    found = warehouse.vacuum(min_age_s=min_age_s, dry_run=dry_run, now_s=now_s)
    for done in report.tables:
        orphans = found[done.table]
        done.deleted, done.waiting = Amount.of(orphans.delete), Amount.of(orphans.keep)
        done.foreign = sorted(info.name for info in orphans.foreign)
    report.seconds = round(time.monotonic() - began, 3)
    return report


def _drop(
    table: Table, gone: frozenset[str], known: Sequence[str], done: Maintained, dry_run: bool
) -> bool:
    """Take the files of these sessions out of the table; whether nothing is left of them."""
    for _ in range(ATTEMPTS):
        table.refresh()
        files = droppable(table.files(), gone, known)
        if not files or dry_run or drop(table, files):
            done.dropped = Amount.of(files)
            done.dropped_rows = sum(file.rows for file in files)
            done.sessions = sorted({day for file in files for day in file.sessions or ()})
            return True
    return False


def _merge(table: Table, over: set[str] | None, done: Maintained, dry_run: bool) -> bool:
    """Make few files of many where nobody adds any; whether that came to an end."""
    groups: list[Sequence[ActiveFile]] = []
    ended = False
    for _ in range(ATTEMPTS):
        table.refresh()
        for group in deep_plan(table.files(), over):
            if not dry_run and merge(table, group) is None:
                break
            groups.append(group)
        else:
            ended = True
            break
    done.merged = Amount.of(file for group in groups for file in group)
    done.into = len(groups)
    return ended


def _left(table: str, what: str) -> str:
    return (
        f"{table}: another process takes files out of it at the same time; what was left {what} "
        "is left to it, or to the next run"
    )


def shown(report: Report) -> Shown:
    """The report for people."""
    from rich.table import Table as Shown
    from rich.text import Text

    found = Shown(
        title="This would be done" if report.dry_run else "This was done",
        title_justify="left",
        caption=_caption(report),
        caption_justify="left",
        box=None,
        pad_edge=False,
        header_style="dim",
        padding=(0, 2, 0, 0),
    )
    found.add_column("table", no_wrap=True)
    for title in ("dropped", "merged", "deleted", "not deleted yet"):
        found.add_column(title, overflow="fold")
    for each in report.tables:
        dropped = _amount(each.dropped)
        if each.sessions:
            days = (each.sessions[0], each.sessions[-1])
            dropped += f" of {days[0]}" + (f" to {days[1]}" if days[0] != days[1] else "")
        merged = _amount(each.merged) + (f" into {each.into:,}" if each.into else "")
        row = (dropped, merged, _amount(each.deleted), _amount(each.waiting))
        found.add_row(Text(each.table), *(Text(text) for text in row))
    return found


def _caption(report: Report) -> str | None:
    foreign = [f"{each.table}/{name}" for each in report.tables for name in each.foreign]
    lines = list(report.notes)
    if foreign:
        some = ", ".join(foreign[:3]) + (" ..." if len(foreign) > 3 else "")
        lines.append(f"{times_text(len(foreign), 'file')} not written by spillway stay: {some}")
    return "\n".join(lines) or None


def _amount(amount: Amount) -> str:
    if not amount.files:
        return "–"
    return f"{times_text(amount.files, 'file')}, {bytes_text(amount.bytes)}"
