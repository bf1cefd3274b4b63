"""The driver's protocol: events in, instructions out, no input or output of its own.

    start                         -> ReadJournal
    JournalRead                   -> Append(claim)
    Conflict on the claim         -> ReadJournal(what is new), Append(claim) again
    Appended(claim)               -> Apply for every table that is behind, in order; then Ready
    Offered(end, commands)        -> RunJob(plan); before the epoch that carries rows of the session
                                     before into the open one, ReadHistory. While `intake_held`, no
                                     rows may be offered
    Reported, some slot missing   -> Look; then RunJob(plan with the lost slots restored); of a tree
                                     of joins ReadHistory before that
    JobFailed                     -> Look; then RunJob(the same plan), or End (see `failing`)
    Reported, all done            -> Sync(files), Append(entry)
    Appended(entry)               -> Apply for each table that the entry names; then Ready
    Looked, another has claimed   -> End
    Conflict, Unknown             -> End

Failure paths and what holds on each:
* *A slot is missing, or the job failed*: nothing is journaled, and the epoch runs again from the
  manifests of the epoch before; what the failed attempt wrote is named by nobody.
* *The driver dies before Append*: as if the epoch had not run.
* *... after Append*: the epoch exists. The next driver's redo applies it to every table.
* *Append of an epoch meets a conflict*: another driver has claimed the journal; this one ends.
* *Append of the claim meets a conflict*: the driver that is to be relieved still works, and has
  journaled an epoch since the journal was read. The newest goes on, so this one reads what is new
  and claims again. Whoever has claimed never claims again, so of drivers that start together each
  claims once, the last to do so goes on, and the others end: nobody takes turns.
* *Another driver claims while this one waits for rows, or for an attempt to be repeated*: nothing
  would tell it before its next Append. So its owner looks into the journal now and then, and it
  looks before it repeats an attempt: its state may be missing because the other one tidies up.
* *The outcome of Append is unknown* (the store did not answer): the entry may exist. This driver
  ends without touching a table; the next one reads the journal and knows.
* *A table is ahead of the journal* (judged once the claim is in, for only then is it certain that
  nobody journaled in between): the journal has lost an entry. This driver ends; going on would
  give the lost epoch's number, and its place in the tables, to another epoch.
* *Topics are gone, made anew or shrunk*: this driver ends without claiming.
* *The query is another one than the journal's*: the claim changes it, while the open session has no
  row. Otherwise this driver ends without claiming. Killed before the claim is in, it has changed
  nothing; after it, the next start goes on by the new query, whose columns it gives to the tables.
* *A step's report contradicts the journal* (a cut of a session that is not open, say): `step`
  raises before Append, so nothing that `fold` would refuse is ever journaled.
* *Kafka does not hold rows any more that an epoch reads*: this driver ends (`failing`). A later one
  begins behind them, in the epoch that obeys a person's acceptance (`losses`).
* *A frozen driver wakes up*: its next Append conflicts. Until then it can only repeat Apply of
  entries that are in the journal, which the table's application transaction makes a no-op.

No epoch is journaled while a table is behind: Apply must be answered before `Ready`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spillway.protocol.entry import entry_of, missing_slots
from spillway.protocol.failing import JobFailed, give_up
from spillway.protocol.limit import intake_held
from spillway.protocol.offsets import reaches
from spillway.protocol.plan import MOST_MOVED_BYTES, Plan, plan_epoch
from spillway.protocol.recovery import history_wanted
from spillway.protocol.redo import Apply, applies_of, redo
from spillway.protocol.snapshot import is_settled
from spillway.protocol.state import (
    JournalState,
    changed_topics,
    fold,
    not_changeable,
    with_journal,
)
from spillway_schemas.commands import CommandLine
from spillway_schemas.journal import (
    Claim,
    Epoch,
    EpochFacts,
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
    """Those that `ReadJournal` asked for."""
    applied: Mapping[str, int]
    topics: Sequence[Topic]
    """The topics as the broker knows them now."""
    cores: int = 0
    """Cores of the executors, for the journal."""
    snapshot: JournalState | None = None
    """The state that the entries follow, where the journal was not read from its beginning."""
    max_results: int = 0
    """The limit of a session's results, for the journal; 0: none."""


@dataclass(frozen=True)
class Appended:
    """The entry is in the journal."""


@dataclass(frozen=True)
class Conflict:
    """Another driver's entry is where this one's should go."""

    entries: Sequence[Claim | Epoch] = ()
    """What is in the journal beyond this driver's last entry; empty when that was not read."""


@dataclass(frozen=True)
class Looked:
    """What is in the journal beyond this driver's last entry."""

    entries: Sequence[Claim | Epoch]


