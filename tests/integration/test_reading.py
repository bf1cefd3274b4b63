"""Ranges of topics read from a real broker, against what its own client gives."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient

from spillway.kafka import broker as embedded
from spillway.kafka import reading
from spillway.kafka.client import KafkaCluster, KafkaUnavailable, cluster
from spillway.kafka.reading import OffsetsGone, TopicDeleted, TopicRange, TopicReader
from tests.integration.day import wait_for

pytestmark = pytest.mark.server

Read = list[tuple[int, int, bytes | None]]


def by_the_client(bootstrap: str, wanted: TopicRange) -> Read:
    """Offset, time and value of a range, record by record."""
    place = TopicPartition(wanted.topic, wanted.partition)
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="none"
    )
    try:
        consumer.assign([place])
        consumer.seek(place, wanted.begin)
        found: Read = []
        while consumer.position(place) < wanted.end:
            for record in consumer.poll(timeout_ms=1000).get(place, ()):
                if record.offset < wanted.end:
                    found.append((record.offset, record.timestamp, record.value))
        return found
    finally:
        consumer.close()


def by_columns(reader: TopicReader, ranges: Iterable[TopicRange]) -> dict[TopicRange, Read]:
    found: dict[TopicRange, Read] = {each: [] for each in ranges}
    for of, part in reader.read(found):
        rows = zip(
            part.offsets.tolist(), part.kafka_ms.tolist(), part.values.to_pylist(), strict=True
        )
        found[of] += rows
    return found


def send(bootstrap: str, topic: str, rng: random.Random, **more: Any) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap, **more)
    transactional = "transactional_id" in more
    if transactional:
        producer.init_transactions()
    for _ in range(6):
        if transactional:
            producer.begin_transaction()
        for n in range(rng.randrange(1, 60)):
            size = rng.choice([0, 5, 40, 400, 20_000])
            value = None if rng.random() < 0.05 else rng.randbytes(size)
            headers = [("h", b"x")] if rng.random() < 0.2 else []
            producer.send(
                topic, value, key=b"k", partition=n % 3, timestamp_ms=10**12 + n, headers=headers
            )
        if transactional:
            (producer.commit_transaction if rng.random() < 0.5 else producer.abort_transaction)()
        else:
            producer.flush()
    producer.close()


@pytest.fixture
def filled(topics: Callable[..., dict[str, str]], broker: str) -> list[str]:
    """Three partitions with batches of all kinds: codecs, sizes, and transactions given up."""
    names = list(topics("one", "two", partitions=3).values())
    rng = random.Random(4)
    for name in names:
        send(broker, name, rng)
        send(broker, name, rng, transactional_id=f"{name}-tx")
        send(broker, name, rng, compression_type="lz4", linger_ms=20)
        send(broker, name, rng, compression_type="gzip", transactional_id=f"{name}-gz")
        send(broker, name, rng, batch_size=1)
    return names


def test_a_reader_gives_what_the_client_gives_however_often_it_reads(
    filled: list[str], broker: str
) -> None:
    """One reader: random ranges of some partitions, again and again, and from where it stopped."""
    consumer = KafkaConsumer(bootstrap_servers=broker)
    places = [TopicPartition(topic, p) for topic in filled for p in range(3)]
    ends = consumer.end_offsets(places)
    consumer.close()
    whole = {place: by_the_client(broker, TopicRange(*place, 0, ends[place])) for place in places}
    assert sum(map(len, whole.values())) > 500
    assert any(len(rows) < ends[place] for place, rows in whole.items()), "some do not count"
    rng = random.Random(5)
    with TopicReader(broker, {}) as reader:
        at = dict.fromkeys(places, 0)
        for _ in range(25):
            some = rng.sample(places, rng.randrange(1, 7))
            ranges = []
            for place in some:
                begin = rng.choice([at[place], rng.randrange(ends[place])])
                end = min(begin + rng.choice([1, 7, 100, 10**6]), ends[place])
                ranges.append(TopicRange(*place, begin, end))
                at[place] = end % ends[place]
            found = by_columns(reader, ranges)
            assert found == {
                each: [
                    row
                    for row in whole[TopicPartition(each.topic, each.partition)]
                    if each.begin <= row[0] < each.end
                ]
                for each in ranges
            }


def test_a_range_that_is_gone_is_an_error(filled: list[str], broker: str) -> None:
    topic = filled[0]
    admin = KafkaAdminClient(bootstrap_servers=broker)
    admin.delete_records({TopicPartition(topic, 1): 20})
    admin.close()
    with TopicReader(broker, {}) as reader:
        for begin, end in ((5, 30), (10**6, 10**6 + 1)):
            with pytest.raises(OffsetsGone, match=f"partition 1 does not hold offset {begin} any"):
                by_columns(reader, [TopicRange(topic, 0, 0, 9), TopicRange(topic, 1, begin, end)])


def test_a_topic_that_is_deleted_or_made_anew_is_an_error(
    filled: list[str],
    broker: str,
    cluster: KafkaCluster,
    topics: Callable[..., dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the new one has as many rows: they are others, at the same offsets."""
    monkeypatch.setattr(reading, "TOPICS_LOOK_S", 0.2)
    monkeypatch.setattr(reading, "AGAIN_S", 0.2)
    again, other = filled
    ids = {topic.name: topic.id for topic in cluster.topics(filled)}
    with TopicReader(broker, {}) as reader:
        assert list(reader.read([TopicRange(again, 0, 0, 5), TopicRange(other, 0, 0, 5)], ids))
        cluster.delete_topics([again])
        cluster.create_topics({again: 3})
        send(broker, again, random.Random(5), batch_size=1)
        send(broker, again, random.Random(5), batch_size=1)
        with pytest.raises(TopicDeleted, match=f"{again}' was deleted and created again"):
            list(reader.read([TopicRange(again, 0, 5, 9), TopicRange(other, 0, 5, 9)], ids))
        assert list(reader.read([TopicRange(other, 0, 5, 9)], ids)), "of the others nothing is said"
    with TopicReader(broker, {}) as reader:
        assert list(reader.read([TopicRange(other, 1, 0, 5)]))
        cluster.delete_topics([other])
        began = time.monotonic()
        with pytest.raises(TopicDeleted, match=f"{other}' at {broker} does not exist any more"):
            list(reader.read([TopicRange(other, 1, 5, 10**6)]))
        assert time.monotonic() - began < 20


