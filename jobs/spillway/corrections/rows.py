"""Messages as a correction's rows: read, judged by the contract, and given their coordinates.

The verdict is the stream's own (`spillway.decode`). Where one message breaks its contract the whole
correction is refused, with the line and the reason: nothing is done by halves. A closed session has
no watermark any more, so no row of a correction is late.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spillway.decode import Decoded, StreamPlan, decode
from spillway.decode.chunks import Chunk, chunks_of
from spillway.produce.recording import pieces
from spillway.report.words import bytes_text
from spillway_schemas.corrections import Revision, TopicPlace, partition_of
from spillway_schemas.exits import USAGE

I64 = npt.NDArray[np.int64]

ROWS = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("kafka_timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)
"""Rows of a correction: messages as `spillway.decode.chunks` takes them."""

MOST_BYTES = 1 << 30
"""Of the messages of one correction: they are held in memory, several times."""
SHOWN = 10
"""Problems that a refusal names; the rest is counted."""


class CorrectionRefused(Exception):
    """The correction cannot be made as it is; says why and what to do. Nothing was done."""

    exit_code = USAGE


@dataclass(frozen=True)
class Correction:
    """Rows that somebody wants to add to a closed session.

    `topics` string (n,), `values` binary (n,), `offsets` int64 (n,): where each row stands in its
    source, ascending within a topic.
    """

    topics: pa.Array
    values: pa.Array
    offsets: I64
    source: str
    read_to: TopicPlace | None = None
    """Of a topic: where its next reading begins."""
    places: tuple[I64, I64] | None = None
    """Of a topic: the partition and the offset of each row there, int64 (n,) both."""

    def where(self, row: int) -> str:
        """Where a row stands in its source, for people."""
        if self.places is None:
            return f"line {self.offsets[row]}"
        partitions, offsets = self.places
        return f"partition {partitions[row]}, offset {offsets[row]}"

    @property
    def digest(self) -> str:
        """SHA-256 of the rows in their order; of a topic also of which of its rows they are."""
        found = hashlib.sha256()
        if self.read_to is not None:
            found.update(self.read_to.model_dump_json().encode())
        for column in (self.topics, self.values):
            found.update(pc.binary_length(column).to_numpy(zero_copy_only=False).tobytes())
            found.update(b"".join(column.cast(pa.binary()).to_pylist()))
        return found.hexdigest()

    def as_revision(self, revision: int, now_us: int) -> pa.Table:
        """The rows with the coordinates of a revision (`ROWS`), by topic and offset."""
        n = len(self.topics)
        partition = np.full(n, partition_of(revision), dtype=np.int32)
        times = pa.array(np.full(n, now_us)).cast(ROWS.field("kafka_timestamp").type)
        columns = [self.topics, pa.array(partition), pa.array(self.offsets), self.values, times]
        table = pa.Table.from_arrays(columns, schema=ROWS)
        return table.sort_by([("topic", "ascending"), ("offset", "ascending")])


@dataclass(frozen=True)
class KeptRevision:
    """What the rows of a revision say of it."""

    revision: int
    source: str
    reason: str
    by: str
    digest: str
    read_to: TopicPlace | None
    rows: int

    def as_noted(self, results: int) -> Revision:
        """What `sessions` keeps of it once it is in, with the number of results that it added."""
        return Revision(
            revision=self.revision,
            source=self.source,
            reason=self.reason,
            by=self.by,
            digest=self.digest,
            rows=self.rows,
            results=results,
        )


def from_file(path: Path, stream: str | None, plans: Sequence[StreamPlan]) -> Correction:
    """The rows of a recording. `stream`: whose messages they are, where neither its lines nor its
    name say so.

    Raises `CorrectionRefused`, RecordingError for a file that cannot be read to its end.
    """
    topics: list[str] = []
    values, lines = [], []
    topic = None if stream is None else topic_of(stream, plans)
    for piece in pieces(path, topic):
        topics += piece.topics
        values.append(piece.values)
        lines.append(piece.lines)
        if sum(each.nbytes for each in values) > MOST_BYTES:
            break  # one array might not hold more, and `check` refuses it
    if not topics:
        raise CorrectionRefused(f"{path} has no rows, so there is nothing to correct")
    names = {each: _topic(each, plans) for each in dict.fromkeys(topics)}
    found = Correction(
        topics=pa.array([names[each] for each in topics], pa.string()),
        values=pa.concat_arrays(values),
        offsets=np.concatenate(lines),
        source=path.name,
    )
    check(found, plans, str(path))
    return found


def topic_of(stream: str, plans: Sequence[StreamPlan]) -> str:
    """The topic of a stream, by its name or the topic's. Raises `CorrectionRefused`."""
    found = _topic(stream, plans)
    if found not in {plan.topic for plan in plans}:
        listed = ", ".join(sorted({plan.name for plan in plans}))
        raise CorrectionRefused(f"{stream!r} is no stream of the query; they are: {listed}")
    return found


