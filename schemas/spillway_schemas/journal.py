"""Records of the journal: what an epoch did, in the form that counts.

The journal is event-sourced. Entry number `n` (0, 1, 2, ... without gaps) is a `Genesis`, a
`Claim` or an `Epoch`; the state of the system is the fold of all entries in order (see
`spillway.protocol.state`). Nothing that an entry does not name exists: not an output file, not a
state manifest, not a cut.

Hash ranges are prefixes of the unsigned 64-bit `key_hash`: `(depth, value)` covers every hash
whose first `depth` bits are the number `value`. `(0, 0)` covers everything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    TypeAdapter,
    model_validator,
)

Offsets = dict[str, list[int]]
"""Per topic, one offset for each partition: the first offset that is *not* included."""

HASH_BITS = 64
KEPT_GENERATIONS = 16
"""So many spilled generations of a group, the newest, may come back to memory."""


class Prefix(NamedTuple):
    """A hash range: all hashes whose first `depth` bits are `value`. A partition group is one."""

    depth: int
    value: int

    @property
    def lo(self) -> int:
        """The least unsigned 64-bit hash of the range."""
        return self.value << (HASH_BITS - self.depth)

    @property
    def hi(self) -> int:
        """One more than the greatest hash of the range (2**64 for the last one)."""
        return (self.value + 1) << (HASH_BITS - self.depth)

    def covers(self, other: Prefix) -> bool:
        """Whether `other` lies in this range."""
        return self.depth <= other.depth and other.value >> (other.depth - self.depth) == self.value

    def overlaps(self, other: Prefix) -> bool:
        """Whether the two ranges share a hash (prefixes do so only when one covers the other)."""
        return self.covers(other) or other.covers(self)

    def part(self, inner: Prefix) -> Prefix:
        """The part of this range that `inner` is of all hashes."""
        return Prefix(self.depth + inner.depth, (self.value << inner.depth) + inner.value)

    @property
    def text(self) -> str:
        """As it is written for people: `9/17`, the hashes whose first 9 bits are the number 17."""
        return f"{self.depth}/{self.value}"

    @classmethod
    def parse(cls, text: str) -> Prefix:
        """The inverse of `text`. Raises ValueError for what is not a hash range."""
        if not isinstance(text, str) or _PREFIX.fullmatch(text) is None:
            raise ValueError(f"{text!r:.40} is not a group: write DEPTH/VALUE, for example 9/17")
        depth, value = map(int, text.split("/"))
        if depth > HASH_BITS:
            raise ValueError(f"{text!r} is not a group: the first number is at most {HASH_BITS}")
        if value >= 1 << depth:
            most = (1 << depth) - 1
            raise ValueError(f"{text!r} is not a group: with {depth} bits numbers go up to {most}")
        return cls(depth, value)


_PREFIX = re.compile("[0-9]{1,4}/[0-9]{1,20}")
"""No longer, so that a slip of a person or a damaged entry costs no time and no memory."""


class Record(BaseModel):
    """Base of all journal records: immutable, and strict about what it does not know."""

    # JSON has no NaN and no infinity: they would be written as null, which cannot be read again.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class FileRecord(Record):
    """One data file, written under a fresh name and not yet (or already) in a table."""

    table: str
    path: str
    """Relative to the table's folder, e.g. `session_date=2026-01-05/part-....parquet`."""
    bytes: int
    rows: int
    digest: str
    """`sha256:<hex>` of the file's bytes."""
    partition: dict[str, str] = {}
    stats: str = ""
    """Delta's per-file statistics as JSON (numRecords, minValues, maxValues, nullCount)."""


class Cut(Record):
    """The state of `range` was spilled at `epoch` (rows of `epoch` included)."""

    session: str
    operator: int
    range: Prefix
    epoch: int
    greatest_us: int | None = None
    """Of a query with windows: the greatest time of the rows that were in memory."""

    @property
    def generation(self) -> tuple[Prefix, int]:
        """What tells the generation that it ended from the session's others."""
        return self.range, self.epoch