@dataclass(frozen=True)
class HistoryRead:
    """The epochs that `ReadHistory` asked for, in order."""

    epochs: Sequence[EpochFacts]


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
    commands: Sequence[CommandLine]
    next_session: str
    now: str
    most_moved_bytes: int = MOST_MOVED_BYTES
    """State that one epoch may move between slots."""
    commands_n: int = -1
    """Number up to which all commands of the table are in `commands`, or seen by the journal."""
    most_restored_rows: int | None = None
    """So many rows may be read again for lost slots; None: all that they had."""


@dataclass(frozen=True)
class Reported:
    """The job came back with these reports."""

    reports: Sequence[SlotReport]
    now: str
    seconds: Mapping[str, float]
    limit_rows: int = 0
    """What the epoch might read at most; 0: not known."""


Event = (
    JournalRead
    | Appended
    | Conflict
    | Looked
    | HistoryRead
    | Unknown
    | Applied
    | Offered
    | Reported
    | JobFailed
)


@dataclass(frozen=True)
class ReadJournal:
    """Read the newest journal and every table's last application transaction."""

    after: int = -1
    """Read the entries after this number."""


@dataclass(frozen=True)
class Look:
    """See whether another driver has written the journal; `Looked` answers."""


@dataclass(frozen=True)
class ReadHistory:
    """Read the journal's epochs after this one: what was lost can be made again only with them."""

    after_epoch: int


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


Instruction = ReadJournal | Look | ReadHistory | Sync | Append | Apply | RunJob | Ready | End

MAX_CLAIMS = 100
"""How often a claim may lose to another driver's epoch. Reading what is new takes far less
time than an epoch does, so more means that something else is wrong."""


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
    failures: tuple[JobFailed, ...] = ()
    """Of the epoch under way."""
    history: tuple[EpochFacts, ...] = ()
    """What `restore_of` needs of the past; read once for the epoch under way."""
    claims: int = 0
    """Claims that met a conflict."""
    ahead: str = ""
    """What the tables have that the journal does not know of, seen before the claim."""
    process: str = ""
    """For the claim: what tells its process from all others."""
    query: Genesis | None = None
    """What the warehouse is by the driver's query; None: whatever the journal says."""


def start(
    name: str, now: str, process: str = "", query: Genesis | None = None
) -> tuple[Driver, list[Instruction]]:
    """A new driver. `process` tells its process from all others, where that is known. `query`: as
    its query would begin a warehouse."""
    return Driver(name=name, started_at=now, process=process, query=query), [ReadJournal()]


def step(driver: Driver, event: Event) -> tuple[Driver, list[Instruction]]:
    """One event's effect. Raises `ValueError` for an event that cannot happen now."""
    match event:
        case JournalRead():
            return _claim(driver, event)
        case Appended():
            return _appended(driver)
        case Conflict():
            return _conflict(driver, event)
        case Looked():
            return _looked(driver, event)
        case HistoryRead():
            return _planned_again(replace(driver, history=tuple(event.epochs)))
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
            return _again(driver, driver.lost, event)


def _claim(driver: Driver, event: JournalRead) -> tuple[Driver, list[Instruction]]:
    if event.snapshot is not None and not is_settled(event.snapshot, event.applied):
        raise ValueError("tables lack commits of entries that a snapshot stands for")
    state = driver.state or event.snapshot
    for entry in event.entries:
        state = fold(state, entry)
    if state is None:
        raise ValueError("the journal is empty: it must begin with a genesis")
    query = driver.query
    changes = query is not None and query.query != state.genesis.query
    if changes and (begun := not_changeable(state)):
        return driver, [End(f"the query has changed, but {begun}", fenced=False)]
    read_on = {topic.name for topic in event.topics}
    known = [topic for topic in state.topics if not changes or topic.name in read_on]
    if problem := changed_topics(known, event.topics):
        return driver, [End(f"the topics no longer match the journal: {problem}", fenced=False)]
    grown = () if changes or tuple(event.topics) == state.topics else tuple(event.topics)
    claim = Claim(
        n=state.n + 1,
        term=state.term + 1,
        driver=driver.name,
        process=driver.process,
        cores=event.cores,
        max_results=event.max_results,
        topics=list(grown),
        text=None if changes or query is None or state.genesis.text is not None else query.text,
        begins=with_journal(state, query) if changes and query is not None else None,
        written_at=driver.started_at,
    )
    behind = (*driver.applying, *redo(event.entries, event.applied))
    ahead = ", ".join(
        f"{table} has epoch {epoch}"
        for table, epoch in sorted(event.applied.items())
        if epoch > state.epoch
    )
    claiming = replace(driver, state=state, pending=claim, applying=behind, ahead=ahead)
    return claiming, [Append(claim)]


