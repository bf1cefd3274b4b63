"""The journal's fold: everything that is true after entry n, and nothing that is not.

`fold(state, entry)` is the only way in which a state comes to be, so a driver that starts and a
driver that has run all day hold the same state by construction.

Invariants (checked by `fold`, each a `JournalBroken` when it fails):
* entry numbers run 0, 1, 2, ... without gaps; entry 0 is the genesis, no other is;
* terms never fall; an epoch is written under the term of the last claim;
* the query changes with a claim, and only while the open session has no row;
* epochs run 0, 1, 2, ... without gaps; offsets never fall;
* a session is sealed once, by the seal that was accepted, when every partition has reached it;
* a seal is taken back only while no partition has been read to beyond its end;
* topics keep their names and ids and only ever gain partitions (noticed by a claim or in the
  middle of a term by an epoch: every offset in the state is padded to the widest known);
* every slot that owns a group has a manifest, and the other way round;
* a cut that is taken back is the last one of its hashes, and not of rows that are in no file;
* what is deferred was in memory after the epoch before;
* what is accepted as lost grows, is never read again, and never lies beyond the end of the input;
* watermarks are what follows from the times that the entries count.

What is kept of the past is what recovery can ask for: per open session, the last cuts of every
hash range and a `Mark` (offsets and counts) for each epoch at which such a cut, or the session,
began. Everything older is in the journal only. Of a range so many cuts are kept that those which
may be taken back leave one that holds then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from spillway.protocol.offsets import greater, least, padded, reaches, rows_between
from spillway_schemas.exits import USAGE
from spillway_schemas.journal import (
    KEPT_GENERATIONS,
    Carried,
    Claim,
    Cut,
    Epoch,
    EpochFacts,
    EpochHead,
    EventTime,
    Genesis,
    Move,
    Offsets,
    PartitionCount,
    Prefix,
    Sealed,
    SealRequest,
    SlotTotals,
    Topic,
)
from spillway_schemas.windows import BEGINNING_US, Partition, Progress

Counts = Mapping[tuple[str, int], tuple[int, int]]
"""Per topic partition: rows and digest (modulo 2**64) of all that was read since the genesis."""

Groups = tuple[tuple[Prefix, int], ...]
"""Each partition group with its slot."""


RELIEVING = frozenset({"move", "slots", "spill"})
"""Kinds of commands that change how much a slot holds."""


class JournalBroken(Exception):
    """The journal's entries contradict each other. Nothing may be written on top of it."""


def another_query(written: str, fingerprint: str) -> str:
    """What to say where a session ran by another query, by their fingerprints; empty: it did not.

    `written`: the query's by which it ran.
    """
    if written == fingerprint:
        return ""
    before, now = (each.removeprefix("sha256:")[:12] for each in (written, fingerprint))
    return (
        f"this warehouse holds another query's state and results (fingerprint {before}, now "
        f"{now}). Name the query file that its stream was started with, or the query's own "
        "warehouse.root"
    )


class AnotherQuery(Exception):
    """The warehouse holds another query's state and results."""

    exit_code = USAGE


def check_query(genesis: Genesis, fingerprint: str) -> None:
    """Raise `AnotherQuery` when sessions of this genesis ran by another query, as `another_query`
    says it."""
    if problem := another_query(genesis.query, fingerprint):
        raise AnotherQuery(problem)


@dataclass(frozen=True)
class Mark:
    """Where the input stood at the end of an epoch."""

    end: Offsets
    counts: Counts