class PartitionCount(Record):
    """What one epoch read from one topic partition. Rows = every value, good or bad."""

    topic: str
    partition: int
    rows: int
    rejected: int
    filtered: int
    bytes: int = 0
    """Of the values as Kafka gave them; 0 in entries from before this was counted."""
    digest: int
    """Sum modulo 2**64 of a digest of every value and its offset: independent of order."""
    greatest_us: int | None = None
    """Of a query with windows: the greatest time of the open session's rows that are not ahead."""
    next_greatest_us: int | None = None
    """The same of the rows of the session after it."""
    outside: int | None = None
    """Rows of the open session that keep their contract and happened outside its day; None: not
    counted, for the query does not say when rows happen, or the calendar has no such day."""
    next_outside: int | None = None
    """The same of the session after it."""

    def __add__(self, other: PartitionCount) -> PartitionCount:
        """Add up two parts of one topic partition."""
        if (self.topic, self.partition) != (other.topic, other.partition):
            raise ValueError(f"not one partition: {self} and {other}")
        return PartitionCount(
            topic=self.topic,
            partition=self.partition,
            rows=self.rows + other.rows,
            rejected=self.rejected + other.rejected,
            filtered=self.filtered + other.filtered,
            bytes=self.bytes + other.bytes,
            digest=(self.digest + other.digest) % 2**64,
            greatest_us=_greater(self.greatest_us, other.greatest_us),
            next_greatest_us=_greater(self.next_greatest_us, other.next_greatest_us),
            outside=_both(self.outside, other.outside),
            next_outside=_both(self.next_outside, other.next_outside),
        )


def _both(one: int | None, other: int | None) -> int | None:
    known = [each for each in (one, other) if each is not None]
    return sum(known) if known else None


def _greater(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)


def added(counts: Iterable[PartitionCount]) -> list[PartitionCount]:
    """One count for each topic partition, in their order."""
    by_partition: dict[tuple[str, int], PartitionCount] = {}
    for count in counts:
        key = (count.topic, count.partition)
        by_partition[key] = by_partition[key] + count if key in by_partition else count
    return [by_partition[key] for key in sorted(by_partition)]


class SlotTotals(Record):
    """A slot's figures at the end of an epoch. Bytes are bytes of files."""

    slot: int
    host: str = ""
    budget_bytes: int
    state_bytes: int
    """Live rows of the new manifest: what the budget's threshold is measured on."""
    folder_bytes: int
    """Every file in the slot's folder at the end of the step, the previous epoch's included."""
    free_bytes: int | None = None
    """Free in the file system of that folder at the end of the step; None: not looked at."""
    clock_ahead_ms: int = 0
    """How far the host's clock is ahead of the driver's, at least; negative: behind. 0: they may
    agree, or it was not looked at."""
    rows: int
    """Rows in state, all inputs and open sessions."""
    rows_in: dict[str, int] = {}
    """New rows of this epoch per input, of streams and of joins below."""
    results: int = 0
    spilled_bytes: int = 0
    """State bytes that left memory in this epoch."""
    overflow_bytes: int = 0
    """Of these, what the spill's rule would have kept: it left because the folder had no room for
    the epoch's rows beside files of dead rows."""
    spilled_rows: int = 0
    returned_bytes: int = 0
    """State bytes of spilled generations that came back to memory in this epoch."""
    returned_rows: int = 0
    expired_rows: int = 0
    """Rows of windowed joins that have left memory because no row to come joins with them."""
    groups: int = 0
    """Groups that hold rows."""
    skew: float = 0.0
    """The largest group's share of the slot's work (new rows and results) in this epoch, 0 to 1."""
    busy_s: float = 0.0
    seconds: dict[str, float] = {}
    """Where the step's time went: load, install, join, write, spill, merge, manifest."""
    delay_ms: list[int] = []
    """Histogram over `DELAY_EDGES_MS` of sampled results: age of the newest input row."""


DELAY_EDGES_MS: tuple[int, ...] = (
    *(10 * i for i in range(1, 10)),
    *(100 * i for i in range(1, 10)),
    *(1_000 * i for i in range(1, 10)),
    *(10_000 * i for i in range(1, 10)),
    *(100_000 * i for i in range(1, 37)),
)
"""Upper edges of the delay histogram's buckets; one more bucket holds what is beyond."""


