"""`spillway maintain`: the night's upkeep of the tables. No Spark, no Kafka.

In this order, table by table, and the last two steps when all tables are done:

1. *drop* what is kept no longer: spilled rows and statistics of days that are proved complete
   (`spillway.tables.retention` says which, and why nobody misses them); *archive* the journal's
   entries of such days, when a setting says so (`spillway.tables.archive`);
2. *merge* what is small, where nobody writes any more (`spillway.tables.compaction`);
3. *delete* the files that no table names (`spillway.tables.garbage`): those that were dropped and
   merged a day ago or earlier, and what attempts left behind;
4. write a *checkpoint* of each table's log, so that the next start opens the tables quickly.

Failure paths:

* *Killed at any moment*: each step is commits that happen or do not. What a merge has written and
  not committed is an orphan, which a later run deletes. The next run finds what is left to do.
* *Killed while it archives*: each entry is in both places, or in the archive alone, which is
  durable before the commit that takes the entries out of the journal.
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
from typing import TYPE_CHECKING, Any, Literal

from spillway.protocol.recovery import history_begins
from spillway.protocol.state import fold
from spillway.readmodel.kept import begun, followed, keep_found
from spillway.report.words import bytes_text, times_text
from spillway.tables import ActiveFile, Warehouse
from spillway.tables.compaction import DEEP, deep_plan, drop, merge
from spillway.tables.definitions import NUMBERED_NAMES
from spillway.tables.garbage import MIN_AGE_S
from spillway.tables.log import Table
from spillway.tables.retention import archivable, droppable, expired
from spillway_schemas.journal import Sealed

if TYPE_CHECKING:
    from rich.table import Table as Shown

LOG_ENTRIES = 10
"""So many entries after a log's last checkpoint make another one due, and so many files that were
taken out: whoever opens the table reads the entries, and they name the files."""
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
    """Whose rows were dropped or archived."""
    archived: Amount = field(default_factory=Amount)
    """Files of the archive; a dry run cannot know their bytes."""
    archived_rows: int = 0
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
    archive_journal_days: int | Literal["never"]
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
    archive_journal_days: int | Literal["never"] = "never",
    dry_run: bool = False,
    now_s: float | None = None,
    min_age_s: float = MIN_AGE_S,
) -> Report:
    """Drop, archive, merge and delete what is due; say what. `dry_run` changes nothing.

    Safe beside a stream, a cleanup and another run of itself.
    Raises StorageError when the disk is full, `OutcomeUnknown`, `DamagedTable`.
    """
    began = time.monotonic()
    now_s = time.time() if now_s is None else now_s
    report = Report(dry_run, keep_spilled_days, keep_statistics_days, archive_journal_days)
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
        if name == "journal" and archive_journal_days != "never":
            old = expired(events, now_s, archive_journal_days)
            report.notes += _archive(warehouse, old, done, dry_run)
        over = None if name in NUMBERED_NAMES else cleaned - gone.get(name, frozenset())
        if name in DEEP and not _merge(table, over, done, dry_run):
            report.notes.append(_left(name, "to merge"))
    found = warehouse.vacuum(min_age_s=min_age_s, dry_run=dry_run, now_s=now_s)
    for done in report.tables:
        orphans = found[done.table]
        done.deleted, done.waiting = Amount.of(orphans.delete), Amount.of(orphans.keep)
        done.foreign = sorted(info.name for info in orphans.foreign)
        if not dry_run:
            many = done.dropped.files + done.merged.files >= LOG_ENTRIES
            warehouse.table(done.table).checkpoint(1 if many else LOG_ENTRIES)
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


def _archive(
    warehouse: Warehouse, old: frozenset[str], done: Maintained, dry_run: bool
) -> list[str]:
    """Move the journal's entries of these sessions to the archive; say what was left, and why."""
    journal = warehouse.journal
    notes: list[str] = []
    for _ in range(ATTEMPTS):
        settled = warehouse.settled().epoch
        state = journal.state()
        sealed = [] if state is None else list(state.sealed.values())
        # An open session may carry rows of days before: a restore reads their epochs.
        read = settled if state is None else history_begins(state)
        ended = archivable(sealed, old, min(settled, read))
        notes = _held_up(sealed, old, ended, settled)
        parts = journal.held(ended)
        sizes: list[int] | None = [0] * len(parts)
        if parts and not dry_run:
            _keep_later(warehouse, parts[-1].last)
            sizes = journal.archive(parts)
        if sizes is not None:
            done.sessions = [part.session for part in parts]
            done.archived = Amount(len(parts), sum(sizes))
            done.archived_rows = sum(part.last - part.first + 1 for part in parts)
            return notes
    return [*notes, _left("journal", "to archive")]


