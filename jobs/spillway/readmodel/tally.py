"""The journal added up: what people and policies look at and the protocol does not need.

Model: `Tally.add` folds one epoch into sums, given the journal's state before it and after it. It
keeps no entry: the sums are kept from look to look (`spillway.readmodel.cache`), and only new
entries are read.

Invariants:
* `add` takes epochs in order, each once; the tally after entry n depends on entries 0..n only.
* The history has at most `MOST_POINTS` points. When it is full, two neighbours become one: counts
  and seconds are added, bytes keep the greater, so no peak and no spill vanishes from a chart. A
  session keeps one point at least, and one of its flush; so the oldest sessions' points go once
  they alone would fill the history, after about a year.

Known limitation: rows of an epoch that crosses a session's end are divided by offsets. That is
exact as long as offsets have no gaps between them; transactions leave some, and then the split of
that one epoch is in proportion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal

from pydantic import BaseModel

from spillway.policy.sampling import Work, work_of
from spillway.protocol.offsets import offset_of
from spillway.protocol.state import JournalState
from spillway.readmodel.adaptations import Adaptations
from spillway_schemas.journal import (
    DELAY_EDGES_MS,
    Claim,
    EpochFacts,
    Genesis,
    Offsets,
    Record,
    SlotTotals,
)

SealAnswerKind = Literal["withdrawn", "not withdrawn", "refused", "loss accepted", "loss refused"]

MOST_POINTS = 1024
KEPT_POINTS = 768
"""That are left at most when the history was full: the open session gets the others."""
RECENT_EPOCHS = 256
"""Epochs that rates, the present delay and what policies look at are taken from."""
MOST_SEAL_ANSWERS = 16
"""Of one session, beside the losses that were accepted: its verdict names those."""
SEAL_ANSWERS: dict[tuple[str, bool], SealAnswerKind] = {
    ("withdraw", True): "withdrawn",
    ("withdraw", False): "not withdrawn",
    ("seal", False): "refused",
    ("accept-loss", True): "loss accepted",
    ("accept-loss", False): "loss refused",
}
"""By kind of command, and whether it was obeyed; a seal that was obeyed is the session's."""
STEP_PARTS = ("load", "install", "join", "write", "spill", "merge", "manifest")


class Recent(Work):
    """One of the last epochs."""

    results: int
    delay: list[int]


class Point(Record):
    """One epoch of the history, or several in a row when there are too many to draw."""

    epoch: int
    """The last of them."""
    epochs: int
    session: str
    """The open session."""
    started_ms: int
    ended_ms: int
    """Ms since 1970."""
    rows: int
    rejected: int
    results: dict[str, int]
    """Per session."""
    state_bytes: dict[int, int]
    """Per slot; the greatest of the epochs."""
    folder_bytes: dict[int, int]
    budget_bytes: dict[int, int]
    """Per slot; that of the last of the epochs."""
    spilled_bytes: dict[int, int]
    """Only slots that spilled."""
    moved_in: dict[int, int]
    """Groups that came to a slot from another one; only slots that got some."""
    moved_out: dict[int, int]
    flush: bool
    """What was spilled was the seal's flush."""
    seconds: dict[str, float]
    """The epochs' time by part, in the order of its happening; the slots' parts are those of the
    slot that was busy longest."""


class SealAnswer(Record):
    """What the stream made of a command about a session, other than a seal that it obeyed."""

    what: SealAnswerKind
    """`refused`: a seal; `withdrawn`, `not withdrawn`: a withdrawal of one."""
    at: str
    by: str
    reason: str
    """Of whoever asked where it was obeyed, else of the stream."""


class SlotTally(BaseModel):
    """A slot as the last epoch left it, with its peaks in the open session."""

    host: str = ""
    rows: int = 0
    groups: int = 0
    """That hold rows."""
    budget_bytes: int = 0
    state_bytes: int = 0
    peak_state_bytes: int = 0
    folder_bytes: int = 0
    free_bytes: int | None = None
    """Of the file system that the folder is in; None: not known."""
    peak_folder_bytes: int = 0
    spills: int = 0
    """Epochs in which it spilled."""
    spilled_bytes: int = 0
    moved_in: int = 0
    """Groups that came from other slots."""
    moved_out: int = 0