@dataclass(frozen=True)
class OpenSession:
    """An open session's part of the state."""

    date: str
    start: Offsets
    """Its first offsets: the end of the session before."""
    base: int
    """The last epoch that read no row of this session."""
    recent_cuts: Mapping[Prefix, tuple[int, ...]] = field(default_factory=dict)
    """Per hash range that has a cut, the epochs of the last ones, ascending: `KEPT_GENERATIONS`
    that may be taken back, after the one before them, or `base` where there is none. Ranges may
    nest, when groups were split or merged: the last cut of a hash is the greatest of all that cover
    it."""
    cuts: int = 0
    results: int = 0
    spilled_rows: int = 0
    progress: Progress | None = None
    """How far its time has come; None: the query has no window."""
    reach: Mapping[Prefix, int] = field(default_factory=dict)
    """Of a query with windows: per hash range that was ever cut, the greatest time of what was."""
    carried: Carried | None = None
    """Rows of earlier sessions that join with its own; None: there are none."""

    @cached_property
    def last_cuts(self) -> Mapping[Prefix, int]:
        """Per hash range that has a cut, the epoch of the last one."""
        return {range_: epochs[-1] for range_, epochs in self.recent_cuts.items()}

    @property
    def waits_for_rows(self) -> bool:
        """Whether rows of the session before are still to be carried into it."""
        return self.carried is not None and self.carried.epoch is None


@dataclass(frozen=True)
class JournalState:
    """What is true after entry `n`."""

    n: int
    term: int
    epoch: int
    genesis: Genesis
    """That of the open session's query."""
    topics: tuple[Topic, ...]
    end: Offsets
    sessions: tuple[OpenSession, ...]
    """The open session, and the next one once a batch has run past the open one's end."""
    seal: SealRequest | None
    """The pending end of the open session."""
    groups: Groups
    assignment_version: int
    policy_epoch: int
    """The last one that obeyed a policy's relieving command; -1: none did."""
    manifests: Mapping[int, str | None]
    marks: Mapping[int, Mark]
    counts: Counts
    sealed: Mapping[str, Sealed]
    seen: frozenset[str]
    """Ids of commands that were obeyed or refused."""
    commands_n: int = -1
    """Every command up to this number of their table is among them."""
    recent_input_ms: int = 0
    """Greatest Kafka time read: the stream's own clock, so that a replay decides the same."""
    reached: tuple[tuple[int, int], ...] = ()
    """Where sessions carry rows over: some epochs, each with the greatest time of all rows up to
    it. Those up to the first of these epochs have expired."""
    totals: tuple[SlotTotals, ...] = ()
    """The slots' figures at the end of the last epoch."""
    budgets: Mapping[int, int] = field(default_factory=dict)
    """Bytes by slot, where a command has set them in this term."""
    cores: int = 0
    """Cores of the executors of the last driver; 0: not known."""
    max_results: int = 0
    """The last driver's limit of a session's results at run time (`intake_held`); 0: none."""
    moves: tuple[Move, ...] = ()
    """Obeyed and still to be carried out, in this order."""
    lost_to: Offsets = field(default_factory=dict)
    """Rows below these offsets are accepted as lost, and not read any more. Empty when no open
    session has such rows."""
    named: Mapping[str, int] = field(default_factory=dict)
    """Per table, the last epoch that named files for it."""
    before: tuple[Genesis, ...] = ()
    """Those of the queries before, in order; without their groups, with the topics as they were
    known last."""

    @property
    def session(self) -> OpenSession:
        """The open session."""
        return self.sessions[0]

    @property
    def slots(self) -> tuple[int, ...]:
        """Slot numbers in order."""
        return tuple(sorted(self.manifests))

    @property
    def hosts(self) -> Mapping[int, str]:
        """Per slot, the host on which its state lies."""
        return {totals.slot: totals.host for totals in self.totals}

    @property
    def memory(self) -> Mapping[int, SlotTotals]:
        """Per slot, what budgets are judged by."""
        return {totals.slot: totals for totals in self.totals}


def begin(genesis: Genesis) -> JournalState:
    """The state after entry 0."""
    if genesis.n != 0:
        raise JournalBroken(f"the genesis is entry {genesis.n}, not 0")
    start = dict(genesis.start)
    return JournalState(
        n=0,
        term=0,
        epoch=-1,
        genesis=genesis,
        topics=tuple(genesis.topics),
        end=start,
        sessions=(
            OpenSession(
                date=genesis.session, start=start, base=-1, progress=_begun(genesis, start)
            ),
        ),
        seal=None,
        groups=tuple(genesis.groups),
        assignment_version=-1,
        policy_epoch=-1,
        manifests={slot: None for _, slot in genesis.groups},
        marks={-1: Mark(start, {})},
        counts={},
        sealed={},
        seen=frozenset(),
        reached=((-1, BEGINNING_US),) if genesis.carry else (),
    )


