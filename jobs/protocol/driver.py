"""The driver's protocol: events in, instructions out, no input or output of its own.

    start                         -> ReadJournal
    JournalRead                   -> Append(claim)
    Appended(claim)               -> Apply for every table that is behind, in order; then Ready
    Offered(end, commands)        -> RunJob(plan)
    Reported, some slot missing   -> RunJob(plan with the lost slots restored)
    JobFailed                     -> RunJob(the same plan)
    Reported, all done            -> Sync(files), Append(entry)
    Appended(entry)               -> Apply for each table that the entry names; then Ready
    Conflict, Unknown             -> End

Failure paths and what holds on each:
* *A slot is missing, or the job failed*: nothing is journaled, and the epoch runs again from the
  manifests of the epoch before; what the failed attempt wrote is named by nobody.
* *The driver dies before Append*: as if the epoch had not run.
* *... after Append*: the epoch exists. The next driver's redo applies it to every table.
* *Append meets a conflict*: another driver has claimed the journal; this one ends.
* *The outcome of Append is unknown* (the store did not answer): the entry may exist. This driver
  ends without touching a table; the next one reads the journal and knows.
* *A table is ahead of the journal* (judged once the claim is in, for only then is it certain that
  nobody journaled in between): the journal has lost an entry. This driver ends; going on would
  give the lost epoch's number, and its place in the tables, to another epoch.
* *Topics are gone, made anew or shrunk*: this driver ends without claiming.
* *A step's report contradicts the journal* (a cut of a session that is not open, say): `step`
  raises before Append, so nothing that `fold` would refuse is ever journaled.
* *A frozen driver wakes up*: its next Append conflicts. Until then it can only repeat Apply of
  entries that are in the journal, which the table's application transaction makes a no-op.

No epoch is journaled while a table is behind: Apply must be answered before `Ready`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jobs.protocol.entry import entry_of, missing_slots
from jobs.protocol.plan import MOST_MOVED_BYTES, Plan, plan_epoch
from jobs.protocol.redo import Apply, applies_of, redo
from jobs.protocol.state import JournalState, changed_topics, fold, replay
from schemas.journal import (
    Claim,
    Command,
    Epoch,
    FileRecord,
    Genesis,
    Offsets,
    SlotReport,
    Topic,
)


@dataclass(frozen=True)
class JournalRead:
    """The journal as it stands, and per table the epoch of its last application transaction."""

    entries: Sequence[Genesis | Claim | Epoch]
    applied: Mapping[str, int]
    topics: Sequence[Topic]
    """The topics as the broker knows them now."""
    cores: int = 0
    """Cores of the executors, for the journal."""


@dataclass(frozen=True)
class Appended:
    """The entry is in the journal."""


@dataclass(frozen=True)
class Conflict:
    """Another driver's entry is where this one's should go."""


@dataclass(frozen=True)
class Unknown:
    """Whether the entry is in the journal cannot be known."""

    detail: str


@dataclass(frozen=True)
class Applied:
    """A table has the files of an epoch."""

    table: str
    epoch: int


@dataclass(frozen=True)
class Offered:
    """There is input up to `end`, or something else to do."""

    end: Offsets
    commands: Sequence[Command]
    next_session: str
    now: str
    most_moved_bytes: int = MOST_MOVED_BYTES
    """State that one epoch may move between slots."""


@dataclass(frozen=True)
class Reported:
    """The job came back with these reports."""

    reports: Sequence[SlotReport]
    now: str
    seconds: Mapping[str, float]
    limit_rows: int = 0
    """What the epoch might read at most; 0: not known."""


@dataclass(frozen=True)
class JobFailed:
    """The job raised: no report counts."""

    detail: str


Event = JournalRead | Appended | Conflict | Unknown | Applied | Offered | Reported | JobFailed


@dataclass(frozen=True)
class ReadJournal:
    """Read the whole journal and every table's last application transaction."""


@dataclass(frozen=True)
class Sync:
    """Make these files durable before the journal names them."""

    files: tuple[FileRecord, ...]


@dataclass(frozen=True)
class Append:
    """Append exactly this entry, with the journal's handle as it was last used."""

    entry: Claim | Epoch


@dataclass(frozen=True)
class RunJob:
    """Run the epoch's job. `attempt` counts from 1."""

    plan: Plan
    attempt: int


@dataclass(frozen=True)
class Ready:
    """Nothing is pending: offer the next epoch."""


@dataclass(frozen=True)
class End:
    """This driver ends itself."""

    reason: str
    fenced: bool
    """Whether another driver took over (which is no failure of this one)."""


Instruction = ReadJournal | Sync | Append | Apply | RunJob | Ready | End

MAX_ATTEMPTS = 8
"""Attempts at one epoch before the driver gives up and says why."""


@dataclass(frozen=True)
class Driver:
    """The state of the protocol. `step` gives the next one; nothing is changed in place."""

    name: str
    started_at: str
    state: JournalState | None = None
    pending: Claim | Epoch | None = None
    """The entry that is being appended."""
    applying: tuple[Apply, ...] = ()
    plan: Plan | None = None
    offer: Offered | None = None
    lost: frozenset[int] = frozenset()
    attempt: int = 0
    ahead: str = ""
    """What the tables have that the journal does not know of, seen before the claim."""