def _topic(name: str, plans: Sequence[StreamPlan]) -> str:
    """The topic of the stream of this name; other names as they are."""
    return next((plan.topic for plan in plans if plan.name == name), name)


def check(rows: Correction, plans: Sequence[StreamPlan], source: str) -> None:
    """Raise `CorrectionRefused` where a row is no message of a stream's contract. `source`: the
    file or topic, for people."""
    if rows.values.nbytes > MOST_BYTES:
        raise CorrectionRefused(
            f"{source} has more than {bytes_text(MOST_BYTES)} of messages, the most that a "
            "correction takes: add them in parts"
        )
    known = {plan.topic for plan in plans}
    problems: dict[int, str] = {}
    for topic in pc.unique(rows.topics).to_pylist():
        at = np.flatnonzero(pc.equal(rows.topics, topic).to_numpy(zero_copy_only=False))
        if topic not in known:
            listed = ", ".join(sorted(known))
            why = (
                f"{topic!r} is not a topic of the query; they are: {listed}. Say with --stream "
                "whose messages these are"
            )
            problems |= dict.fromkeys(at.tolist(), why)
    whole = rows.values.is_null().to_numpy(zero_copy_only=False)
    problems |= dict.fromkeys(np.flatnonzero(whole).tolist(), "a row without a value")
    if not problems:
        # They come now: what an id of a schema means may depend on it (`spillway.registry.known`).
        numbered = replace(rows, offsets=np.arange(len(rows.topics)))
        now = numbered.as_revision(1, time.time_ns() // 1000)
        for chunk, plan, found in decoded(now, plans):
            reasons = zip(found.rejected.tolist(), found.reasons, strict=True)
            for position, reason in reasons:
                problems.setdefault(int(chunk.offsets[position]), f"{plan.name}: {reason}")
    if not problems:
        return
    lines = [f"{source}, {rows.where(at)}: {problems[at]}" for at in sorted(problems)[:SHOWN]]
    if (more := len(problems) - SHOWN) > 0:
        lines.append(f"... and {more:,} more")
    remedy = "mend these rows or remove them"
    if rows.places is not None:
        remedy = (
            "rows cannot be removed from a topic: send the good rows and the mended ones to another"
        )
    raise CorrectionRefused("\n".join([*lines, f"Nothing was done: {remedy}"]))


def decoded(
    rows: pa.Table, plans: Sequence[StreamPlan]
) -> Iterator[tuple[Chunk, StreamPlan, Decoded]]:
    """What becomes of rows (`ROWS`), for each reading of their stream."""
    by_topic: dict[str, list[StreamPlan]] = {}
    for plan in plans:
        by_topic.setdefault(plan.topic, []).append(plan)
    for chunk in chunks_of(rows):
        for plan in by_topic[chunk.topic]:
            yield chunk, plan, decode(plan, chunk.values, chunk.kafka_ms)