@pytest.fixture
def own_broker(jars: None, tmp_path: Path) -> Iterator[Any]:
    status = embedded.start(tmp_path, embedded.free_port(), controller_port=embedded.free_port())
    try:
        yield status
    finally:
        for process in psutil.Process(status.pid).children(recursive=True):
            process.send_signal(signal.SIGCONT)
        psutil.Process(status.pid).send_signal(signal.SIGCONT)
        embedded.stop(tmp_path)


def test_a_broker_that_is_silent_is_waited_for_and_then_given_up(own_broker: Any) -> None:
    with cluster(own_broker.bootstrap) as view:
        view.create_topics({"t": 3})
    send(own_broker.bootstrap, "t", random.Random(1))
    consumer = KafkaConsumer(bootstrap_servers=own_broker.bootstrap)
    (end,) = consumer.end_offsets([TopicPartition("t", 0)]).values()
    consumer.close()
    with TopicReader(own_broker.bootstrap, {}, silent_s=2.0) as reader:
        wanted = TopicRange("t", 0, 0, end)
        assert len(by_columns(reader, [wanted])[wanted]) == end
        process = psutil.Process(own_broker.pid)
        process.send_signal(signal.SIGSTOP)
        stopped = psutil.STATUS_STOPPED
        wait_for(lambda: process.status() == stopped, 10, "the broker does nothing any more")
        with pytest.raises(KafkaUnavailable, match="has given nothing for 2 s"):
            by_columns(reader, [wanted])
        process.send_signal(signal.SIGCONT)
    with TopicReader(own_broker.bootstrap, {}) as reader:
        assert len(by_columns(reader, [wanted])[wanted]) == end