class SessionTally(BaseModel):
    """A session's sums."""

    session: str
    rows: dict[str, int] = {}
    rejected: dict[str, int] = {}
    filtered: dict[str, int] = {}
    outside: dict[str, int] = {}
    """Rows that happened outside its day; only topics of which that is counted."""
    results: int = 0
    spills: int = 0
    overflows: int = 0
    """Spills that took more than their rule says, for want of room."""
    spilled_rows: int = 0
    spilled_bytes: int = 0
    flushed_bytes: int = 0
    returned_bytes: int = 0
    expired_rows: int = 0
    cuts: int = 0
    cuts_by_range: dict[str, int] = {}
    """By `Prefix.text`; empty once it is sealed."""
    most_cuts: int = 0
    """Of one range."""
    cuts_by_join: dict[int, int] = {}
    """By the join's number; only joins that were cut."""
    peak_state_bytes: int = 0
    budget_bytes: int = 0
    restored_slots: int = 0
    deferred_slots: int = 0
    """Slots that were lost and whose rows were left to cleanup."""
    moved: int = 0
    """Groups that changed their slot."""
    forced_bytes: int = 0
    """What policies have told slots to spill."""
    first_input_ms: int = 0
    last_input_ms: int = 0
    """Kafka time of its newest row after the first epoch, and after the last."""
    delay: list[int] = []
    began_at: str | None = None
    end: Offsets | None = None
    """Where it ends, once that is fixed."""
    seal_by: str = ""
    seal_reason: str = ""
    seal_answers: list[SealAnswer] = []
    sealed_at: str | None = None
    sealed_epoch: int | None = None
    ranges: int | None = None


@lru_cache(maxsize=1024)
def _parsed(text: str) -> SessionTally:
    """Of a sealed session; whoever gets it must not change it."""
    return SessionTally.model_validate_json(text)


class TalliedSessions(Mapping[str, SessionTally]):
    """All sessions by date, in order. A sealed one is parsed when it is asked for, and once."""

    def __init__(self, sealed: Mapping[str, str], open_: Mapping[str, SessionTally]) -> None:
        self._sealed, self._open = sealed, open_

    def __getitem__(self, date: str) -> SessionTally:
        found = self._open.get(date)
        return _parsed(self._sealed[date]) if found is None else found

    def __iter__(self) -> Iterator[str]:
        yield from self._sealed
        yield from self._open

    def __len__(self) -> int:
        return len(self._sealed) + len(self._open)


