"""The journal added up: all that `Status` needs, in bounded space, one entry at a time.

Model: `Tally.add(entry)` folds one journal entry, given as plain JSON, into sums. It keeps no
entry: a day of 12,000 epochs of 10 KB each would take seconds to read again at every look, so the
sums are kept from look to look (`jobs.report.memory`), and only new entries are read.

Invariants:
* `add` takes entries in order, each once; the tally after entry n depends on entries 0..n only.
* The history has at most `MOST_POINTS` points. When it is full, two neighbours become one: counts
  and seconds are added, bytes keep the greater, so no peak and no spill vanishes from a chart.

Entries come unvalidated (`pydantic_core.from_json`): validating 5,000 of them takes 1.4 s, and
they were validated when they were written. A field that is missing raises KeyError.

Known limitation: rows of an epoch that crosses a session's end are divided by offsets. That is
exact as long as offsets have no gaps between them; transactions leave some, and then the split of
that one epoch is in proportion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from jobs.policy.sampling import Sample, Work, ms, owned, sample_of, work_of
from jobs.protocol.state import RELIEVING
from jobs.report.adaptations import Adaptations
from jobs.report.model import Point, SealAnswer, SealAnswerKind
from schemas.journal import DELAY_EDGES_MS, Move, Offsets, Prefix

MOST_POINTS = 1024
RECENT_EPOCHS = 256
"""Epochs that rates, the present delay and what policies look at are taken from."""
MOST_ANSWERED = 4096
"""Ids of answered commands that are remembered, the newest ones."""
MOST_SEAL_ANSWERS = 16
"""Of one session."""
SEAL_ANSWERS: dict[tuple[str, bool], SealAnswerKind] = {
    ("withdraw", True): "withdrawn",
    ("withdraw", False): "not withdrawn",
    ("seal", False): "refused",
}
"""By kind of command, and whether it was obeyed; a seal that was obeyed is the session's."""
STEP_PARTS = ("load", "install", "join", "write", "spill", "merge", "manifest")


class Recent(Work):
    """One of the last epochs."""

    results: int
    delay: list[int]


class SlotTally(BaseModel):
    """A slot as the last epoch left it, with its peaks in the open session."""

    host: str = ""
    rows: int = 0
    groups: int = 0
    budget_bytes: int = 0
    state_bytes: int = 0
    peak_state_bytes: int = 0
    folder_bytes: int = 0
    free_bytes: int | None = None
    """Of the file system that the folder is in; None: not known."""
    peak_folder_bytes: int = 0
    spills: int = 0
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
    results: int = 0
    spills: int = 0
    overflows: int = 0
    """Spills that took more than their rule says, for want of room."""
    spilled_rows: int = 0
    spilled_bytes: int = 0
    flushed_bytes: int = 0
    cuts: int = 0
    cuts_by_range: dict[str, int] = {}
    """Key `depth/value`."""
    peak_state_bytes: int = 0
    budget_bytes: int = 0
    restored_slots: int = 0
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


