"""From settings and Kafka to the sampled rows, decoded by the contract; and the whole estimate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from spillway import calendar
from spillway.decode import StreamPlan, decode
from spillway.decode.lateness import judged
from spillway.decode.values import LeafValues, leaf_plans, values_of
from spillway.estimate.counting import LeafSample, counted, unmet
from spillway.estimate.sampling import Drawn, OffsetBlock, drawn
from spillway.estimate.scaling import Estimate, KeyEstimate, largest, total
from spillway.kafka.client import KafkaCluster, cluster, demand_listener
from spillway.kafka.reading import TopicRange, TopicReader
from spillway.registry import with_schemas
from spillway_schemas.exits import USAGE
from spillway_schemas.journal import Offsets
from spillway_schemas.query import Query
from spillway_schemas.settings import Settings
from spillway_schemas.windows import BEGINNING_US

I64 = npt.NDArray[np.int64]

CHUNK_ROWS, CHUNK_BYTES = 16_384, 16 << 20
"""Messages that are held before they are decoded, at least; fewer at the end."""
NEAR_OFFSETS = 1_000
"""A block that begins so soon behind another is read with what lies between them."""
KEYS = 10
"""Keys that are named."""
SEED = 17
"""Asked again of the same offsets, the estimate is the same."""


class SampledRows(NamedTuple):
    """Messages of sampled blocks; what has n elements is parallel, n >= 1."""

    groups: I64
    """Of each message's block (n,)."""
    kafka_ms: I64
    """Kafka's timestamps in milliseconds since 1970 (n,)."""
    values: Any
    """pyarrow large_binary array (n,)."""


class NothingToSample(Exception):
    """The topics hold no row of the session."""

    exit_code = USAGE


@dataclass(frozen=True)
class LeafRead:
    """What the sample says of one leaf."""

    name: str
    topic: str
    offsets: int
    """That the topic has in the session."""
    fraction: float
    """Of them, those that were asked for."""
    kept: int
    """Sampled rows that the contract and the filter keep."""
    rejected: int
    filtered: int
    reason: str = ""
    """The commonest of the rejected ones; empty: none was."""

    @property
    def sampled(self) -> int:
        """Rows that were read."""
        return self.kept + self.rejected + self.filtered

    @property
    def rows(self) -> float:
        """About how many rows the session keeps."""
        return self.kept / self.fraction if self.fraction else 0.0


@dataclass(frozen=True)
class SessionEstimate:
    """What a session will have, by a sample of its topics."""

    leaves: tuple[LeafRead, ...]
    results: Estimate
    names: tuple[str, ...]
    """Of the root's key columns."""
    keys: tuple[KeyEstimate, ...]
    """That seem to give the most results, those first."""
    gap_offsets: int
    """The longest stretch of a partition that was not read: a key all of whose rows lie in such may
    have been missed. 0: everything was read."""
    first_ms: int | None
    """Kafka's time of the oldest sampled row, ms since 1970; None: there was none."""
    last_ms: int | None
    allows_for_unmet: bool
    """The range allows for keys that one input's sample lacks and another's is full of
    (`counting.unmet`)."""
    optional: tuple[str, ...] = ()
    """Leaves that results may lack; those that do are not in the estimate."""


def estimated(settings: Settings, query: Query, session: str | None, rows: int) -> SessionEstimate:
    """Read a sample of about `rows` offsets of each leaf's topic, and estimate.

    `session`: a trading day, from the close before to its own, each with `session.grace_s`; None:
    all that the topics hold. Raises `NothingToSample`, `SampleTooLarge`, `CalendarError`,
    `KafkaUnavailable`, `TopicProblem`, `OptionError`, `QueryError`, `RegistryUnavailable`.
    """
    values = values_of(query)
    plans = with_schemas(leaf_plans(query, values), settings.registry, None)
    bootstrap, options = settings.kafka.bootstrap_servers, settings.kafka.options
    demand_listener(bootstrap)
    with cluster(bootstrap, options) as view:
        begins, ends = extent(view, settings, query, session)
    draw = np.random.default_rng(SEED)
    draws = [drawn(begins[plan.topic], ends[plan.topic], rows, draw) for plan in plans]
    if all(not each.offsets for each in draws):
        raise NothingToSample(
            f"{', '.join(query.topics)} hold no row" + (f" of {session}" if session else "")
        )
    with TopicReader(bootstrap, options) as reader:
        read = [
            _sampled(query, leaf, plan, each, sampled_rows(reader, plan.topic, each))
            for leaf, plan, each in zip(values.leaves, plans, draws, strict=True)
        ]
    samples = [sample for sample, _, _ in read]
    found = counted(query, values, samples)
    most = unmet(query, values, samples)
    times = [each for _, _, times in read for each in times]
    return SessionEstimate(
        leaves=tuple(leaf for _, leaf, _ in read),
        results=total(found, samples, unmet=most or 1.0),
        names=tuple(name for name, _ in values.root),
        keys=tuple(largest(found, samples, KEYS)),
        gap_offsets=max(each.gap_offsets for each in draws),
        first_ms=min(times, default=None),
        last_ms=max(times, default=None),
        optional=query.optional,
        allows_for_unmet=most is not None,
    )