class TracedGroup(NamedTuple):
    """How many final results came through a group, of a join below the root."""

    depth: int
    value: int
    results: float


class SlotReport(Record):
    """What one step returns: the only way in which a step's work becomes known."""

    slot: int
    epoch: int
    attempt: str
    status: Literal["done", "missing"] = "done"
    unfound: dict[int, str] = {}
    """For `missing`: slots whose state was not found, each with what was not there (an empty text:
    it is known only second-hand). Nothing was written."""
    manifest: str | None = None
    files: list[FileRecord] = []
    cuts: list[Cut] = []
    voided: list[Cut] = []
    """Cuts of earlier epochs that this one takes back: their rows are in memory again."""
    read: list[PartitionCount] = []
    """Counts of what the decoders read, as far as their blocks came to this slot."""
    restored: list[PartitionCount] = []
    """The same for what was read again to restore lost slots."""
    carried: list[PartitionCount] = []
    """The same for what was read again of the session before, to be carried into the open one."""
    carried_rows: int = 0
    """Rows of leaves that were carried: those that had not expired."""
    warnings: list[str] = []
    """What people should know though the step is done."""
    installed_rows: int = 0
    """Rows that came into state without being new: restored ones, and of groups that moved."""
    results: dict[str, int] = {}
    """New results per session."""
    spilled_rows: dict[str, int] = {}
    """Rows spilled per session."""
    recent_input_ms: int = 0
    """Greatest Kafka time among the new rows, in ms since 1970."""
    clock_ms: int | None = None
    """What the host's clock showed when the step was done, in ms since 1970; None: not looked at.
    No entry has it: see `SlotTotals.clock_ahead_ms`."""
    totals: SlotTotals | None = None
    traced: dict[str, list[TracedGroup]] = {}
    """Per session, final results of this step by the groups of other slots that they came through.
    No entry has them: they go to those slots with the next epoch."""


def _decision_of_before(command: Any) -> Any:
    """The decision of a command by its id, as ids were before decisions had a field."""
    return command.rpartition("/")[0] or command if isinstance(command, str) else command


class Move(Record):
    """A group that changes its slot."""

    group: Prefix
    to: int
    bytes: int = 0
    """Its state when the move was decided: what an epoch's limit is measured with."""
    decision: str = ""
    """Of which decision it is a part; filled in when its command is obeyed."""

    @model_validator(mode="before")
    @classmethod
    def _of_before(cls, given: Any) -> Any:
        """Entries from before decisions were named say the command instead."""
        if isinstance(given, dict) and "command" in given:
            given = {**given, "decision": _decision_of_before(given["command"])}
            del given["command"]
        return given


class CommandOutcome(Record):
    """What became of a command."""

    id: str
    decision: str
    """The decision that the command is a part of: its own id where it stands alone."""
    kind: str
    obeyed: bool
    reason: str = ""
    policy: str = ""
    by: str = ""
    """Who asked; empty in entries from before this was kept."""
    slot: int | None = None
    """Which one spills or gets a budget, or where a group moves to."""
    bytes: int = 0
    """How much was asked for."""

    @model_validator(mode="before")
    @classmethod
    def _of_before(cls, given: Any) -> Any:
        """Entries from before decisions were named say the command's id alone."""
        if isinstance(given, dict) and "decision" not in given and "id" in given:
            return {**given, "decision": _decision_of_before(given["id"])}
        return given


class SealRequest(Record):
    """A session that ends at `end`; rows beyond belong to the next session."""

    session: str
    end: Offsets
    next_session: str
    """The session that rows at or beyond `end` belong to."""
    command: str


class Carried(Record):
    """Rows of earlier sessions that join with those of a session (`session.carry`), but not with
    each other."""

    since: int
    """They came after this epoch: what came before had expired."""
    expired_by_us: int
    """The watermark by which the session's first rows were judged: what had not expired by it is
    carried."""
    epoch: int | None = None
    """The epoch that brought them into the session's state, the first after the session before was
    sealed; None: they are still to come."""


