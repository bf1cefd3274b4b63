"""Sending a scenario: as fast as possible or paced, from one process or several.

Streams are shared out over processes, whole: a topic partition is written by one process only, so
its messages come in the same order however many processes there are. Within a process the streams
advance together, chunk by chunk in the order of arrival.

Paced, a row is sent when its arrival (in seconds after the scenario's start, divided by the speed)
has come; rows are sent in small batches every `TICK_S`.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spillway.kafka.client import KafkaUnavailable, demand_listener
from spillway.produce.encode import Encoding
from spillway.produce.generate import GeneratedRows, StreamGenerator, sources
from spillway.produce.keys import partitions_of
from spillway.produce.send import Sender
from spillway.produce.summary import ProducedTally, ProduceProgress, Report, Summary
from spillway.produce.topics import AssureNew, any_is_new, create_topics
from spillway_schemas.scenario import Scenario
from spillway_schemas.secret import Options

TICK_S = 0.05
MANY_ROWS = 5_000_000
"""From so many rows on more than one process is worth its start."""

KafkaTime = Literal["now", "event"]


class ProduceError(RuntimeError):
    """A producing process failed; the message is its error."""


@dataclass(frozen=True)
class _Job:
    scenario: Scenario
    streams: tuple[str, ...]
    bootstrap: str
    options: Options
    speed: float | None
    kafka_time: KafkaTime
    encodings: Mapping[str, Encoding]
    begun_s: float
    """Wall time at which the scenario's start lies when paced: common to all processes."""