def _begun(genesis: Genesis, offsets: Offsets) -> Progress | None:
    """The time of a session that begins; None: the query has no window."""
    if genesis.event_time is None:
        return None
    topics = genesis.event_time.topics
    return Progress.begin((topic, p) for topic in topics for p in range(len(offsets[topic])))


def _reach(session: OpenSession, cuts: Iterable[Cut]) -> Mapping[Prefix, int]:
    found = dict(session.reach)
    for cut in cuts:
        if cut.session == session.date and cut.greatest_us is not None:
            found[cut.range] = max(cut.greatest_us, found.get(cut.range, BEGINNING_US))
    return found


def _progressed(
    sessions: Sequence[OpenSession],
    entry: EpochFacts,
    event_time: EventTime,
    clock_ms: int,
    *,
    carry: bool,
) -> tuple[OpenSession, ...]:
    """Open sessions with the time that an epoch has brought."""
    came = (
        {(c.topic, c.partition): c.greatest_us for c in entry.read if c.greatest_us is not None},
        {
            (c.topic, c.partition): c.next_greatest_us
            for c in entry.read
            if c.next_greatest_us is not None
        },
    )
    if carry:
        # One time for all sessions: rows of both may join, and are judged alike.
        both = {each: max(t[each] for t in came if each in t) for each in {*came[0], *came[1]}}
        came = both, both
    # A partition that still brings rows of the session before is not idle in the next one.
    alive: tuple[Collection[Partition], ...] = ((), came[0])
    return tuple(
        replace(
            session,
            progress=session.progress
            and session.progress.after(
                mine,
                clock_ms,
                lateness_us=event_time.lateness_us,
                idle_after_ms=event_time.idle_after_ms,
                alive=others,
            ),
        )
        for session, mine, others in zip(sessions, came, alive, strict=False)
    )


def carries(state: JournalState) -> bool:
    """Whether sessions carry rows over to the next one: then time is one for all of them."""
    return state.genesis.carry


def _carried(state: JournalState) -> Carried | None:
    """What a session will take over that begins with the next epoch."""
    progress = state.session.progress
    if progress is None or not carries(state):
        return None
    return Carried(since=state.reached[0][0], expired_by_us=progress.watermark_us)


CHECKPOINTS = 8
"""Epochs of which `reached` keeps the time, in the time that rows are kept: what a session carries
is read from the last one before: an eighth of that time more, and an epoch, the lateness, and what
partitions differ by."""
MOST_CHECKPOINTS = 64
"""Where the watermark stands still every second one goes, so that no state grows with the days."""