class Sealed(Record):
    """A session that has ended: nothing may be appended to it at run time any more."""

    session: str
    epoch: int
    base: int = -1
    """The last epoch that read no row of this session; -1 in entries from before this was kept."""
    start: Offsets
    end: Offsets
    ranges: list[Prefix]
    """Cleanup's units of work: number n of `cleanup/<session>` always means `ranges[n]`.
    Disjoint, and together they cover every hash range that was ever cut; empty when none was."""
    results: int
    """Results that the session had at run time."""
    spilled_rows: int
    generations: int
    """Cuts of the session, its last flush included."""
    carried: Carried | None = None
    lost_to: Offsets = {}
    """Rows below these offsets were accepted as lost while it was open; empty: none of them, nor of
    those that it carried."""


class Topic(Record):
    """A topic as the journal knows it."""

    name: str
    id: str
    partitions: int


class EventTime(Record):
    """What a query with windows says of time (`spillway_schemas.windows`)."""

    lateness_us: int
    """How long rows are waited for."""
    idle_after_ms: int | None = None
    """A partition without rows for longer is not waited for; None: all are."""
    ahead_us: int
    """How much a row's time may be ahead of Kafka's."""
    topics: list[str]
    """Those whose rows have a time."""
    kept_us: int | None = None
    """Rows that are older than the watermark by more have all expired; None: some never do."""


class QueryText(Record):
    """A query's file as it was written: what cleanup and `verify` of its sessions run by, whatever
    the settings name by then."""

    path: str
    """Where the file was."""
    text: str


class Genesis(Record):
    """Entry 0: what this warehouse is; and what a claim says that it is from then on."""

    kind: Literal["genesis"] = "genesis"
    n: int = 0
    warehouse_id: str
    cluster_id: str
    topics: list[Topic]
    query: str
    """Fingerprint of the query; a `stream` with another one is refused in mid-session."""
    text: QueryText | None = None
    """None in entries from before this was kept, until a claim says it."""
    after: int = -1
    """The last epoch before it: of a changed query, that which sealed the session before, or a
    later one without rows."""
    session: str
    start: Offsets
    start_rule: str
    """`stream.start` as it was obeyed, e.g. `previous-close 2026-01-02T21:00:00Z`."""
    inputs: int
    groups: list[tuple[Prefix, int]]
    """The first assignment: each group with its slot; together they cover all hashes."""
    parents: list[int] = [-1]
    """Of each join of the query, children first, the join that reads it; -1: the root."""
    joins: list[str] = ["join"]
    """Their names."""
    event_time: EventTime | None = None
    """None: the query has no window."""
    carry: bool = False
    """Whether rows that have not expired when a session ends join with those of the next one."""
    outer: bool = False
    """Whether results may lack rows of some input. Which keys have none is known at the close, so
    a session's last rows all become a generation, for cleanup to see."""
    written_at: str

    @model_validator(mode="after")
    def _named(self) -> Self:
        if len(self.joins) != len(self.parents):
            raise ValueError(f"{len(self.parents)} joins have {len(self.joins)} names")
        return self


class Claim(Record):
    """A driver takes over: every driver of a lower term ends itself."""

    kind: Literal["claim"] = "claim"
    n: int
    term: int
    driver: str
    """Host and process of the driver, for people."""
    process: str = ""
    """`process_identity` of the driver; empty in entries from before this was kept."""
    cores: int = 0
    """Cores of all executors, as the driver found them; 0 in entries from before this was kept."""
    max_results: int = 0
    """`results.max_per_session` of the driver; 0: no limit."""
    topics: list[Topic] = []
    """Present when topics have changed (more partitions) since the last entry."""
    text: QueryText | None = None
    """Present when the journal did not have it."""
    begins: Genesis | None = None
    """Present when the query has changed: the open session, of which no row has been read, and
    those after it go by this one. Topics that were read before begin where the session begins."""
    written_at: str