def _appended(driver: Driver) -> tuple[Driver, list[Instruction]]:
    if driver.state is None or driver.pending is None:
        raise ValueError("nothing was being appended")
    entry = driver.pending
    if driver.ahead:
        return driver, [
            End(
                f"the journal ends at epoch {driver.state.epoch}, but {driver.ahead}: the journal "
                "has lost entries; see `spillway doctor`",
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
        failures=(),
        history=(),
    )
    return moved, list(applying) or [Ready()]


def _conflict(driver: Driver, event: Conflict) -> tuple[Driver, list[Instruction]]:
    if not isinstance(driver.pending, Claim) or driver.state is None:
        return driver, [_taken_over(event.entries)]
    if driver.claims >= MAX_CLAIMS:
        return driver, [
            End(
                f"the journal could not be claimed: {driver.claims} times another driver wrote an "
                "entry first. Stop that one (`spillway status` names it) and start again",
                fenced=False,
            )
        ]
    again = replace(driver, pending=None, claims=driver.claims + 1)
    return again, [ReadJournal(driver.state.n)]


def _looked(driver: Driver, event: Looked) -> tuple[Driver, list[Instruction]]:
    if event.entries:
        return driver, [_taken_over(event.entries)]
    if driver.plan is not None and driver.pending is None:
        return driver, [RunJob(driver.plan, driver.attempt)]
    return driver, []


def _taken_over(entries: Sequence[Claim | Epoch]) -> End:
    """The end of a driver behind whose back the journal has gone on."""
    claims = [entry for entry in entries if isinstance(entry, Claim)]
    by = f": {claims[-1].driver}, term {claims[-1].term}" if claims else ""
    return End(
        f"another stream has taken over this warehouse{by}. Nothing is lost, and that one goes on "
        "where this one ends. To switch back, stop that one and start this one again. "
        "Supervise only one of them: two would keep taking over from each other",
        fenced=True,
    )


def _applied(driver: Driver, event: Applied) -> tuple[Driver, list[Instruction]]:
    left = tuple(a for a in driver.applying if (a.table, a.epoch) != (event.table, event.epoch))
    if len(left) == len(driver.applying):
        raise ValueError(f"{event.table} was not being applied")
    return replace(driver, applying=left), [] if left else [Ready()]


def _offered(driver: Driver, event: Offered) -> tuple[Driver, list[Instruction]]:
    if driver.state is None or driver.pending or driver.applying or driver.plan:
        raise ValueError("an epoch was offered while another one is pending")
    if (why := intake_held(driver.state)) and not reaches(driver.state.end, event.end):
        raise ValueError(f"rows were offered that may not be read: {why}")
    offered = replace(driver, offer=event, attempt=1)
    if (wanted := history_wanted(driver.state, ())) is not None:
        return offered, [ReadHistory(wanted)]
    plan = _planned(driver.state, event)
    return replace(offered, plan=plan), [RunJob(plan, 1)]


def _reported(driver: Driver, event: Reported) -> tuple[Driver, list[Instruction]]:
    if driver.state is None or driver.plan is None or driver.offer is None:
        raise ValueError("reports came for no plan")
    missing = missing_slots(driver.plan, event.reports)
    if missing:
        names = ", ".join(f"{slot} ({what})" for slot, what in missing.items())
        return _again(driver, driver.lost.union(missing), JobFailed(f"lost state of slot {names}"))
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


def _again(
    driver: Driver, lost: frozenset[int], failure: JobFailed
) -> tuple[Driver, list[Instruction]]:
    if driver.state is None or driver.plan is None or driver.offer is None:
        raise ValueError("a job failed that was not running")
    failures = (*driver.failures, failure)
    if reason := give_up(driver.plan, driver.attempt, failures):
        return driver, [End(reason, fenced=False)]
    again = replace(driver, lost=lost, attempt=driver.attempt + 1, failures=failures)
    wanted = history_wanted(driver.state, lost)
    if wanted is not None and not driver.history:
        return again, [ReadHistory(wanted)]
    return _planned_again(again)


def _planned_again(driver: Driver) -> tuple[Driver, list[Instruction]]:
    """The plan with the history that it needs; of a repeated attempt, first a look whether it is
    still this driver's to make."""
    if driver.state is None or driver.offer is None:
        raise ValueError("history came for no plan")
    plan = _planned(driver.state, driver.offer, driver.lost, driver.history)
    if driver.attempt == 1:
        return replace(driver, plan=plan), [RunJob(plan, 1)]
    return replace(driver, plan=plan), [Look()]


def _planned(
    state: JournalState,
    offer: Offered,
    lost: frozenset[int] = frozenset(),
    history: Sequence[EpochFacts] = (),
) -> Plan:
    return plan_epoch(
        state,
        offer.end,
        offer.commands,
        offer.next_session,
        lost,
        now=offer.now,
        most_moved_bytes=offer.most_moved_bytes,
        commands_n=offer.commands_n,
        history=history,
        most_restored_rows=offer.most_restored_rows,
    )