def _reached(
    state: JournalState, entry: EpochFacts, event_time: EventTime, watermark_us: int
) -> tuple[tuple[int, int], ...]:
    """`JournalState.reached` after an epoch that has brought the watermark to `watermark_us`."""
    if not carries(state) or event_time.kept_us is None:
        return state.reached
    kept_us = event_time.kept_us
    known = state.reached
    times = [t for c in entry.read for t in (c.greatest_us, c.next_greatest_us) if t is not None]
    greatest_us = max([known[-1][1], *times])
    if greatest_us >= known[-1][1] + max(kept_us // CHECKPOINTS, 1):
        known = (*known, (entry.epoch, greatest_us))
    over = sum(time_us < watermark_us - kept_us for _, time_us in known)
    known = known[max(over - 1, 0) :]
    return known if len(known) <= MOST_CHECKPOINTS else (known[0], *known[2::2])


def expired_by(session: OpenSession) -> int | None:
    """The watermark by which a session's rows expire in the next epoch; None: none does.

    While rows of the session before are still to be carried nothing expires: they are older than
    any that is still to come, so they may join with rows that no row to come joins (a band that
    does not hold 0 makes such rows).
    """
    if session.progress is None or session.waits_for_rows:
        return None
    by_us = session.progress.watermark_us
    return by_us if by_us > BEGINNING_US else None


def watermarks(sessions: Iterable[OpenSession]) -> dict[str, int]:
    """Per session its watermark, where it has one."""
    return {
        each.date: each.progress.watermark_us
        for each in sessions
        if each.progress is not None and each.progress.watermark_us > BEGINNING_US
    }


def with_times(state: JournalState, entry: Epoch) -> Epoch:
    """The entry with the watermarks after it, and the partitions that they do not wait for."""
    if (event_time := state.genesis.event_time) is None:
        return entry
    sessions = _open_sessions(_ready(state, entry), entry)
    if entry.sealed is not None:
        sessions = sessions[1:]
    idle: dict[str, list[int]] = {}
    if (progress := sessions[0].progress) is not None:
        clock_ms = max(state.recent_input_ms, entry.recent_input_ms)
        for topic, partition in sorted(progress.idle(clock_ms, event_time.idle_after_ms)):
            idle.setdefault(topic, []).append(partition)
    return entry.model_copy(update={"watermarks": watermarks(sessions), "idle": idle})


def replay(entries: Iterable[Genesis | Claim | Epoch | EpochHead]) -> JournalState | None:
    """Fold a whole journal; None when it is empty."""
    state: JournalState | None = None
    for entry in entries:
        state = fold(state, entry)
    return state


def fold(state: JournalState | None, entry: Genesis | Claim | Epoch | EpochHead) -> JournalState:
    """The state after one more entry. Raises `JournalBroken` when it cannot follow `state`."""
    if state is None:
        if not isinstance(entry, Genesis):
            raise JournalBroken(f"the journal begins with a {entry.kind}, entry {entry.n}")
        return begin(entry)
    if isinstance(entry, Genesis) or entry.n != state.n + 1:
        raise JournalBroken(f"entry {entry.n} ({entry.kind}) follows entry {state.n}")
    if isinstance(entry, Claim):
        return _fold_claim(state, entry)
    return _fold_epoch(state, entry)


def _fold_claim(state: JournalState, claim: Claim) -> JournalState:
    if claim.term <= state.term:
        raise JournalBroken(f"entry {claim.n} claims term {claim.term} after term {state.term}")
    # A budget that a command has set ends with the driver: were it more than the machine has, no
    # driver could ever start again.
    grown = replace(
        state,
        n=claim.n,
        term=claim.term,
        cores=claim.cores,
        max_results=claim.max_results,
        budgets={},
    )
    if claim.text is not None:
        grown = replace(grown, genesis=state.genesis.model_copy(update={"text": claim.text}))
    if claim.begins is not None:
        return _with_query(grown, claim.begins)
    if not claim.topics:
        return grown
    if problem := changed_topics(state.topics, claim.topics):
        raise JournalBroken(f"entry {claim.n}: {problem}")
    like = {t.name: [0] * t.partitions for t in claim.topics}
    return replace(_widened(grown, like), topics=tuple(claim.topics))


def genesis_of(state: JournalState, sealed: Sealed) -> Genesis:
    """What the warehouse was when a session ran that has been sealed."""
    return genesis_at((*state.before, state.genesis), sealed.epoch)


def genesis_at(known: Sequence[Genesis], epoch: int) -> Genesis:
    """Of those of a warehouse, in order, the last one that began before an epoch."""
    return next((each for each in reversed(known) if each.after < epoch), known[0])


def not_changeable(state: JournalState) -> str:
    """Why the open session cannot go on by another query; empty when it can: it has no row."""
    session = state.session
    if state.seal is not None:
        return f"{session.date} is being sealed, and not all of its rows have been read"
    rows = rows_between(session.start, state.end)
    if rows or session.cuts:  # rows of the session before may have been carried, and spilled
        told = "are read, or accepted as lost" if state.lost_to else "are read"
        return f"{session.date} has begun by the query as it was: {rows:,} rows of it {told}"
    return ""


def kept_groups(state: JournalState, genesis: Genesis) -> bool:
    """Whether groups stay where they are under another query: it has the same joins."""
    return (state.genesis.joins, state.genesis.parents) == (genesis.joins, genesis.parents)


def with_journal(state: JournalState, wanted: Genesis) -> Genesis:
    """The genesis of a changed query as the next claim may give it, where the state allows it.

    `wanted`: as it would begin a warehouse; it says where topics begin that were not read before.
    """
    start = {
        topic: padded(state.end, wanted.start)[topic] if topic in state.end else offsets
        for topic, offsets in wanted.start.items()
    }
    groups = list(state.groups) if kept_groups(state, wanted) else wanted.groups
    return wanted.model_copy(
        update={
            "warehouse_id": state.genesis.warehouse_id,
            "after": state.epoch,
            "session": state.session.date,
            "start": start,
            "groups": groups,
        }
    )


def _with_query(state: JournalState, begins: Genesis) -> JournalState:
    """The state in which the open session goes on by another query."""
    if problem := not_changeable(state):
        raise JournalBroken(f"entry {state.n} changes the query: {problem}")
    if begins != with_journal(state, begins) or begins.cluster_id != state.genesis.cluster_id:
        raise JournalBroken(f"entry {state.n} changes the query, and does not go on from there")
    if {slot for _, slot in begins.groups} != set(state.manifests):
        raise JournalBroken(f"entry {state.n} changes the query, and the slots")
    start, kept = dict(begins.start), kept_groups(state, begins)
    counts = {place: sums for place, sums in state.counts.items() if place[0] in start}
    was = state.genesis.model_copy(update={"groups": [], "topics": list(state.topics)})
    return replace(
        state,
        genesis=begins,
        before=(*state.before, was),
        topics=tuple(begins.topics),
        end=start,
        sessions=(
            OpenSession(
                date=begins.session, start=start, base=state.epoch, progress=_begun(begins, start)
            ),
        ),
        groups=tuple(begins.groups),
        assignment_version=state.assignment_version if kept else state.epoch,
        manifests=dict.fromkeys(state.manifests),
        marks={state.epoch: Mark(start, counts)},
        counts=counts,
        reached=((state.epoch, BEGINNING_US),) if begins.carry else (),
        moves=state.moves if kept else (),
        lost_to={},  # all of it of sessions before: nothing of the open one is read yet
    )


def changed_topics(known: Iterable[Topic], now: Iterable[Topic]) -> str | None:
    """What makes the broker's topics others than those that the journal knows, or None.

    More partitions are no change of this kind: offsets keep their meaning.
    """
    found = {t.name: t for t in now}
    for topic in known:
        other = found.get(topic.name)
        if other is None:
            return f"topic {topic.name} does not exist any more"
        if other.id != topic.id:
            ids = f"its id was {topic.id}, now {other.id}"
            return f"topic {topic.name} was deleted and created again ({ids})"
        if other.partitions < topic.partitions:
            return f"topic {topic.name} had {topic.partitions} partitions, has {other.partitions}"
    return None


def _widened(state: JournalState, like: Offsets) -> JournalState:
    """The state with the partitions of `like`, where it knows fewer."""
    like = greater(state.end, like)

    def wide(offsets: Offsets) -> Offsets:
        return padded(offsets, like)

    return replace(
        state,
        end=wide(state.end),
        sessions=tuple(replace(s, start=wide(s.start)) for s in state.sessions),
        seal=state.seal and state.seal.model_copy(update={"end": wide(state.seal.end)}),
        marks={e: Mark(wide(m.end), m.counts) for e, m in state.marks.items()},
    )


def _fold_epoch(state: JournalState, entry: Epoch | EpochHead) -> JournalState:
    if entry.term != state.term:
        raise JournalBroken(f"epoch {entry.epoch} of term {entry.term} in term {state.term}")
    if entry.epoch != state.epoch + 1:
        raise JournalBroken(f"epoch {entry.epoch} follows epoch {state.epoch}")
    if not reaches(entry.end, state.end):
        raise JournalBroken(f"epoch {entry.epoch} ends before epoch {state.epoch}")
    groups = state.groups if entry.assignment is None else tuple(entry.assignment)
    if set(entry.manifests) != {slot for _, slot in groups}:
        raise JournalBroken(f"epoch {entry.epoch} names manifests of {sorted(entry.manifests)}")
    state = _ready(state, entry)
    lost_to = greater(state.lost_to, entry.lost_to) if entry.lost_to else state.lost_to
    if lost_to and not reaches(entry.end, lost_to):
        raise JournalBroken(f"epoch {entry.epoch} ends before {lost_to}, up to where rows are lost")
    counts = dict(state.counts)
    for part in entry.read:
        counts[part.topic, part.partition] = counted(counts, part)
    seal = entry.seal or state.seal
    clock_ms = max(state.recent_input_ms, entry.recent_input_ms)
    sessions = _open_sessions(state, entry)
    sealed = dict(state.sealed)
    if entry.sealed is not None:
        if entry.sealed.session != state.session.date or entry.sealed.session in sealed:
            raise JournalBroken(f"epoch {entry.epoch} seals {entry.sealed.session} wrongly")
        if seal is None or not reaches(entry.end, seal.end):
            raise JournalBroken(f"epoch {entry.epoch} seals before the session's end")
        if not (reaches(seal.end, entry.sealed.end) and reaches(entry.sealed.end, seal.end)):
            raise JournalBroken(f"epoch {entry.epoch} seals at other offsets than the seal's")
        if entry.sealed.lost_to != (lost := lost_of(state, entry.sealed.end, lost_to)):
            raise JournalBroken(
                f"epoch {entry.epoch} seals {entry.sealed.session} with rows lost up to "
                f"{entry.sealed.lost_to}; what was accepted is {lost}"
            )
        sealed[entry.sealed.session] = entry.sealed
        sessions, seal = sessions[1:], None
    if watermarks(sessions) != entry.watermarks:
        raise JournalBroken(
            f"epoch {entry.epoch} has the watermarks {entry.watermarks}; by the times that it "
            f"counts they are {watermarks(sessions)}"
        )
    if sessions[0].date != entry.session:
        raise JournalBroken(f"epoch {entry.epoch} says {entry.session} is open, not the journal")
    end = padded(entry.end, state.end)
    marks = {**state.marks, entry.epoch: Mark(end, counts)}
    reached = state.reached
    if (event_time := state.genesis.event_time) is not None and sessions[0].progress is not None:
        reached = _reached(state, entry, event_time, sessions[0].progress.watermark_us)
    wanted = {s.base for s in sessions}
    wanted |= {e for s in sessions for epochs in s.recent_cuts.values() for e in epochs}
    wanted |= {s.carried.since for s in sessions if s.carried} | {e for e, _ in reached}
    by_policy = any(c.obeyed and c.policy and c.kind in RELIEVING for c in entry.commands)
    return replace(
        state,
        n=entry.n,
        epoch=entry.epoch,
        end=end,
        sessions=sessions,
        seal=seal,
        groups=groups,
        assignment_version=state.assignment_version if entry.assignment is None else entry.epoch,
        policy_epoch=entry.epoch if by_policy else state.policy_epoch,
        manifests=dict(entry.manifests),
        marks={e: m for e, m in marks.items() if e in wanted or e == entry.epoch},
        counts=counts,
        sealed=sealed,
        # Not copied by each epoch: it grows with the days.
        seen=state.seen | {c.id for c in entry.commands} if entry.commands else state.seen,
        commands_n=max(state.commands_n, entry.commands_n),
        recent_input_ms=clock_ms,
        reached=reached,
        totals=tuple(entry.slots),
        budgets=state.budgets if entry.budgets is None else dict(entry.budgets),
        moves=_moves(state, entry, dict(groups)),
        lost_to={} if not lost_to or reaches(read_from(sessions[0], marks), lost_to) else lost_to,
        named={**state.named, **dict.fromkeys(entry.tables, entry.epoch)},
    )


def begin_of(session: OpenSession, marks: Mapping[int, Mark]) -> Offsets:
    """Where the rows of an open session begin: its own, or those that it carries."""
    return session.start if session.carried is None else marks[session.carried.since].end


def read_from(session: OpenSession, marks: Mapping[int, Mark]) -> Offsets:
    """Where reading begins when all of an open session is read again: at an epoch's end."""
    since = session.base if session.carried is None else min(session.base, session.carried.since)
    return marks[since].end


def lost_of(state: JournalState, end: Offsets, lost_to: Offsets) -> Offsets:
    """`Sealed.lost_to` of the open session, when it ends at `end`. `lost_to`: all that is lost."""
    mine = least(lost_to, end) if lost_to else {}
    return {} if reaches(begin_of(state.session, state.marks), mine) else mine


def counted(counts: Counts, part: PartitionCount) -> tuple[int, int]:
    """Rows and digest of a topic partition with what an epoch has read of it."""
    rows, digest = counts.get((part.topic, part.partition), (0, 0))
    return rows + part.rows, (digest + part.digest) % 2**64


def _ready(state: JournalState, entry: Epoch | EpochHead) -> JournalState:
    """The state with the partitions that an epoch has found, with the cuts that it begins with, and
    without the seal that it takes back."""
    if any(len(ends) > len(state.end.get(topic, ())) for topic, ends in entry.end.items()):
        state = _widened(state, entry.end)
    state = with_deferred(state, entry.deferred)
    return _without_seal(state, entry) if entry.withdrawn else state


def with_deferred(state: JournalState, cuts: Sequence[Cut]) -> JournalState:
    """The state with the cuts that an epoch begins with, where slots were lost."""
    for cut in cuts:
        session = next((each for each in state.sessions if each.date == cut.session), None)
        if session is None or cut.epoch != state.epoch or session.base >= cut.epoch:
            raise JournalBroken(
                f"epoch {state.epoch + 1} defers rows of {cut.session} up to epoch {cut.epoch}, "
                "which were not in memory"
            )
    if not cuts:
        return state
    return replace(state, sessions=tuple(_deferred(each, cuts) for each in state.sessions))


def _deferred(session: OpenSession, cuts: Iterable[Cut]) -> OpenSession:
    mine = [cut for cut in cuts if cut.session == session.date]
    # The one cut that is left is the one that holds: nothing before it may come back.
    recent = {cut.range: (cut.epoch,) for cut in mine}
    return replace(
        session,
        recent_cuts={**session.recent_cuts, **recent},
        cuts=session.cuts + len(mine),
        reach=_reach(session, mine),
    )


def _moves(
    state: JournalState, entry: Epoch | EpochHead, owners: Mapping[Prefix, int]
) -> tuple[Move, ...]:
    """The queue of moves after an epoch; what it says of moves must agree with its groups."""
    queue = state.moves if entry.queued is None else tuple(entry.queued)
    for move in entry.moved:
        if owners.get(move.group) != move.to:
            raise JournalBroken(f"epoch {entry.epoch} says {move} was carried out; it was not")
    for move in queue:
        if owners.get(move.group, move.to) == move.to:
            raise JournalBroken(f"epoch {entry.epoch} has {move} still to be carried out")
    return queue


def _without_seal(state: JournalState, entry: Epoch | EpochHead) -> JournalState:
    """The state as if its pending seal had never been accepted."""
    if state.seal is None or state.seal.command != entry.withdrawn:
        raise JournalBroken(f"epoch {entry.epoch} takes back a seal that is not pending")
    if not reaches(state.seal.end, state.end):
        raise JournalBroken(f"epoch {entry.epoch} takes back a seal whose end was passed")
    return replace(state, seal=None, sessions=state.sessions[:1])


def brought(session: OpenSession, epoch: int) -> Carried | None:
    """What is carried into the open session, after an epoch: the first one brings all of it."""
    if session.carried is None or not session.waits_for_rows:
        return session.carried
    return session.carried.model_copy(update={"epoch": epoch})


def _overlapping(range_: Prefix, ranges: Collection[Prefix], deepest: int) -> list[Prefix]:
    """Of some ranges, of which none is deeper than `deepest`, those that share a hash with one."""
    wider = [
        Prefix(depth, range_.value >> (range_.depth - depth)) for depth in range(range_.depth + 1)
    ]
    found = [each for each in wider if each in ranges]
    if deepest > range_.depth:  # there were splits
        found += [each for each in ranges if each.depth > range_.depth and range_.covers(each)]
    return found


def _recent_cuts(
    session: OpenSession, entry: Epoch | EpochHead
) -> Mapping[Prefix, tuple[int, ...]]:
    """`OpenSession.recent_cuts` after an epoch."""
    voided = [cut for cut in entry.voided if cut.session == session.date]
    cuts = [cut for cut in entry.cuts if cut.session == session.date]
    if not (voided or cuts):
        return session.recent_cuts
    found = dict(session.recent_cuts)
    deepest = max((range_.depth for range_ in found), default=0) if voided else 0
    for cut in voided:
        *before, last = found.get(cut.range, (session.base,))
        near = _overlapping(cut.range, found, deepest)
        later = any(found[each][-1] >= cut.epoch for each in near if each != cut.range)
        if not before or last != cut.epoch or later:
            raise JournalBroken(
                f"epoch {entry.epoch} takes back the cut of {cut.range.text} at epoch {cut.epoch}, "
                f"which is not the last one of {session.date} there that may be taken back"
            )
        found[cut.range] = tuple(before)
        if before == [session.base]:
            del found[cut.range]
    for cut in cuts:
        known = found.get(cut.range, (session.base,))
        found[cut.range] = (*known[-KEPT_GENERATIONS:], cut.epoch)
    return found


def _open_sessions(state: JournalState, entry: Epoch | EpochHead) -> tuple[OpenSession, ...]:
    """Open sessions with the epoch's cuts and counts; a seal that begins opens the next one."""
    sessions = list(state.sessions)
    sessions[0] = replace(sessions[0], carried=brought(sessions[0], entry.epoch))
    if entry.seal is not None:
        if state.seal is not None or entry.seal.session != state.session.date:
            raise JournalBroken(f"epoch {entry.epoch} accepts a second or foreign seal")
        if not entry.seal.next_session > entry.seal.session:
            raise JournalBroken(f"the session after {entry.seal.session} cannot come before it")
        carried = _carried(state)
        after = OpenSession(
            date=entry.seal.next_session,
            start=entry.seal.end,
            base=state.epoch,
            progress=state.session.progress if carried else _begun(state.genesis, entry.seal.end),
            carried=carried,
        )
        sessions.append(after)
    known = {s.date for s in sessions}
    named = {c.session for c in (*entry.cuts, *entry.voided)}
    named |= set(entry.results) | set(entry.spilled_rows)
    if not named <= known:
        raise JournalBroken(f"epoch {entry.epoch} writes to closed sessions {named - known}")
    moved = tuple(
        s
        if s.date not in named
        else replace(
            s,
            recent_cuts=_recent_cuts(s, entry),
            cuts=s.cuts + sum(c.session == s.date for c in entry.cuts),
            reach=_reach(s, entry.cuts),
            results=s.results + entry.results.get(s.date, 0),
            spilled_rows=s.spilled_rows + entry.spilled_rows.get(s.date, 0),
        )
        for s in sessions
    )
    if (event_time := state.genesis.event_time) is None:
        return moved
    clock_ms = max(state.recent_input_ms, entry.recent_input_ms)
    return _progressed(moved, entry, event_time, clock_ms, carry=carries(state))