def _packed_cuts(cuts: list[Cut]) -> list[dict[str, Any]]:
    packed: list[dict[str, Any]] = []
    for same, some in groupby(cuts, lambda cut: (cut.session, cut.operator, cut.epoch)):
        packed.append(dict(zip(("session", "operator", "epoch"), same, strict=True)))
        mine = list(some)
        packed[-1]["ranges"] = [cut.range.text for cut in mine]
        if any(cut.greatest_us is not None for cut in mine):
            packed[-1]["greatest_us"] = [cut.greatest_us for cut in mine]
    return packed


def _unpacked_cuts(given: Any) -> Any:
    if not isinstance(given, list):
        return given
    cuts: list[Any] = []
    for each in given:
        if isinstance(each, dict) and "ranges" in each:
            if not isinstance(each["ranges"], list):
                raise ValueError("the ranges of cuts are no list")
            common = {n: value for n, value in each.items() if n not in ("ranges", "greatest_us")}
            ranges = each["ranges"]
            times = each.get("greatest_us", [None] * len(ranges))
            if not isinstance(times, list):
                raise ValueError("the times of cuts are no list")
            cuts += [
                {**common, "range": Prefix.parse(text), "greatest_us": time_us}
                for text, time_us in zip(ranges, times, strict=True)
            ]
        else:
            cuts.append(each)
    return cuts


_COUNTS = ("partition", "rows", "rejected", "filtered", "bytes", "digest")
_OPTIONAL = ("greatest_us", "next_greatest_us", "outside", "next_outside")
"""Counts that are there where any partition has one."""


def _packed_counts(counts: list[PartitionCount]) -> list[dict[str, Any]]:
    packed = []
    for topic, some in groupby(counts, lambda count: count.topic):
        parts = list(some)
        columns = {name: [getattr(part, name) for part in parts] for name in (*_COUNTS, *_OPTIONAL)}
        for name in _OPTIONAL:
            if all(value is None for value in columns[name]):
                del columns[name]
        packed.append({"topic": topic, **columns})
    return packed


def _unpacked_counts(given: Any) -> Any:
    if not isinstance(given, list):
        return given
    counts: list[Any] = []
    for each in given:
        if isinstance(each, dict) and isinstance(each.get("partition"), list):
            topic = each.get("topic")
            if missing := [name for name in _COUNTS if not isinstance(each.get(name), list)]:
                raise ValueError(f"counts of {topic} lack {', '.join(missing)}")
            names = (*_COUNTS, *(name for name in _OPTIONAL if name in each))
            for figures in zip(*(each[name] for name in names), strict=True):
                counts.append({"topic": topic, **dict(zip(names, figures, strict=True))})
        else:
            counts.append(each)
    return counts


Cuts = Annotated[
    list[Cut],
    BeforeValidator(_unpacked_cuts),
    PlainSerializer(_packed_cuts, when_used="json"),
]
"""Cuts; in JSON neighbours that differ only in their range are one object with their `ranges`."""
PartitionCounts = Annotated[
    list[PartitionCount],
    BeforeValidator(_unpacked_counts),
    PlainSerializer(_packed_counts, when_used="json"),
]
"""Counts by topic and partition; in JSON one object a topic, its figures in lists."""