class Tally(BaseModel):
    """The sums after entry `n`."""

    n: int = -1
    term: int = 0
    driver: str = ""
    process: str = ""
    """The driver's `process_identity`; empty where it was not kept."""
    last_claim_at: str | None = None
    warehouse_id: str = ""
    query: str = ""
    partitions: dict[str, int] = {}
    epoch: int = -1
    last_epoch_at: str | None = None
    end: Offsets = {}
    open: str = ""
    sessions: dict[str, SessionTally] = {}
    slots: dict[int, SlotTally] = {}
    recent: list[Recent] = []
    points: list[Point] = []
    groups: tuple[tuple[Prefix, int], ...] = ()
    """The assignment."""
    assignment_version: int = -1
    policy_epoch: int = -1
    """The last one that obeyed a policy's relieving command."""
    queue: list[Move] = []
    """Moves that were obeyed and wait."""
    budgets: dict[int, int] = {}
    """Bytes by slot, where a command has set them in this term."""
    cores: int = 0
    answered: list[str] = []
    """Ids of the last commands that were obeyed or refused."""
    adaptations: Adaptations = Adaptations()

    def sample(self, seconds: float) -> Sample:
        """What the slots of the assignment did in the last `seconds` of epochs."""
        now_ms = self.recent[-1].ended_ms if self.recent else 0
        last = [each for each in self.recent if each.ended_ms > now_ms - seconds * 1000]
        slots = len({slot for _, slot in self.groups})
        return sample_of(last, owned(self.groups, slots))

    @property
    def moves(self) -> tuple[Move, ...]:
        """The queue, as commands are judged by it."""
        return tuple(self.queue)

    @property
    def memory(self) -> dict[int, SlotTally]:
        """Each slot's memory, as budgets are judged by it."""
        return self.slots

    def add(self, entry: dict[str, Any]) -> None:
        """Fold entry n + 1 into the sums. Raises ValueError when it is another one."""
        if entry["n"] != self.n + 1:
            raise ValueError(f"entry {entry['n']} does not follow entry {self.n}")
        kind = entry["kind"]
        if kind == "genesis":
            self._genesis(entry)
        elif kind == "claim":
            self.term, self.driver, self.cores = entry["term"], entry["driver"], entry["cores"]
            self.process = entry.get("process", "")
            self.last_claim_at = entry["written_at"]
            self.budgets = {}
            self.partitions |= {t["name"]: t["partitions"] for t in entry["topics"]}
        else:
            self._epoch(entry)
        self.n = entry["n"]

    def _genesis(self, entry: dict[str, Any]) -> None:
        self.warehouse_id, self.query = entry["warehouse_id"], entry["query"]
        self.partitions = {t["name"]: t["partitions"] for t in entry["topics"]}
        self.end, self.open = entry["start"], entry["session"]
        self.sessions[self.open] = SessionTally(session=self.open)
        self.groups = tuple((Prefix(*group), slot) for group, slot in entry["groups"])
        self.slots = {slot: SlotTally() for _, slot in self.groups}

    def _epoch(self, entry: dict[str, Any]) -> None:
        started, ended = ms(entry["started_at"]), ms(entry["written_at"])
        session = self.sessions[self.open]
        session.began_at = session.began_at or entry["started_at"]
        if entry.get("withdrawn"):
            # The next session has no row yet: it is as if it had never been.
            session.end, session.seal_by, session.seal_reason = None, "", ""
            self.sessions = {d: s for d, s in self.sessions.items() if d <= self.open}
        if entry["seal"] is not None:
            after = entry["seal"]["next_session"]
            session.end = entry["seal"]["end"]
            self.sessions[after] = SessionTally(session=after, began_at=entry["started_at"])
        self._read(entry)
        for date, results in entry["results"].items():
            self.sessions[date].results += results
        for date, rows in entry["spilled_rows"].items():
            self.sessions[date].spilled_rows += rows
        for cut in entry["cuts"]:
            one = self.sessions[cut["session"]]
            one.cuts += 1
            name = "{}/{}".format(*cut["range"])
            one.cuts_by_range[name] = one.cuts_by_range.get(name, 0) + 1
        session.restored_slots += len(entry["restored_slots"])
        before = {number: slot.state_bytes for number, slot in self.slots.items()}
        came, went = self._adapted(session, entry, before, (ended - started) / 1000)
        if stamp := entry["recent_input_ms"]:
            session.first_input_ms = session.first_input_ms or stamp
            session.last_input_ms = max(session.last_input_ms, stamp)
        delay = _added(each["delay_ms"] for each in entry["slots"])
        session.delay = _added((session.delay, delay))
        flush = entry["sealed"] is not None
        for totals in entry["slots"]:
            self._slot(session, totals, flush)
        work = work_of(entry)
        recent = Recent(**dict(work), results=sum(entry["results"].values()), delay=delay)
        self.recent = [*self.recent[1 - RECENT_EPOCHS :], recent]
        point = _point(entry, self.open, started, ended, work.rows)
        self.points.append(point.model_copy(update={"moved_in": came, "moved_out": went}))
        if len(self.points) > MOST_POINTS:
            self.points = thinned(self.points)
        self.epoch, self.end = entry["epoch"], entry["end"]
        self.last_epoch_at = entry["written_at"]
        if flush:
            session.end = entry["sealed"]["end"]
            session.sealed_at, session.sealed_epoch = entry["written_at"], entry["epoch"]
            session.ranges = len(entry["sealed"]["ranges"])
            self.open = entry["session"]
            for slot in self.slots.values():
                slot.peak_state_bytes, slot.peak_folder_bytes = slot.state_bytes, slot.folder_bytes
                slot.spills = slot.spilled_bytes = slot.moved_in = slot.moved_out = 0

    def _adapted(
        self, session: SessionTally, entry: dict[str, Any], before: dict[int, int], took_s: float
    ) -> tuple[dict[int, int], dict[int, int]]:
        """Commands, moves, the assignment. Groups that came to each slot, and that left it."""
        owners = dict(self.groups) if entry["moved"] else {}
        came: Counter[int] = Counter()
        went: Counter[int] = Counter()
        for move in entry["moved"]:
            target, source = move["to"], owners.get(Prefix(*move["group"]))
            self.slots.setdefault(target, SlotTally()).moved_in += 1
            came[target] += 1
            if source is not None:
                self.slots[source].moved_out += 1
                went[source] += 1
        session.moved += len(entry["moved"])
        if entry["queued"] is not None:
            self.queue = [Move.model_validate(move) for move in entry["queued"]]
        if (budgets := entry.get("budgets")) is not None:
            self.budgets = {int(slot): each for slot, each in budgets.items()}
        if entry["assignment"] is not None:
            assignment = entry["assignment"]
            self.groups = tuple((Prefix(*group), slot) for group, slot in assignment)
            self.assignment_version = entry["epoch"]
            alive = {slot for _, slot in self.groups}
            self.slots = {n: slot for n, slot in self.slots.items() if n in alive}
        for outcome in entry["commands"]:
            self.answered.append(outcome["id"])
            if outcome["obeyed"] and outcome["policy"] and outcome["kind"] in RELIEVING:
                self.policy_epoch = entry["epoch"]
                session.forced_bytes += outcome["bytes"] if outcome["kind"] == "spill" else 0
            if entry["seal"] is not None and outcome["id"] == entry["seal"]["command"]:
                session.seal_by = outcome.get("by", "")
                session.seal_reason = outcome["reason"]
            elif (what := SEAL_ANSWERS.get((outcome["kind"], outcome["obeyed"]))) is not None:
                by, reason = outcome.get("by", ""), outcome["reason"]
                answer = SealAnswer(what=what, at=entry["written_at"], by=by, reason=reason)
                session.seal_answers = [*session.seal_answers, answer][-MOST_SEAL_ANSWERS:]
        del self.answered[:-MOST_ANSWERED]
        self.adaptations.add(entry, before, self.queue, took_s)
        return dict(came), dict(went)

    def _read(self, entry: dict[str, Any]) -> None:
        """Rows of the epoch to the sessions that they belong to."""
        session = self.sessions[self.open]
        ending = session.end
        after = next((s for d, s in self.sessions.items() if d > self.open), None)
        for part in entry["read"]:
            topic, partition = part["topic"], part["partition"]
            begin, end = _at(self.end, topic, partition), _at(entry["end"], topic, partition)
            beyond = 0.0
            if ending is not None and end > begin:
                bound = min(max(_at(ending, topic, partition), begin), end)
                beyond = (end - bound) / (end - begin)
            for kind in ("rows", "rejected", "filtered"):
                later = round(part[kind] * beyond)
                _count(getattr(session, kind), topic, part[kind] - later)
                if later and after is not None:
                    _count(getattr(after, kind), topic, later)

    def _slot(self, session: SessionTally, totals: dict[str, Any], flush: bool) -> None:
        slot = self.slots.setdefault(totals["slot"], SlotTally())
        slot.host = totals["host"]
        slot.rows, slot.groups = totals["rows"], totals["groups"]
        slot.budget_bytes = totals["budget_bytes"]
        slot.state_bytes, slot.folder_bytes = totals["state_bytes"], totals["folder_bytes"]
        slot.free_bytes = totals.get("free_bytes")
        slot.peak_state_bytes = max(slot.peak_state_bytes, slot.state_bytes)
        slot.peak_folder_bytes = max(slot.peak_folder_bytes, slot.folder_bytes)
        peak, whole = session.peak_state_bytes, session.budget_bytes
        if not whole or slot.state_bytes * whole > peak * slot.budget_bytes:
            session.peak_state_bytes, session.budget_bytes = slot.state_bytes, slot.budget_bytes
        spilled = totals["spilled_bytes"]
        if flush:
            session.flushed_bytes += spilled
        elif spilled:
            slot.spills += 1
            slot.spilled_bytes += spilled
            session.spills += 1
            session.overflows += totals.get("overflow_bytes", 0) > 0
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


