"""What Kafka can bring: broken values, transactions, changing topics, a broker that goes away."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka import KafkaProducer

from spillway.kafka import broker as kafka_broker
from spillway.kafka.client import KafkaCluster
from tests.integration.day import STREAMS, Day, message, messages, running, wait_for
from tests.scrape import figure, scrape

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

FIRST = "2026-01-05"

GOOD = [
    (stream, json.dumps(message(stream, f"S{number % 7}", number)).encode())
    for number in range(210)
    for stream in STREAMS
]


def _stock(**changes: object) -> bytes:
    return json.dumps({**message("stock", "S1", 1), **changes}).encode()


BROKEN: dict[str, bytes | None] = {
    "not JSON": b"hello",
    "empty": b"",
    "tombstone": None,
    "wrong type": _stock(price="12"),
    "missing field": b'{"symbol": "S1", "ts": "2026-01-05T09:00:00Z"}',
    "null key": _stock(symbol=None),
    "NaN": _stock(price=0).replace(b": 0", b": NaN"),
    "infinity": _stock(price=0).replace(b": 0", b": 1e400"),
    "invalid UTF-8": _stock(symbol="SX").replace(b"SX", b"S\xff"),
    "5 MB": b'{"symbol": "' + b"x" * 5_000_000,
    "deep": b'{"a":'
    + b"[" * 1000
    + b"]" * 1000
    + _stock()[1:].replace(b'"symbol"', b',"symbol"', 1),
    "no offset": _stock(ts="2026-01-05T09:00:00"),
    "year 0": _stock(ts="0000-01-05T09:00:00Z"),
}
WELL: list[bytes] = [
    _stock(unknown={"a": [1, 2]}, symbol="S1"),
    _stock(ts="9999-12-31T23:59:59.999999Z"),
    _stock(symbol="L" * 10_000),
    _stock(symbol="S\t1\u0001"),
]


@pytest.fixture
def day(
    tmp_path: Path, broker: str, topics: Callable[..., dict[str, str]], spark_env: dict[str, str]
) -> Iterator[Day]:
    made = Day(tmp_path / "day", broker, topics(*STREAMS, partitions=2), spark_env)
    yield made
    made.clean()


def test_broken_values_are_kept_and_nothing_else_is_lost(day: Day) -> None:
    made: list[tuple[str, bytes | None]] = list(GOOD)
    for number, value in enumerate(BROKEN.values()):
        made.insert(7 * number, ("stock", value))
    made += [("stock", value) for value in WELL]
    big = {**message("volume", "S2", 5), "shares": 2**63}
    made.append(("volume", json.dumps(big).encode()))
    day.broken = frozenset([*BROKEN.values(), made[-1][1]])
    day.produce(made)
    day.finish(FIRST, first=[["stream", "--session", FIRST, "--available-now"]])
    rows = day.quarantined()
    values = [row["value"] for row in rows]
    for name, value in {**BROKEN, "beyond 64 bits": json.dumps(big).encode()}.items():
        assert value in values, f"{name} is not in quarantine"
    assert len(rows) == len(BROKEN) + 1, [row["reason"] for row in rows]
    assert all(row["topic"] in day.topics.values() and row["reason"] for row in rows)
    day.check(FIRST)
    _replay_a_mended_row(day)


def _replay_a_mended_row(day: Day) -> None:
    code, text = day.output("quarantine", "list", "--json", "--limit", "100")
    assert code == 0, text
    rows = [json.loads(line) for line in text.splitlines()]
    wrong = next(row for row in rows if row.get("value") == "hello")
    mended = day.folder / "mended.jsonl"
    mended.write_text(json.dumps({**wrong, "value": _stock(symbol="S3").decode()}))
    day.ok("quarantine", "replay", str(mended))
    before = len(day.read_topics()["stock"])
    assert before == sum(stream == "stock" for stream, _ in GOOD) + len(BROKEN) + len(WELL) + 1


def test_transactions(day: Day) -> None:
    """Aborted batches and control records: read under read_committed, sealed and verified."""
    producer = KafkaProducer(
        bootstrap_servers=day.bootstrap, transactional_id=f"tx-{day.folder.parent.name}"
    )
    producer.init_transactions()
    for number in range(12):
        producer.begin_transaction()
        for stream, value in GOOD[number * 30 : (number + 1) * 30]:
            producer.send(day.topics[stream], value, partition=number % 2)
        if number % 3 == 1:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    producer.close()
    day.finish(FIRST, first=[["stream", "--session", FIRST, "--available-now"]])
    assert day.check(FIRST)["run-time"] > 0
    read = sum(len(rows) for rows in day.read_topics().values())
    assert read == 240


@pytest.mark.soak
def test_topics_that_change(day: Day, cluster: KafkaCluster) -> None:
    """More partitions are taken in. A topic that is made anew while the stream runs ends it,
    however many rows it has; one made anew before a start, or missing, is refused."""
    day.produce(messages(1, 3_000, keys=500))
    day.ok("stream", "--session", FIRST, "--available-now")
    cluster.add_partitions(day.topics["stock"], 4)
    producer = KafkaProducer(bootstrap_servers=day.bootstrap)
    for number in range(400):
        value = json.dumps(message("stock", f"S{number % 50}", number)).encode()
        producer.send(day.topics["stock"], value, partition=number % 4)
    producer.close()
    day.finish(FIRST)
    day.check(FIRST)
    review = day.topics["review"]
    entries, end = len(day.entries()), day.journal.epochs()[-1]["end"][review]
    with running(day, "stream") as stream:
        wait_for(lambda: len(day.entries()) > entries or stream.poll() is not None, 60, "a claim")
        cluster.delete_topics([review])
        cluster.create_topics({review: 2})
        day.produce(messages(2, 6_000, keys=500))
        assert stream.wait(60) == 3
    assert f"{review} was deleted and created again" in day.tail().replace("'", "")
    assert day.journal.epochs()[-1]["end"][review] == end, "no row of the new one"
    entries = len(day.entries())
    cluster.delete_topics([review])
    wait_for(lambda: review not in cluster.existing_topics(), 20, "topic is deleted")
    assert day.run("stream", "--available-now") == 3
    assert "no topic" in day.tail()
    cluster.create_topics({review: 2})
    assert day.run("stream", "--available-now") == 2
    assert "created again" in day.tail()
    assert len(day.entries()) == entries


def test_a_broker_that_goes_away(tmp_path: Path, spark_env: dict[str, str], jars: None) -> None:
    """The broker stops for a while under a running stream, and comes back."""
    folder = tmp_path / "own-broker"
    port, controller = kafka_broker.free_port(), kafka_broker.free_port()
    kafka_broker.start(folder, port, controller_port=controller)
    try:
        names = {stream: f"{stream}-own" for stream in STREAMS}
        bootstrap = f"127.0.0.1:{port}"
        view = KafkaCluster(bootstrap)
        view.create_topics(dict.fromkeys(names.values(), 2))
        view.close()
        listen = f"127.0.0.1:{kafka_broker.free_port()}"
        extra = {"METRICS__LISTEN": listen}
        day = Day(tmp_path / "day", bootstrap, names, spark_env, extra=extra)
        day.produce(messages(1, 3_000, keys=500))
        with running(day, "stream", "--session", FIRST) as stream:
            wait_for(lambda: "epoch 0:" in log(day), 90, "the first epoch")
            kafka_broker.stop(folder)
            time.sleep(15)
            figures = scrape(listen)
            assert figure(figures, "spillway_up") == 1
            assert figure(figures, "spillway_kafka_up") == 0
            assert not [name for name, _ in figures if name.startswith("spillway_lag")]
            kafka_broker.start(folder, port, controller_port=controller)
            day.produce(messages(2, 3_000, keys=500))
            day.ok("seal", "--session", FIRST)
            wait_for(lambda: f"sealed {FIRST}" in log(day), 150, "the session is sealed")
            wait_for(lambda: figure(scrape(listen), "spillway_kafka_up") == 1, 60, "Kafka is seen")
            assert stream.poll() is None
        day.finish(FIRST, sealed=True)
        day.check(FIRST)
        day.clean()
    finally:
        kafka_broker.stop(folder)


def log(day: Day) -> str:
    path = day.folder / "log.txt"
    return path.read_text() if path.exists() else ""