class EpochFacts(Record):
    """What follows from one epoch: all of its entry but the files, which only redo needs."""

    kind: Literal["epoch"] = "epoch"
    n: int
    term: int
    epoch: int
    session: str
    """The open session after this epoch."""
    end: Offsets
    manifests: dict[int, str | None]
    assignment: list[tuple[Prefix, int]] | None = None
    """Only when it changed; its version is this epoch's number."""
    moved: list[Move] = []
    """Groups that changed their slot in this epoch."""
    queued: list[Move] | None = None
    """Moves that were obeyed and are still to be carried out; only when that has changed."""
    budgets: dict[int, int] | None = None
    """Bytes by slot, where a command has set them; only when that has changed. The others have
    `state.budget_bytes`, and so have all again once another driver claims the journal."""
    cuts: Cuts
    voided: Cuts = []
    """Cuts of earlier epochs that this one takes back, before it makes its own: what was spilled
    in them is in memory again, and what lies in files of it is void."""
    read: PartitionCounts
    commands: list[CommandOutcome] = []
    commands_n: int = -1
    """All commands up to this number are answered, here or earlier; -1: none was read."""
    seal: SealRequest | None = None
    """Present when a seal was accepted in this epoch."""
    withdrawn: str = ""
    """The id of the pending seal that this epoch took back (before it accepted another one, if it
    did): its session goes on, and no row had come that lies beyond the seal's end."""
    sealed: Sealed | None = None
    """Present when this epoch sealed its session."""
    results: dict[str, int]
    """Results of this epoch per session."""
    spilled_rows: dict[str, int] = {}
    """Rows spilled in this epoch per session."""
    restored_slots: list[int] = []
    deferred: Cuts = []
    """Cuts of the epoch before, made when slots were lost, before all else in this epoch: what was
    in memory of these ranges is in no file, and cleanup reads it again in Kafka."""
    deferred_slots: list[int] = []
    carried_rows: int = 0
    """Rows of the session before that were carried into the open one in this epoch."""
    lost_to: Offsets = {}
    """Present when a loss was accepted in this epoch: rows below these offsets are gone for good.
    Those that had not been read never will be: this epoch begins behind them. Those that had been
    read stay where they are, and are not read again."""
    watermarks: dict[str, int] = {}
    """Of a query with windows: per open session the watermark after this epoch, in us since 1970;
    none where a partition is still waited for that has had no row."""
    idle: dict[str, list[int]] = {}
    """Per topic the partitions that the open session's watermark does not wait for."""
    slots: list[SlotTotals]
    recent_input_ms: int = 0
    """Kafka time of the newest row read so far (the stream's own clock), in ms since 1970."""
    limit_rows: int = 0
    """Rows that this epoch might read at most; 0: not known. With as many, more were waiting."""
    started_at: str
    written_at: str
    seconds: dict[str, float] = {}
    """`job`: of its job; `commits before`: what the tables took to commit the epoch before it."""


class Epoch(EpochFacts):
    """One epoch: every table gets exactly the files named here."""

    files: list[FileRecord]

    @property
    def tables(self) -> list[str]:
        """Those for which the epoch names files, in order."""
        return sorted({file.table for file in self.files})

    @property
    def head(self) -> EpochHead:
        """The epoch without its files."""
        facts = {name: value for name, value in self if name != "files"}
        return EpochHead.model_construct(**facts, tables=self.tables)


class EpochHead(EpochFacts):
    """One epoch, read without its files."""

    tables: list[str]
    """Those for which the epoch names files, in order."""


HEAD: TypeAdapter[Genesis | Claim | EpochHead] = TypeAdapter(
    Annotated[Genesis | Claim | EpochHead, Field(discriminator="kind")]
)
"""Validates an entry without its files: the JSON of the journal's column `entry`."""
FILES: TypeAdapter[list[FileRecord]] = TypeAdapter(list[FileRecord])
"""Validates and dumps an epoch's files: the JSON of the journal's column `files`."""


def entry_texts(entry: Genesis | Claim | Epoch) -> tuple[str, str | None]:
    """An entry as the journal keeps it: the JSON of its head, and that of its files, if any."""
    if not isinstance(entry, Epoch):
        return entry.model_dump_json(), None
    files = FILES.dump_json(entry.files).decode() if entry.files else None
    return entry.head.model_dump_json(), files


def entry_from(head: str, files: str | None) -> Genesis | Claim | Epoch:
    """The inverse of `entry_texts`.

    Raises `pydantic.ValidationError`, and ValueError for files of other tables than the head names.
    """
    found = HEAD.validate_json(head)
    if not isinstance(found, EpochHead):
        return found
    named = FILES.validate_json(files) if files else []
    epoch = Epoch.model_construct(**{k: v for k, v in found if k != "tables"}, files=named)
    if epoch.tables != found.tables:
        raise ValueError(f"entry {found.n} names files of {found.tables}, which are not there")
    return epoch