class Tally(BaseModel):
    """The sums after an entry."""

    driver: str
    """Host and process of the last driver; empty before the first."""
    process: str
    """Its `process_identity`; empty where it was not kept."""
    last_claim_at: str | None
    last_epoch_at: str | None
    write_s: dict[str, float] = {}
    """What the newest epoch knows of disks: `tables`: the commits of the epoch before; `state`:
    the slowest slot's manifest."""
    open_sessions: dict[str, SessionTally]
    sealed_sessions: dict[str, str]
    """Each as JSON: it never changes again, and few of those who look ask for old ones. (A year of
    them took 4 ms of every look.)"""
    slots: dict[int, SlotTally]
    recent: list[Recent]
    points: list[Point]
    adaptations: Adaptations

    @property
    def sessions(self) -> TalliedSessions:
        """Sealed ones and open ones."""
        return TalliedSessions(self.sealed_sessions, self.open_sessions)

    @classmethod
    def of(cls, genesis: Genesis) -> Tally:
        """After entry 0."""
        return cls(
            driver="",
            process="",
            last_claim_at=None,
            last_epoch_at=None,
            open_sessions={genesis.session: SessionTally(session=genesis.session)},
            sealed_sessions={},
            slots={slot: SlotTally() for _, slot in genesis.groups},
            recent=[],
            points=[],
            adaptations=Adaptations(),
        )

    def claimed(self, claim: Claim) -> None:
        """A driver has taken over."""
        self.driver, self.process = claim.driver, claim.process
        self.last_claim_at = claim.written_at

    def add(self, before: JournalState, entry: EpochFacts, after: JournalState) -> None:
        """Fold an epoch, given the journal's state before it and after it."""
        work = work_of(entry)
        open_ = before.session.date
        session = self.open_sessions[open_]
        session.began_at = session.began_at or entry.started_at
        if entry.withdrawn:
            # The next session has no row yet: it is as if it had never been.
            session.end, session.seal_by, session.seal_reason = None, "", ""
            self.open_sessions = {open_: session}
        if entry.seal is not None:
            later = entry.seal.next_session
            session.end = entry.seal.end
            self.open_sessions[later] = SessionTally(session=later, began_at=entry.started_at)
        self._read(before, entry)
        for date, results in entry.results.items():
            self.open_sessions[date].results += results
        for date, rows in entry.spilled_rows.items():
            self.open_sessions[date].spilled_rows += rows
        for cut in (*entry.deferred, *entry.cuts):
            one = self.open_sessions[cut.session]
            one.cuts += 1
            name = cut.range.text
            _count(one.cuts_by_range, name, 1)
            _count(one.cuts_by_join, cut.operator, 1)
            one.most_cuts = max(one.most_cuts, one.cuts_by_range[name])
        session.restored_slots += len(entry.restored_slots)
        session.deferred_slots += len(entry.deferred_slots)
        held = {number: slot.state_bytes for number, slot in self.slots.items()}
        came, went = self._moved(session, before, entry)
        self._answered(session, entry)
        self.adaptations.add(entry, held, after.moves, (work.ended_ms - work.started_ms) / 1000)
        if stamp := entry.recent_input_ms:
            session.first_input_ms = session.first_input_ms or stamp
            session.last_input_ms = max(session.last_input_ms, stamp)
        delay = _added(each.delay_ms for each in entry.slots)
        session.delay = _added((session.delay, delay))
        for totals in entry.slots:
            self._slot(session, totals, flush=entry.sealed is not None)
        recent = Recent(**dict(work), results=sum(entry.results.values()), delay=delay)
        self.recent = [*self.recent[1 - RECENT_EPOCHS :], recent]
        self.points.append(_point(entry, open_, work, came, went))
        if len(self.points) > MOST_POINTS:
            self.points = with_room(self.points)
        self.last_epoch_at = entry.written_at
        self.write_s = {
            "tables": entry.seconds.get("commits before", 0.0),
            "state": max((each.seconds.get("manifest", 0.0) for each in entry.slots), default=0.0),
        }
        if entry.sealed is not None:
            session.end = entry.sealed.end
            session.sealed_at, session.sealed_epoch = entry.written_at, entry.epoch
            session.ranges, session.cuts_by_range = len(entry.sealed.ranges), {}
            self.sealed_sessions[open_] = self.open_sessions.pop(open_).model_dump_json()
            for slot in self.slots.values():
                slot.peak_state_bytes, slot.peak_folder_bytes = slot.state_bytes, slot.folder_bytes
                slot.spills = slot.spilled_bytes = slot.moved_in = slot.moved_out = 0

    def _moved(
        self, session: SessionTally, before: JournalState, entry: EpochFacts
    ) -> tuple[dict[int, int], dict[int, int]]:
        """Moves and the assignment. Groups that came to each slot, and that left it."""
        owners = dict(before.groups) if entry.moved else {}
        came: Counter[int] = Counter()
        went: Counter[int] = Counter()
        for move in entry.moved:
            source = owners.get(move.group)
            self.slots.setdefault(move.to, SlotTally()).moved_in += 1
            came[move.to] += 1
            if source is not None:
                self.slots[source].moved_out += 1
                went[source] += 1
        session.moved += len(entry.moved)
        if entry.assignment is not None:
            alive = {slot for _, slot in entry.assignment}
            self.slots = {n: slot for n, slot in self.slots.items() if n in alive}
        return dict(came), dict(went)

    def _answered(self, session: SessionTally, entry: EpochFacts) -> None:
        """Commands that were obeyed or refused."""
        for outcome in entry.commands:
            if outcome.obeyed and outcome.policy and outcome.kind == "spill":
                session.forced_bytes += outcome.bytes
            if entry.seal is not None and outcome.id == entry.seal.command:
                session.seal_by, session.seal_reason = outcome.by, outcome.reason
            elif (what := SEAL_ANSWERS.get((outcome.kind, outcome.obeyed))) is not None:
                by, reason = outcome.by, outcome.reason
                answer = SealAnswer(what=what, at=entry.written_at, by=by, reason=reason)
                session.seal_answers = _kept([*session.seal_answers, answer])

    def _read(self, before: JournalState, entry: EpochFacts) -> None:
        """Rows of the epoch to the sessions that they belong to."""
        open_ = before.session.date
        session = self.open_sessions[open_]
        ending = session.end
        after = next((s for d, s in self.open_sessions.items() if d > open_), None)
        for part in entry.read:
            topic, partition = part.topic, part.partition
            begin = offset_of(before.end, topic, partition)
            end = offset_of(entry.end, topic, partition)
            beyond = 0.0
            if ending is not None and end > begin:
                bound = min(max(offset_of(ending, topic, partition), begin), end)
                beyond = (end - bound) / (end - begin)
            for kind in ("rows", "rejected", "filtered"):
                count = getattr(part, kind)
                later = round(count * beyond)
                _count(getattr(session, kind), topic, count - later)
                if later and after is not None:
                    _count(getattr(after, kind), topic, later)
            if part.outside is not None:
                _count(session.outside, topic, part.outside)
            if part.next_outside is not None and after is not None:
                _count(after.outside, topic, part.next_outside)

    def _slot(self, session: SessionTally, totals: SlotTotals, *, flush: bool) -> None:
        slot = self.slots.setdefault(totals.slot, SlotTally())
        slot.host = totals.host
        slot.rows, slot.groups = totals.rows, totals.groups
        slot.budget_bytes = totals.budget_bytes
        slot.state_bytes, slot.folder_bytes = totals.state_bytes, totals.folder_bytes
        slot.free_bytes = totals.free_bytes
        slot.peak_state_bytes = max(slot.peak_state_bytes, slot.state_bytes)
        slot.peak_folder_bytes = max(slot.peak_folder_bytes, slot.folder_bytes)
        peak, whole = session.peak_state_bytes, session.budget_bytes
        if not whole or slot.state_bytes * whole > peak * slot.budget_bytes:
            session.peak_state_bytes, session.budget_bytes = slot.state_bytes, slot.budget_bytes
        session.expired_rows += totals.expired_rows
        session.returned_bytes += totals.returned_bytes
        spilled = totals.spilled_bytes
        if flush:
            session.flushed_bytes += spilled
        elif spilled:
            slot.spills += 1
            slot.spilled_bytes += spilled
            session.spills += 1
            session.overflows += totals.overflow_bytes > 0
            session.spilled_bytes += spilled