def _held_up(
    sealed: Iterable[Sealed], old: frozenset[str], ended: Sequence[Sealed], settled: int
) -> list[str]:
    """Say which session, or what its tables lack, keeps entries in the table."""
    in_order = sorted(sealed, key=lambda each: each.epoch)[len(ended) :]
    stay = [each.session for each in in_order]
    if old >= set(stay[:2]) and stay[1:] and in_order[0].epoch > settled:
        return [
            f"journal: the entries from {stay[0]} on stay, since tables lack what they name. The "
            "next start of `spillway stream` makes up for it"
        ]
    first = next((k for k, session in enumerate(stay) if session not in old), len(stay))
    if not old & set(stay[first:]):
        return []
    return [
        f"journal: {stay[first]} is not proved complete, or was cleaned later than the days after "
        "it; as long as that is so the entries from the session before it on stay. `spillway "
        "status` shows its verdict: run cleanup, then verify"
    ]


def _keep_later(warehouse: Warehouse, n: int) -> None:
    """See to it that starts and looks need no entry up to `n`. Raises OSError."""
    journal = warehouse.journal
    state, entries = journal.read_on(warehouse.applied_all())
    if state is None or state.n < n:
        for entry in entries:
            state = fold(state, entry)
        assert state is not None  # it has entry `n`
        journal.keep(state)
    model, heads = begun(warehouse)
    if model is None or model.state.n < n:
        model = followed(model, heads)
        assert model is not None
        keep_found(warehouse, model)


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
    archives = report.archive_journal_days != "never"
    titles = ("dropped", *(["archived"] if archives else []), "merged", "deleted")
    for title in (*titles, "not deleted yet"):
        found.add_column(title, overflow="fold")
    for each in report.tables:
        dropped = _amount(each.dropped) + (_days(each) if each.dropped.files else "")
        merged = _amount(each.merged) + (f" into {each.into:,}" if each.into else "")
        row = (dropped, *([_archived(each)] if archives else []), merged)
        cells = (*row, _amount(each.deleted), _amount(each.waiting))
        found.add_row(Text(each.table), *(Text(text) for text in cells))
    return found


def _caption(report: Report) -> str | None:
    foreign = [f"{each.table}/{name}" for each in report.tables for name in each.foreign]
    lines = list(report.notes)
    if foreign:
        some = ", ".join(foreign[:3]) + (" ..." if len(foreign) > 3 else "")
        lines.append(f"{times_text(len(foreign), 'file')} not written by spillway stay: {some}")
    return "\n".join(lines) or None


def _archived(each: Maintained) -> str:
    if not each.archived_rows:
        return "–"
    entries = "entry" if each.archived_rows == 1 else "entries"
    size = f" into {_amount(each.archived)}" if each.archived.bytes else ""
    return f"{each.archived_rows:,} {entries}{_days(each)}{size}"


def _days(each: Maintained) -> str:
    """Of which sessions."""
    first, last = each.sessions[0], each.sessions[-1]
    return f" of {first}" + (f" to {last}" if first != last else "")


def _amount(amount: Amount) -> str:
    if not amount.files:
        return "–"
    return f"{times_text(amount.files, 'file')}, {bytes_text(amount.bytes)}"