def start(name: str, now: str) -> tuple[Driver, list[Instruction]]:
    """A new driver."""
    return Driver(name=name, started_at=now), [ReadJournal()]


def step(driver: Driver, event: Event) -> tuple[Driver, list[Instruction]]:
    """One event's effect. Raises `ValueError` for an event that cannot happen now."""
    match event:
        case JournalRead():
            return _claim(driver, event)
        case Appended():
            return _appended(driver)
        case Conflict():
            return driver, [End("another driver has claimed the journal", fenced=True)]
        case Unknown():
            return driver, [
                End(f"the outcome of a journal commit is unknown: {event.detail}", fenced=False)
            ]
        case Applied():
            return _applied(driver, event)
        case Offered():
            return _offered(driver, event)
        case Reported():
            return _reported(driver, event)
        case JobFailed():
            return _again(driver, driver.lost, event.detail)


def _claim(driver: Driver, event: JournalRead) -> tuple[Driver, list[Instruction]]:
    state = replay(event.entries)
    if state is None:
        raise ValueError("the journal is empty: it must begin with a genesis")
    if problem := changed_topics(state.topics, event.topics):
        return driver, [End(f"the input is not the journal's any more: {problem}", fenced=False)]
    grown = tuple(event.topics) if tuple(event.topics) != state.topics else ()
    claim = Claim(
        n=state.n + 1,
        term=state.term + 1,
        driver=driver.name,
        cores=event.cores,
        topics=list(grown),
        written_at=driver.started_at,
    )
    behind = redo(event.entries, event.applied)
    ahead = ", ".join(
        f"{table} has epoch {epoch}"
        for table, epoch in sorted(event.applied.items())
        if epoch > state.epoch
    )
    claiming = replace(driver, state=state, pending=claim, applying=behind, ahead=ahead)
    return claiming, [Append(claim)]


def _appended(driver: Driver) -> tuple[Driver, list[Instruction]]:
    if driver.pending is None:
        raise ValueError("nothing was being appended")
    entry = driver.pending
    if driver.ahead:
        last = driver.state.epoch if driver.state else -1
        return driver, [
            End(
                f"the journal ends at epoch {last}, but {driver.ahead}: the journal has lost "
                "entries; see `spillway doctor`",
                fenced=False,
            )
        ]
    applying = driver.applying
    if isinstance(entry, Epoch):
        applying = applies_of(entry)
    moved = replace(
        driver,
        state=fold(driver.state, entry),
        pending=None,
        applying=applying,
        plan=None,
        offer=None,
        lost=frozenset(),
        attempt=0,
    )
    return moved, list(applying) or [Ready()]


def _applied(driver: Driver, event: Applied) -> tuple[Driver, list[Instruction]]:
    left = tuple(a for a in driver.applying if (a.table, a.epoch) != (event.table, event.epoch))
    if len(left) == len(driver.applying):
        raise ValueError(f"{event.table} was not being applied")
    return replace(driver, applying=left), [] if left else [Ready()]


def _offered(driver: Driver, event: Offered) -> tuple[Driver, list[Instruction]]:
    if driver.state is None or driver.pending or driver.applying or driver.plan:
        raise ValueError("an epoch was offered while another one is pending")
    plan = _planned(driver.state, event)
    return replace(driver, plan=plan, offer=event, attempt=1), [RunJob(plan, 1)]


def _reported(driver: Driver, event: Reported) -> tuple[Driver, list[Instruction]]:
    if driver.state is None or driver.plan is None or driver.offer is None:
        raise ValueError("reports came for no plan")
    missing = missing_slots(driver.plan, event.reports)
    if missing:
        names = ", ".join(f"{r.slot} ({r.detail})" for r in event.reports if r.slot in missing)
        return _again(driver, driver.lost | missing, f"lost state of slot {names}")
    entry = entry_of(
        driver.state,
        driver.plan,
        event.reports,
        started_at=driver.offer.now,
        written_at=event.now,
        seconds=dict(event.seconds),
        limit_rows=event.limit_rows,
    )
    fold(driver.state, entry)  # Refuses here what it would refuse once it is in the journal.
    moved = replace(driver, pending=entry)
    return moved, [Sync(tuple(entry.files)), Append(entry)]


def _again(driver: Driver, lost: frozenset[int], detail: str) -> tuple[Driver, list[Instruction]]:
    if driver.state is None or driver.offer is None:
        raise ValueError("a job failed that was not running")
    if driver.attempt >= MAX_ATTEMPTS:
        return driver, [
            End(f"epoch {driver.state.epoch + 1} failed {driver.attempt} times: {detail}", False)
        ]
    offer = driver.offer
    plan = _planned(driver.state, offer, lost)
    attempt = driver.attempt + 1
    return replace(driver, plan=plan, lost=lost, attempt=attempt), [RunJob(plan, attempt)]


def _planned(state: JournalState, offer: Offered, lost: frozenset[int] = frozenset()) -> Plan:
    return plan_epoch(
        state,
        offer.end,
        offer.commands,
        offer.next_session,
        lost,
        now=offer.now,
        most_moved_bytes=offer.most_moved_bytes,
    )
