"""Ranges of topics, read whole: kafka-python fetches, `wire` makes columns of what came.

kafka-python finds leaders, logs in, and tries again, but makes an object of every record. Here its
fetcher hands over each answer as it is.

Known limitation: that reaches into kafka-python (`Fetcher.PartitionRecords`, and its metadata for
the ids of topics), which is locked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple

import numpy as np
from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.errors import KafkaError, OffsetOutOfRangeError, TopicAuthorizationFailedError

from spillway.kafka.client import (
    TopicProblem,
    connected,
    unanswered,
    unavailable,
)
from spillway.kafka.options import COMMITTED_ALONE, check_files, python_options
from spillway.kafka.wire import BatchDamaged, BatchHeader, Records, committed, headers, read_records
from spillway_schemas.secret import Options

MOST_FETCHED_BYTES = 16 << 20
LEAST_FETCHED_BYTES = 64 << 10
"""Asked for at a time, of all partitions and of one; a larger batch comes whole."""
FIRST_FETCHED_BYTES = 1 << 20
"""The same while nothing is known of a topic's records."""
READ_SILENT_S = 60.0
"""So long nothing may come before a read is given up: an election takes less."""
TOPICS_LOOK_S = 2.0
"""So long nothing may come before it is looked whether the topics are there."""
TOPICS_ANSWER_S = 1.0
"""So long that takes: who is silent is asked again later."""
AGAIN_S = 2.0
"""A topic that is not there is looked for once more after so long: a broker that has just started
does not know all of them yet."""

ANY_ID: Mapping[str, str] = MappingProxyType({})


class OffsetsGone(TopicProblem):
    """A partition does not hold rows that are wanted: retention took them, or it was made anew."""


class TopicDeleted(TopicProblem):
    """A topic was deleted, and perhaps made again: offsets mean other rows now."""

    def __init__(self, what: str) -> None:
        """`what` became of which topic."""
        super().__init__(
            what,
            "have its rows brought back, or make the day again with what is left; see the runbook, "
            "`A topic was deleted`",
        )

    def __reduce__(self) -> tuple[type[TopicDeleted], tuple[str]]:
        """As it was made: a process of the proof hands it on."""
        return TopicDeleted, (self.what,)


class _Answer(NamedTuple):
    """Whole batches of an answer, in the place of a record."""

    offset: int
    """The last one in it."""
    begin: int
    """The offset that was asked for: a batch may begin before it."""
    data: Any
    batches: list[BatchHeader]


class _Answers(Fetcher.PartitionRecords):  # type: ignore[misc]
    """An answer of a broker, handed over as one record."""

    def __init__(self, came_to: Callable[[Any, int], None], *given: Any, **named: Any) -> None:
        """`came_to` is told to which offset a partition comes, before more of it is asked for."""
        self._came_to = came_to
        super().__init__(*given, **named)

    def take(self, _: int | None = None) -> list[_Answer]:
        """All there is: the fetcher does not always come back to what is left of a partition that
        was told to wait meanwhile."""
        found: list[_Answer] = super().take()
        return found

    def _unpack_records(self, tp: Any, records: Any, *_: Any) -> Iterator[_Answer]:
        data = records._buffer
        try:
            found = list(headers(data))
        except BatchDamaged as error:
            raise BatchDamaged(f"{tp.topic!r} partition {tp.partition}: {error}") from error
        if found:
            aborted = [(each.producer_id, each.first_offset) for each in self.aborted_transactions]
            self.next_fetch_offset = found[-1].last_offset + 1
            self.bytes_read += found[-1].end
            self._came_to(tp, self.next_fetch_offset)
            held = committed(found, data, aborted)
            yield _Answer(found[-1].last_offset, self.fetch_offset, data, held)
        self.drain()


@dataclass(frozen=True)
class TopicRange:
    """The rows of one partition from offset `begin` up to (not including) `end`."""

    topic: str
    partition: int
    begin: int
    end: int