def extent(
    view: KafkaCluster, settings: Settings, query: Query, session: str | None
) -> tuple[Offsets, Offsets]:
    """Where the session's rows begin and end in each topic, as far as they are there."""
    topics = sorted(query.topics)
    ends = view.end_offsets(topics)
    if session is None:
        return view.beginning_offsets(topics), ends
    opened, closed = calendar.day_ms(settings.session.days, session, settings.session.grace_s)
    return view.offsets_for_time(topics, opened), view.offsets_for_time(topics, closed)


def sampled_rows(reader: TopicReader, topic: str, draw: Drawn) -> Iterator[SampledRows]:
    """The messages of the blocks: of each partition in their order, all partitions at a time."""
    runs: dict[int, list[list[OffsetBlock]]] = {}
    for run in _runs(draw.blocks):
        runs.setdefault(run[0].partition, []).append(run)
    for some in zip_longest(*runs.values()):
        wanted = {
            TopicRange(topic, run[0].partition, run[0].begin, run[-1].end): _columns(run)
            for run in some
            if run is not None
        }
        for each, records in reader.read(wanted):
            begins, ends, groups = wanted[each]
            at = np.searchsorted(begins, records.offsets, side="right") - 1
            mine = records.offsets < ends[at]
            if mine.any():
                values = records.values.filter(pa.array(mine))
                yield SampledRows(groups[at[mine]], records.kafka_ms[mine], values)


def _columns(run: Sequence[OffsetBlock]) -> tuple[I64, I64, I64]:
    """Begins, ends and groups."""
    table = np.array([(block.begin, block.end, block.group) for block in run], np.int64)
    return table[:, 0], table[:, 1], table[:, 2]


def _runs(blocks: Sequence[OffsetBlock]) -> Iterator[list[OffsetBlock]]:
    """Blocks that are read in one go: a jump costs a request, and the rest of a batch."""
    run: list[OffsetBlock] = []
    for block in blocks:
        near = run and block.partition == run[-1].partition
        if near and block.begin - run[-1].end <= NEAR_OFFSETS:
            run.append(block)
            continue
        if run:
            yield run
        run = [block]
    if run:
        yield run


def _pieces(rows: Iterable[SampledRows]) -> Iterator[SampledRows]:
    """The same rows, more of them at a time: a call of the decoder has its price."""
    held: list[SampledRows] = []
    for each in rows:
        held.append(each)
        count = sum(len(some.groups) for some in held)
        if count >= CHUNK_ROWS or sum(some.values.nbytes for some in held) >= CHUNK_BYTES:
            yield _joined(held)
            held = []
    if held:
        yield _joined(held)


def _joined(held: Sequence[SampledRows]) -> SampledRows:
    return SampledRows(
        np.concatenate([each.groups for each in held]),
        np.concatenate([each.kafka_ms for each in held]),
        pa.concat_arrays([each.values for each in held]),
    )


def _sampled(
    query: Query, leaf: LeafValues, plan: StreamPlan, draw: Drawn, rows: Iterable[SampledRows]
) -> tuple[LeafSample, LeafRead, list[int]]:
    """The leaf's rows, what is told of it, and the least and greatest of Kafka's times."""
    frames, kept, rejected, filtered = [_rows(leaf, plan, plan.schema.empty_table())], 0, 0, 0
    times: list[int] = []
    reasons: Counter[str] = Counter()
    for piece in _pieces(rows):
        times += [int(each) for each in (piece.kafka_ms.min(), piece.kafka_ms.max())]
        found = decode(plan, piece.values, piece.kafka_ms)
        if found.times is not None and query.event_time is not None:
            never = np.full(len(piece.groups), BEGINNING_US, np.int64)
            found = judged(plan, found, piece.kafka_ms, never, query.event_time.ahead_us)
        kept += len(found.kept)
        rejected += len(found.rejected)
        reasons.update(found.reasons)
        filtered += found.filtered
        times_us = None if found.times is None else found.times.kept_us
        frames.append(_rows(leaf, plan, found.rows, piece.groups[found.kept], times_us))
    reason = max(reasons, key=reasons.__getitem__, default="")
    said = LeafRead(
        leaf.name, plan.topic, draw.offsets, draw.fraction, kept, rejected, filtered, reason
    )
    return LeafSample(pl.concat(frames), draw.fraction), said, times


def _rows(
    leaf: LeafValues,
    plan: StreamPlan,
    rows: Any,
    groups: I64 | None = None,
    times_us: I64 | None = None,
) -> pl.DataFrame:
    """Decoded rows as `LeafSample` has them; groups and times are None of an empty table."""
    none = np.zeros(0, np.int64)
    sources = [f"k{source}" for source in range(len(leaf.sources))]
    columns = dict(zip(sources, rows.columns, strict=False))  # the payload comes after the keys
    table = pl.DataFrame(pl.from_arrow(pa.table(columns))).with_columns(
        group=pl.Series(none if groups is None else groups)
    )
    if plan.time is not None:
        table = table.with_columns(time=pl.Series(none if times_us is None else times_us))
    first = {value: f"k{leaf.values.index(value)}" for value in leaf.has}
    # Rows in which the sources of one value differ are in no result.
    alike = [
        pl.col(source) == pl.col(first[value])
        for source, value in zip(sources, leaf.values, strict=True)
        if source != first[value]
    ]
    values = [pl.col(source).alias(f"v{value}") for value, source in first.items()]
    return table.filter(*alike).select(*values, pl.exclude(sources))