def _point(entry: dict[str, Any], session: str, started: int, ended: int, rows: int) -> Point:
    slots = entry["slots"]
    return Point(
        epoch=entry["epoch"],
        epochs=1,
        session=session,
        started_ms=started,
        ended_ms=ended,
        rows=rows,
        rejected=sum(part["rejected"] for part in entry["read"]),
        results=entry["results"],
        state_bytes={t["slot"]: t["state_bytes"] for t in slots},
        folder_bytes={t["slot"]: t["folder_bytes"] for t in slots},
        budget_bytes={t["slot"]: t["budget_bytes"] for t in slots},
        spilled_bytes={t["slot"]: t["spilled_bytes"] for t in slots if t["spilled_bytes"]},
        flush=entry["sealed"] is not None,
        seconds=_seconds(entry, (ended - started) / 1000),
    )


def _seconds(entry: dict[str, Any], whole_s: float) -> dict[str, float]:
    """Where an epoch's time went. The parts add up to the epoch.

    The slots work at the same time, so the busiest one's parts are what the epoch waits for. What
    is left of the job is reading, decoding and routing; what is left of the epoch is planning and
    syncing.
    """
    busiest = max(entry["slots"], key=lambda t: t["busy_s"], default=None)
    parts = dict.fromkeys(("read, decode, route", *STEP_PARTS), 0.0)
    if busiest is not None:
        parts |= busiest["seconds"]
    step_s = sum(parts.values())
    job_s = max(entry["seconds"].get("job", step_s), step_s)
    parts["read, decode, route"] = job_s - step_s
    parts["plan, sync"] = max(0.0, whole_s - job_s)
    return {part: round(seconds, 4) for part, seconds in parts.items()}


def _count(counts: dict[str, int], name: str, more: int) -> None:
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


def _at(offsets: Offsets, topic: str, partition: int) -> int:
    known = offsets.get(topic, [])
    return known[partition] if partition < len(known) else 0
