"""How old a result is when a reader of the table can first see it, the same way for every program.

The *delay* of a result is the time from the sending of its latest input row until the commit that
adds the result to the Delta table.

* *Seen*: the time of the commit's log entry in the file system. A reader sees a result from the
  moment at which this file is there. The timestamp in the entry would be too early: both writers
  take it before they write the entry.
* *Sent*: Kafka's timestamp of the row, which the producer takes when it hands the row to its
  client. A row is found by its stream and its `ts`, which both tables carry; no two rows of a
  stream may have the same. So neither program has to carry anything that its user did not ask for.
  The plan of a paced producer would give nearly the same (it sends every 50 ms what is due), but it
  would charge the programs with the time by which a busy machine holds the producer up.

All clocks are this machine's. Kafka's time is in whole milliseconds.

Which results count is said in the time of the scenario (`ts`), which is the same in every run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import json as arrow_json

from benchmarks.side_by_side.contests import TIME

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sent:
    """When the rows of one stream were sent. Made by `of`."""

    ts_us: I64
    """Microseconds since 1970, int64 (n,), ascending, each once."""
    at_ms: I64
    """Kafka's time of the row, milliseconds since 1970, int64 (n,)."""

    @classmethod
    def of(cls, ts_us: I64, at_ms: I64) -> Self:
        """From rows in any order. Raises ValueError when two have the same `ts`."""
        order = np.argsort(ts_us)
        ts_us, at_ms = ts_us[order], at_ms[order]
        if (ts_us[1:] == ts_us[:-1]).any():
            raise ValueError("two rows of a stream have the same time: which was sent when?")
        return cls(ts_us, at_ms)

    def at(self, ts_us: I64) -> I64:
        """When the rows with these times were sent. Raises ValueError when there is no such row."""
        place = np.minimum(np.searchsorted(self.ts_us, ts_us), len(self.ts_us) - 1)
        if not len(self.ts_us) or (self.ts_us[place] != ts_us).any():
            raise ValueError("a result has a row that was never sent")
        return np.asarray(self.at_ms[place])

    def rate_per_s(self, since_us: int) -> float:
        """Rows a second, of those whose time is `since_us` or later: how fast they were sent."""
        at_ms = self.at_ms[self.ts_us >= since_us]
        return (len(at_ms) - 1) * 1000 / int(at_ms.max() - at_ms.min())


@dataclass(frozen=True)
class Seen:
    """Results in the order of their commits."""

    ts_us: Mapping[str, I64]
    """By stream the times of the rows that they are of, int64 (n,)."""
    at_ms: F64
    """When they became visible, milliseconds since 1970, float64 (n,)."""


def delays_s(
    sent: Mapping[str, Sent], seen: Seen, since_us: int, before_us: int | None = None
) -> F64:
    """Delay of each result whose latest row happened in a time: float64 (n,), seconds.

    The time is from `since_us` until before `before_us` (None: to the end). The delay goes from the
    row that was *sent* last, whatever its time. Raises ValueError for a result of a row that was
    not sent.
    """
    latest = np.max([each.at(seen.ts_us[stream]) for stream, each in sent.items()], axis=0)
    happened = np.max([seen.ts_us[stream] for stream in sent], axis=0)
    counted = happened >= since_us
    if before_us is not None:
        counted &= happened < before_us
    return np.asarray((seen.at_ms - latest)[counted] / 1000)


def quantile(values: F64, share: float) -> float:
    """The least of the values that at least this share of them does not exceed.

    Raises ValueError for no values.
    """
    if not len(values):
        raise ValueError("there is no result to take a quantile of")
    return float(np.sort(values)[max(ceil(share * len(values)), 1) - 1])


# -------------------------------------------------------------------------------- what Delta has


def added(entry: str) -> list[str]:
    """Files that a log entry adds with new rows, as paths below the table's folder.

    A file that others were merged into has no new rows.
    """
    actions: Iterable[dict[str, Any]] = map(json.loads, entry.splitlines())
    adds = [each["add"] for each in actions if "add" in each]
    return [unquote(each["path"]) for each in adds if each["dataChange"]]


def seen(table: Path, streams: Sequence[str]) -> Seen:
    """All results of a table, with the times of their commits.

    Raises ValueError when entries of its log are gone already.
    """
    entries = sorted((table / "_delta_log").glob("*.json"))
    if [int(each.stem) for each in entries] != list(range(len(entries))):
        raise ValueError(
            f"{table}: the log does not have every entry any more; run for a shorter time"
        )
    columns = ", ".join(f"epoch_us({stream}_{TIME})" for stream in streams)
    query = f"SELECT {columns} FROM read_parquet($files)"
    parts: list[list[I64]] = []
    at_ms: list[F64] = []
    with duckdb.connect() as database:
        for entry in entries:
            files = [str(table / each) for each in added(entry.read_text())]
            if not files:
                continue
            found = database.execute(query, {"files": files}).fetchnumpy()
            part = [np.asarray(column, dtype=np.int64) for column in found.values()]
            parts.append(part)
            at_ms.append(np.full(len(part[0]), entry.stat().st_mtime_ns / 1e6))
    if not parts:
        return Seen({stream: np.zeros(0, np.int64) for stream in streams}, np.zeros(0))
    times = dict(zip(streams, map(np.concatenate, zip(*parts, strict=True)), strict=True))
    return Seen(times, np.concatenate(at_ms))


# -------------------------------------------------------------------------------- what Kafka has


def sent(bootstrap: str, topics: Sequence[str]) -> dict[str, Sent]:
    """What was sent to each topic, read from Kafka."""
    return {topic: _sent(bootstrap, topic) for topic in topics}


def _sent(bootstrap: str, topic: str) -> Sent:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, max_poll_records=10_000
    )
    try:
        parts = [TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic)]
        consumer.assign(parts)
        consumer.seek_to_beginning(*parts)
        ends = consumer.end_offsets(parts)
        values: list[bytes] = []
        at_ms: list[int] = []
        while any(consumer.position(part) < ends[part] for part in parts):
            for records in consumer.poll(timeout_ms=500).values():
                values += [each.value for each in records]
                at_ms += [each.timestamp for each in records]
    finally:
        consumer.close()
    return Sent.of(times_of(values), np.array(at_ms, dtype=np.int64))


def times_of(values: Sequence[bytes]) -> I64:
    """The field `ts` of messages in JSON: microseconds since 1970, int64 (n,)."""
    if not values:
        return np.zeros(0, np.int64)
    read = arrow_json.read_json(
        pa.BufferReader(b"\n".join(values)),
        parse_options=arrow_json.ParseOptions(
            explicit_schema=pa.schema([(TIME, pa.timestamp("us", "UTC"))]),
            unexpected_field_behavior="ignore",
        ),
    )
    return np.asarray(read.column(TIME).cast(pa.int64()).to_numpy())