def produce(
    scenario: Scenario,
    bootstrap: str,
    *,
    options: Options | None = None,
    speed: float | Literal["auto"] | None = "auto",
    processes: int | None = None,
    kafka_time: KafkaTime = "now",
    encodings: Mapping[str, Encoding] | None = None,
    assure_new: AssureNew = any_is_new,
    progress: Report | None = None,
) -> Summary:
    """Create the scenario's topics where they do not exist, and send all of its messages.

    Args:
        scenario: what to send.
        bootstrap: brokers, `host:port` separated by commas.
        options: Kafka client options by their Java names.
        speed: 1.0 keeps the scenario's own time, 60.0 is sixty times as fast, None is as fast as
            possible; `auto` is 1.0 when the scenario names a rate, else None.
        processes: how many to use, at most one a stream; None chooses.
        kafka_time: the records' Kafka timestamps: `now`, or the arrival in the scenario (then
            retention and `--at close` go by the scenario's day).
        encodings: by topic, how messages are written where that is not JSON.
        assure_new: raises where one of these topics, which do not exist, may not be made.
        progress: called now and then.

    Returns the summary once the broker has acknowledged everything. Raises KafkaUnavailable,
    TopicProblem (an existing topic has another number of partitions) and ProduceError.
    """
    if speed == "auto":
        speed = 1.0 if any(scenario.volume(s).paced for s in scenario.streams) else None
    if speed is not None and not speed > 0:
        raise ValueError(f"speed must be above 0, not {speed}")
    demand_listener(bootstrap)
    # One that exists is used as it is, whatever its number of partitions.
    topics = dict.fromkeys(map(scenario.topic, scenario.streams), scenario.partitions)
    create_topics(topics, bootstrap, options, assure_new)
    begun = time.monotonic()
    all_sources = sources(scenario)
    total = sum(source.rows for source in all_sources)
    count = processes or (1 if total < MANY_ROWS else max(1, (os.cpu_count() or 1) // 2))
    count = min(count, len(scenario.streams))
    shares = [tuple(list(scenario.streams)[n::count]) for n in range(count)]
    jobs = [
        _Job(
            scenario,
            share,
            bootstrap,
            dict(options or {}),
            speed,
            kafka_time,
            dict(encodings or {}),
            time.time(),
        )
        for share in shares
    ]
    meter = _Meter(total, begun, progress)
    alone = count == 1
    tallies = _run(jobs[0], meter.add, all_sources) if alone else _run_processes(jobs, meter)
    by_topic = {t.topic: t for t in tallies}
    ordered = [by_topic[scenario.topic(s)] for s in scenario.streams]
    return Summary(topics=ordered, seconds=time.monotonic() - begun, processes=count)


class _Meter:
    """Adds up what all processes report."""

    def __init__(self, total: int, begun: float, report: Report | None):
        self._total = total
        self._begun = begun
        self._report = report
        self._rows = 0
        self._bytes = 0

    def add(self, rows: int, value_bytes: int) -> None:
        self._rows += rows
        self._bytes += value_bytes
        if self._report is not None:
            seconds = time.monotonic() - self._begun
            self._report(ProduceProgress(self._rows, self._total, self._bytes, seconds))


# ------------------------------------------------------------------------------- one process


def _run(
    job: _Job, report: Any, made: Sequence[StreamGenerator] | None = None
) -> list[ProducedTally]:
    """Send the job's streams; `report(rows, bytes)` after each piece."""
    chosen = [s for s in made or sources(job.scenario) if s.stream in job.streams]
    with Sender(job.bootstrap, job.options) as sender:
        outlets = [_Outlet(source, sender, job) for source in chosen]
        if job.speed is None:
            _run_fast(outlets, report)
        else:
            _run_paced(outlets, job.speed, job.begun_s, report)
        sender.flush()
        return [outlet.tally for outlet in outlets]


class _Outlet:
    """A source and its topic."""

    def __init__(self, source: StreamGenerator, sender: Sender, job: _Job):
        self.source = source
        self.tally = ProducedTally(source.topic)
        self._sender = sender
        self._encoding = job.encodings.get(source.topic)
        self._event_time = job.kafka_time == "event"
        self._start_ms = round(job.scenario.start.timestamp() * 1000)
        self._record_keys = source.record_keys
        self._partition_of_key = partitions_of(source.record_keys, sender.partitions(source.topic))

    def take(self, number: int) -> GeneratedRows:
        """Make a chunk and count it."""
        chunk = self.source.chunk(number)
        if self._encoding is not None:
            chunk = replace(chunk, values=self._encoding.encoded(chunk.values))
        self.tally.add(
            ProducedTally(
                topic=self.source.topic,
                rows=len(chunk),
                value_bytes=pc.sum(pc.binary_length(chunk.values)).as_py() or 0,
                malformed={str(kind): count for kind, count in chunk.malformed.items()},
                late=chunk.late,
                repeated=chunk.repeated,
            )
        )
        return chunk

    def send(self, chunk: GeneratedRows, lo: int, hi: int) -> None:
        """Send rows `lo` ... `hi - 1` of a chunk."""
        keys = chunk.keys[lo:hi]
        if self._event_time:
            times = self._start_ms + np.floor(chunk.due_s[lo:hi] * 1000).astype(np.int64)
        else:
            times = np.full(hi - lo, int(time.time() * 1000), dtype=np.int64)
        self._sender.send_rows(
            self.source.topic,
            self._partition_of_key[keys],
            self._record_keys.take(pa.array(keys)),
            chunk.values.slice(lo, hi - lo),
            times,
        )


def _run_fast(outlets: Sequence[_Outlet], report: Any) -> None:
    steps = sorted(
        (plan.begins_s, n, plan.number)
        for n, outlet in enumerate(outlets)
        for plan in outlet.source.plan
    )
    for _, n, number in steps:
        outlet = outlets[n]
        before = outlet.tally.value_bytes
        chunk = outlet.take(number)
        outlet.send(chunk, 0, len(chunk))
        report(len(chunk), outlet.tally.value_bytes - before)


def _run_paced(outlets: Sequence[_Outlet], speed: float, begun_s: float, report: Any) -> None:
    cursors = [_Cursor(outlet) for outlet in outlets]
    while any(not cursor.done for cursor in cursors):
        now = (time.time() - begun_s) * speed
        rows = value_bytes = 0
        for cursor in cursors:
            more, size = cursor.advance(now)
            rows, value_bytes = rows + more, value_bytes + size
        if rows:
            report(rows, value_bytes)
        time.sleep(TICK_S)


class _Cursor:
    """How far a paced stream has come."""

    def __init__(self, outlet: _Outlet):
        self._outlet = outlet
        self._number = 0
        self._row = 0
        self._chunk: GeneratedRows | None = None

    @property
    def done(self) -> bool:
        """All rows were sent."""
        return self._number >= len(self._outlet.source.plan)

    def advance(self, now_s: float) -> tuple[int, int]:
        """Send what is due at `now_s` of the scenario's time: rows and bytes sent."""
        rows = value_bytes = 0
        while not self.done and self._outlet.source.plan[self._number].begins_s <= now_s:
            if self._chunk is None:
                self._chunk = self._outlet.take(self._number)
            upto = int(np.searchsorted(self._chunk.due_s, now_s, side="right"))
            if upto > self._row:
                self._outlet.send(self._chunk, self._row, upto)
                sent = self._chunk.values.slice(self._row, upto - self._row)
                value_bytes += pc.sum(pc.binary_length(sent)).as_py() or 0
                rows += upto - self._row
                self._row = upto
            if self._row < len(self._chunk):
                break
            self._number, self._row, self._chunk = self._number + 1, 0, None
        return rows, value_bytes


# ---------------------------------------------------------------------------- several processes


def _run_processes(jobs: Sequence[_Job], meter: _Meter) -> list[ProducedTally]:
    # Spawned, not forked: a fork would copy the parent's Kafka threads' locks as they happen to be.
    context = multiprocessing.get_context("spawn")
    inbox: Any = context.Queue()
    workers = [context.Process(target=_child, args=(job, inbox), daemon=True) for job in jobs]
    tallies: list[ProducedTally] = []
    try:
        for worker in workers:
            worker.start()
        left = len(workers)
        while left:
            try:
                kind, content = inbox.get(timeout=1.0)
            except queue.Empty:
                dead = [w for w in workers if w.exitcode not in (None, 0)]
                if dead:
                    raise ProduceError(
                        f"producing process {dead[0].pid} ended with code {dead[0].exitcode}"
                    ) from None
                continue
            if kind == "rows":
                meter.add(*content)
            elif kind == "error":
                raise content
            else:
                tallies += content
                left -= 1
    finally:
        for worker in workers:
            if worker.pid is not None:
                worker.join(timeout=1.0)
                if worker.is_alive():
                    worker.terminate()
                worker.join()
    return tallies


def _child(job: _Job, inbox: Any) -> None:
    try:
        tallies = _run(job, lambda rows, size: inbox.put(("rows", (rows, size))))
        inbox.put(("done", tallies))
    except KafkaUnavailable as error:
        inbox.put(("error", error))
    except KeyboardInterrupt:
        return
    except Exception as error:  # noqa: BLE001 - handed to the parent, which raises it
        inbox.put(("error", ProduceError(f"{type(error).__name__}: {error}")))