def delay_quantile_ms(histogram: list[int], quantile: float) -> int | None:
    """The delay that `quantile` of the samples do not exceed, in ms; None without samples.

    `histogram` counts over `DELAY_EDGES_MS` and one bucket beyond; within a bucket samples are
    taken as evenly spread, beyond the last edge the answer is that edge.
    """
    wanted = quantile * sum(histogram)
    if wanted <= 0:
        return None
    below = 0
    for bucket, count in enumerate(histogram):
        if count and below + count >= wanted:
            if bucket >= len(DELAY_EDGES_MS):
                break
            low = DELAY_EDGES_MS[bucket - 1] if bucket else 0
            high = DELAY_EDGES_MS[bucket]
            return round(low + (high - low) * (wanted - below) / count)
        below += count
    return DELAY_EDGES_MS[-1]


def summed_delay(measured: Iterable[Recent | SessionTally]) -> list[int]:
    """One histogram of all the epochs or sessions given."""
    return _added(each.delay for each in measured)


def _kept(answers: list[SealAnswer]) -> list[SealAnswer]:
    """The newest answers, and every loss that was accepted."""
    others = [n for n, each in enumerate(answers) if each.what != "loss accepted"]
    dropped = set(others[:-MOST_SEAL_ANSWERS])
    return [each for n, each in enumerate(answers) if n not in dropped]


def at_most(points: list[Point], most: int) -> list[Point]:
    """The points, neighbours joined until there are at most `most`, or no two can be joined."""
    while len(points) > most:
        shorter = thinned(points)
        if len(shorter) == len(points):
            break
        points = shorter
    return points