class TopicReader:
    """Reads ranges, one after another. A context manager."""

    def __init__(self, bootstrap: str, options: Options, silent_s: float = READ_SILENT_S) -> None:
        """`silent_s`: so long brokers may be silent. Raises KafkaUnavailable when none answers."""
        self._silent_s = silent_s
        check_files(options)
        config: dict[str, Any] = {
            **python_options(options, "consumer"),
            **COMMITTED_ALONE,
            "client_id": "spillway-reader",
            "group_id": None,
            "auto_offset_reset": "none",
            "check_crcs": False,  # `headers` does
            "fetch_max_wait_ms": 20,
            "retry_backoff_ms": 20,  # it sleeps so long where a leader is not known yet
            "fetch_max_bytes": MOST_FETCHED_BYTES,
            "bootstrap_timeout_ms": int(silent_s * 1000),
            "metrics_enabled": False,
        }
        self._bootstrap = bootstrap
        self._options = options
        self._ends: dict[Any, int] = {}
        self._record_bytes: dict[str, float] = {}
        """By topic, as they come from the broker."""
        self._batch_bytes: dict[str, int] = {}
        """The largest batch in a topic's last answer."""
        try:
            self._consumer = connected(KafkaConsumer, bootstrap, config)
        except (KafkaError, OSError) as error:
            raise unavailable(self._bootstrap, self._options, error) from error
        self._consumer._fetcher.PartitionRecords = partial(_Answers, self._came_to)

    def __enter__(self) -> TopicReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close(autocommit=False, timeout_ms=1000)

    def read(
        self, wanted: Iterable[TopicRange], ids: Mapping[str, str] = ANY_ID
    ) -> Iterator[tuple[TopicRange, Records]]:
        """The messages of ranges that count, of each partition in their order; each partition once.

        `ids`: Kafka's ids of topics by name. Whoever reads to the end has rows of these topics, and
        of none that was made anew under one of their names meanwhile.

        Raises `OffsetsGone`, `TopicDeleted`, `TopicProblem` where a topic may not be read,
        `KafkaUnavailable` when nothing has come for too long, `BatchDamaged`. After that, make a
        new one.
        """
        ranges = {
            TopicPartition(each.topic, each.partition): each
            for each in wanted
            if each.begin < each.end
        }
        consumer = self._consumer
        consumer.assign(list(ranges))
        consumer.resume(*ranges)  # who came to an end before is still told to wait
        for place, each in ranges.items():
            consumer.seek(place, each.begin)
        self._ends = {place: each.end for place, each in ranges.items()}
        self._ask_for(ranges.values())
        position = {place: each.begin for place, each in ranges.items()}
        ids = {each.topic: ids.get(each.topic, "") for each in ranges.values()}
        since = looked = time.monotonic()
        while position:
            # One answer at a time: the next are asked for meanwhile, and held by the client.
            came = self._polled(ranges)
            for place, answers in came.items():
                for answer in answers:
                    yield from (
                        (ranges[place], part) for part in self._parts(ranges[place], answer)
                    )
            before = dict(position)
            position = {place: consumer.position(place) for place in position}
            if position != before:
                since = looked = time.monotonic()
            elif time.monotonic() - looked > TOPICS_LOOK_S:
                with suppress(KafkaError, OSError):  # brokers are away: that may end
                    self._assure_there(ids)
                looked = time.monotonic()
            position = {place: at for place, at in position.items() if at < self._ends[place]}
            if time.monotonic() - since > self._silent_s:
                place = next(iter(position))
                raise unanswered(
                    f"{place.topic!r} partition {place.partition} at {self._bootstrap} has given "
                    f"nothing for {self._silent_s:.0f} s, though it should hold offset "
                    f"{position[place]}",
                    "see that all brokers run",
                )
        if any(ids.values()):
            # A fetch names topics by name: only now is it known whose rows these were.
            self._assure_the_same(ids)

    def _assure_the_same(self, ids: Mapping[str, str]) -> None:
        """As `_assure_there`; waits for brokers. Raises `TopicDeleted`, `KafkaUnavailable`."""
        until = time.monotonic() + self._silent_s
        while True:
            try:
                return self._assure_there(ids)
            except (KafkaError, OSError) as error:
                if time.monotonic() > until:
                    raise unavailable(self._bootstrap, self._options, error) from error
                time.sleep(0.1)

    def _assure_there(self, ids: Mapping[str, str]) -> None:
        """Raise `TopicDeleted` where a topic is none any more, or has another id than it had (where
        that is known); what brokers raise when they do not answer."""
        if self._changed(ids):
            time.sleep(AGAIN_S)
            if problem := self._changed(ids):
                raise TopicDeleted(problem)

    def _changed(self, ids: Mapping[str, str]) -> str:
        """What became of a topic, by what a broker says now; empty: nothing."""
        brokers = self._consumer._cluster
        if brokers.metadata_refresh_in_progress:  # asked before now
            self._refresh()
        self._refresh()
        for topic, known in ids.items():
            found, is_there = brokers.topic_id(topic), brokers.partitions_for_topic(topic)
            if found is None and is_there is None and topic not in brokers.unauthorized_topics:
                return f"topic {topic!r} at {self._bootstrap} does not exist any more"
            # A broker older than Kafka 2.8 tells none.
            if known and found is not None and str(found) != known:
                ids_now = f"its id was {known}, now {found}"
                return f"topic {topic!r} was deleted and created again ({ids_now})"
        return ""

    def _refresh(self) -> None:
        """Have a broker say which topics there are. Raises `KafkaError`, after seconds where none
        answers."""
        manager, net = self._consumer._manager, self._consumer._net
        asked = manager.call_soon(self._consumer._cluster.refresh_metadata)
        net.run(manager.wait_for, asked, TOPICS_ANSWER_S * 1000)

    def _polled(self, ranges: Mapping[Any, TopicRange]) -> dict[Any, list[_Answer]]:
        try:
            found: dict[Any, list[_Answer]] = self._consumer.poll(timeout_ms=1000, max_records=1)
            return found
        except OffsetOutOfRangeError as error:
            place, at = next(iter(error.args[0].items()))
            raise OffsetsGone(
                f"{place.topic!r} partition {place.partition} does not hold offset {at} any more",
                "keep input longer (retention.ms, retention.bytes)",
            ) from error
        except TopicAuthorizationFailedError as error:
            topics = ", ".join(sorted({repr(each.topic) for each in ranges}))
            raise TopicProblem(
                f"{self._bootstrap} does not let this user read topic {topics}",
                "grant Describe and Read on it, or check the credentials in kafka.options",
            ) from error
        except (KafkaError, OSError) as error:
            raise unavailable(self._bootstrap, self._options, error) from error

    def _parts(self, wanted: TopicRange, answer: _Answer) -> Iterator[Records]:
        held = [each for each in answer.batches if each.base_offset < wanted.end]
        begin = max(wanted.begin, answer.begin)
        held = [each for each in held if each.last_offset >= begin]
        if rows := sum(each.records for each in held):
            sizes = [each.end - each.begin for each in held]
            self._record_bytes[wanted.topic] = sum(sizes) / rows
            self._batch_bytes[wanted.topic] = max(sizes)
        try:
            for records in read_records(held, answer.data):
                part = _within(records, begin, wanted.end)
                if len(part.offsets):
                    yield part
        except BatchDamaged as error:
            raise BatchDamaged(f"{wanted.topic!r} partition {wanted.partition}: {error}") from error

    def _came_to(self, place: Any, offset: int) -> None:
        """Ask for no more of a partition that has come to its end."""
        if offset >= self._ends.get(place, 0):
            self._consumer.pause(place)

    def _ask_for(self, ranges: Iterable[TopicRange]) -> None:
        """Fetch about as much as the ranges have: what comes beyond them is thrown away."""
        most = max(
            (
                1.1 * (each.end - each.begin) * self._record_bytes[each.topic]
                + 2 * self._batch_bytes[each.topic]
                if each.topic in self._record_bytes
                else FIRST_FETCHED_BYTES
                for each in ranges
            ),
            default=0,
        )
        self._consumer._fetcher.config["max_partition_fetch_bytes"] = int(
            min(max(most, LEAST_FETCHED_BYTES), MOST_FETCHED_BYTES)
        )


def _within(records: Records, begin: int, end: int) -> Records:
    """Those of the offsets from `begin` up to (not including) `end`."""
    first, last = np.searchsorted(records.offsets, [begin, end]).tolist()
    if first == 0 and last == len(records.offsets):
        return records
    part = slice(first, last)
    values = records.values.slice(first, last - first)
    return Records(records.offsets[part], records.kafka_ms[part], values)