def thinned(points: list[Point]) -> list[Point]:
    """Half as many points: each two neighbours of one session become one."""
    out: list[Point] = []
    waiting: Point | None = None
    for point in points:
        if waiting is None:
            waiting = point
        elif waiting.session == point.session and waiting.flush == point.flush:
            out.append(_merged(waiting, point))
            waiting = None
        else:
            out.append(waiting)
            waiting = point
    return out if waiting is None else [*out, waiting]


def with_room(points: list[Point]) -> list[Point]:
    """At most `KEPT_POINTS` of a full history: neighbours joined, the oldest sessions left out."""
    points = thinned(points)
    while len(points) > KEPT_POINTS and points[0].session != points[-1].session:
        oldest = points[0].session
        points = [each for each in points if each.session != oldest]
    return points


def _merged(a: Point, b: Point) -> Point:
    return b.model_copy(
        update={
            "epochs": a.epochs + b.epochs,
            "started_ms": a.started_ms,
            "rows": a.rows + b.rows,
            "rejected": a.rejected + b.rejected,
            "results": _sums(a.results, b.results),
            "state_bytes": _greater(a.state_bytes, b.state_bytes),
            "folder_bytes": _greater(a.folder_bytes, b.folder_bytes),
            "spilled_bytes": _sums(a.spilled_bytes, b.spilled_bytes),
            "moved_in": _sums(a.moved_in, b.moved_in),
            "moved_out": _sums(a.moved_out, b.moved_out),
            "seconds": _sums(a.seconds, b.seconds),
        }
    )


def _point(
    entry: EpochFacts, session: str, work: Work, came: dict[int, int], went: dict[int, int]
) -> Point:
    slots = entry.slots
    return Point(
        epoch=entry.epoch,
        epochs=1,
        session=session,
        started_ms=work.started_ms,
        ended_ms=work.ended_ms,
        rows=work.rows,
        rejected=sum(part.rejected for part in entry.read),
        results=entry.results,
        state_bytes={t.slot: t.state_bytes for t in slots},
        folder_bytes={t.slot: t.folder_bytes for t in slots},
        budget_bytes={t.slot: t.budget_bytes for t in slots},
        spilled_bytes={t.slot: t.spilled_bytes for t in slots if t.spilled_bytes},
        moved_in=came,
        moved_out=went,
        flush=entry.sealed is not None,
        seconds=_seconds(entry, (work.ended_ms - work.started_ms) / 1000),
    )


def _seconds(entry: EpochFacts, whole_s: float) -> dict[str, float]:
    """Where an epoch's time went. The parts add up to the epoch.

    The slots work at the same time, so the busiest one's parts are what the epoch waits for. What
    is left of the job is reading, decoding and routing; what is left of the epoch is planning and
    syncing.
    """
    busiest = max(entry.slots, key=lambda t: t.busy_s, default=None)
    parts = dict.fromkeys(("read, decode, route", *STEP_PARTS), 0.0)
    if busiest is not None:
        parts |= busiest.seconds
    step_s = sum(parts.values())
    job_s = max(entry.seconds.get("job", step_s), step_s)
    parts["read, decode, route"] = job_s - step_s
    parts["plan, sync"] = max(0.0, whole_s - job_s)
    return {part: round(seconds, 4) for part, seconds in parts.items()}


def _count(counts: dict[Any, int], name: Any, more: int) -> None:
    counts[name] = counts.get(name, 0) + more


def _sums(a: dict[Any, Any], b: dict[Any, Any]) -> dict[Any, Any]:
    return {key: a.get(key, 0) + b.get(key, 0) for key in {**a, **b}}


def _greater(a: dict[int, int], b: dict[int, int]) -> dict[int, int]:
    return {key: max(a.get(key, 0), b.get(key, 0)) for key in {**a, **b}}


def _added(histograms: Iterable[list[int]]) -> list[int]:
    total: list[int] = []
    for each in histograms:
        if len(each) > len(total):
            total += [0] * (len(each) - len(total))
        for bucket, count in enumerate(each):
            total[bucket] += count
    return total
