"""The embedded broker, for real: start, stop, restart, and what a cluster says of its topics."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import psutil
import pytest
from kafka import KafkaProducer

from spillway.kafka import broker
from spillway.kafka.backlog import BacklogReader
from spillway.kafka.broker import BrokerError
from spillway.kafka.client import KafkaCluster, KafkaUnavailable, TopicProblem, cluster
from spillway.produce.send import Sender

pytestmark = pytest.mark.server


def group_of(leader: int) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == leader and process.status() != "zombie":
                found.append(process.pid)
        except (psutil.NoSuchProcess, ProcessLookupError):
            continue
    return found


def test_a_life_of_a_broker(jars, tmp_path):
    port, controller = broker.free_port(), broker.free_port()
    first = broker.start(tmp_path, port, controller_port=controller)
    try:
        assert first.running
        assert first.healthy
        assert first.bootstrap == f"127.0.0.1:{port}"
        assert os.getpgid(first.pid) == first.pid != os.getpgid(0)
        listening = {
            c.laddr.ip for c in psutil.Process(first.pid).net_connections() if c.status == "LISTEN"
        }
        assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}
        # A second start is a no-op, also from another process and when told the same port.
        assert broker.start(tmp_path, port).pid == first.pid
        with cluster(first.bootstrap) as view:
            assert view.create_topics({"kept": 3}) == ["kept"]
            with pytest.raises(BrokerError, match="runs already, on port"):
                broker.start(tmp_path, broker.free_port())
        # Another folder's broker on this port is refused, and is told who has it.
        with pytest.raises(BrokerError, match=rf"port {port} .* by process {first.pid} \(.*java"):
            broker.start(tmp_path / "other", port)
        assert broker.stop(tmp_path) is True
        assert group_of(first.pid) == []
        assert not broker.status(tmp_path).running
        assert broker.stop(tmp_path) is False
        # What was written is still there after a kill, on another port.
        other = broker.free_port()
        again = broker.start(tmp_path, other)
        os.kill(again.pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while broker.status(tmp_path).running and time.monotonic() < deadline:
            time.sleep(0.05)
        again = broker.start(tmp_path, other)
        assert again.cluster_id == first.cluster_id
        with cluster(again.bootstrap) as view:
            assert view.topics(["kept"])[0].partitions == 3
    finally:
        broker.stop(tmp_path)
    assert group_of(again.pid) == []


def test_a_broker_outlives_the_command_that_started_it(jars, tmp_path):
    port = broker.free_port()
    script = (
        "import sys; from pathlib import Path; from spillway.kafka import broker; "
        "print(broker.start(Path(sys.argv[1]), int(sys.argv[2]), "
        "controller_port=int(sys.argv[3])).pid)"
    )
    arguments = [str(tmp_path), str(port), str(broker.free_port())]
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True
    )
    try:
        status = broker.status(tmp_path)
        assert status.healthy
        assert status.pid == int(done.stdout)
        assert done.stderr == ""
    finally:
        broker.stop(tmp_path)


def test_a_broker_that_cannot_start_shows_its_log(jars, tmp_path):
    ports = broker.free_port(), broker.free_port()
    broker.start(tmp_path, ports[0], controller_port=ports[1])
    broker.stop(tmp_path)
    (tmp_path / "data" / "meta.properties").write_text("version=1\nnode.id=99\ncluster.id=other\n")
    with pytest.raises(BrokerError, match=r"ended while it started(.|\n)*node.id"):
        broker.start(tmp_path, ports[0])
    assert not broker.status(tmp_path).running


def test_no_broker_is_an_error_that_says_what_to_do():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    with pytest.raises(KafkaUnavailable, match="spillway kafka start"):
        KafkaCluster(address, timeout_s=1.0)
    with pytest.raises(KafkaUnavailable, match="spillway kafka start"):
        Sender(address, timeout_s=1.0)


def test_offsets_ids_and_settings(cluster, topics, broker):
    names = topics("a", "b", partitions=3, configs={"retention.ms": "1000000"})
    a, b = names["a"], names["b"]
    with pytest.raises(TopicProblem, match="no topic 'absent'"):
        cluster.end_offsets([a, "absent"])
    ids = {t.name: t.id for t in cluster.topics([b, a])}
    assert len(set(ids.values())) == 2
    producer = KafkaProducer(bootstrap_servers=broker)
    for n in range(10):
        producer.send(a, b"x", partition=n % 2, timestamp_ms=1000 * n)
    producer.flush()
    producer.close()
    assert cluster.end_offsets([a, b]) == {a: [5, 5, 0], b: [0, 0, 0]}
    assert cluster.beginning_offsets([a]) == {a: [0, 0, 0]}
    # The first record of that time or later; the end where there is none.
    assert cluster.offsets_for_time([a], 4500) == {a: [3, 2, 0]}
    assert cluster.offsets_for_time([a], 9000) == {a: [5, 4, 0]}
    assert cluster.offsets_for_time([a], 9001) == {a: [5, 5, 0]}
    assert cluster.offsets_for_time([a], 0) == {a: [0, 0, 0]}
    settings = cluster.topic_configs([a])[a]
    assert settings["retention.ms"] == "1000000"
    assert settings["cleanup.policy"] == "delete"
    cluster.add_partitions(b, 5)
    assert cluster.topics([b])[0].partitions == 5
    with pytest.raises(TopicProblem, match="exists with 5 partitions, not 3"):
        cluster.create_topics({b: 3})
    cluster.delete_topics([b])
    assert cluster.create_topics({b: 1}) == [b]
    assert cluster.topics([b])[0].id != ids[b]
    assert len(cluster.cluster_id()) == 22


def test_the_end_under_read_committed_is_the_last_stable_offset(cluster, topics, broker):
    (name,) = topics("t", partitions=1).values()
    plain = KafkaProducer(bootstrap_servers=broker)
    open_one = KafkaProducer(bootstrap_servers=broker, transactional_id=f"{name}-tx")
    open_one.init_transactions()
    plain.send(name, b"before").get(10)
    open_one.begin_transaction()
    open_one.send(name, b"open").get(10)
    plain.send(name, b"after").get(10)
    assert cluster.end_offsets([name]) == {name: [1]}
    assert cluster.end_offsets([name], read_committed=False) == {name: [3]}
    open_one.abort_transaction()
    # The abort's control record takes an offset of its own; it is written after the answer.
    deadline = time.monotonic() + 10
    while cluster.end_offsets([name]) != {name: [4]}:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    open_one.close()
    plain.close()


def test_what_waits_and_how_old_it_is(topics, broker):
    names = topics("a", "b", "idle", partitions=3)
    a, b, idle = names["a"], names["b"], names["idle"]
    producer = KafkaProducer(bootstrap_servers=broker, max_request_size=1 << 20)
    for number in range(30):  # ten a partition, a second apart
        producer.send(a, b"v", partition=number % 3, timestamp_ms=1_000_000 + 1_000 * (number // 3))
    large = b"x" * 300_000  # no batch fits the size of a fetch, every one must come all the same
    for partition in range(3):
        producer.send(b, large, partition=partition, timestamp_ms=5_000 - partition)
    producer.close()
    reader = BacklogReader(broker, {})
    try:
        found = reader.look({a: [3, 7, 10], b: [0, 0, 0], idle: [0, 0, 0], "absent": [0]})
        assert found.ends == {a: [10, 10, 10], b: [1, 1, 1], idle: [0, 0, 0]}
        assert found.oldest_ms == {a: 1_003_000, b: 4_998}
        # Again, further on, on the same connection; a partition that is new counts from its start.
        found = reader.look({a: [10, 10], b: [1, 1, 1], idle: []})
        assert found.oldest_ms == {a: 1_000_000}
        assert reader.look({a: [10, 10, 10]}).oldest_ms == {}
    finally:
        reader.close()


def test_what_waits_under_transactions(topics, broker):
    topic = topics("t", partitions=1)["t"]
    producer = KafkaProducer(bootstrap_servers=broker, transactional_id=topic)
    producer.init_transactions()
    for stamp, commits in ((1_000, True), (2_000, False), (3_000, True), (4_000, False)):
        producer.begin_transaction()
        producer.send(topic, b"v", timestamp_ms=stamp).get(10)
        (producer.commit_transaction if commits else producer.abort_transaction)()
    producer.begin_transaction()
    producer.send(topic, b"v", timestamp_ms=5_000)
    producer.flush()
    reader = BacklogReader(broker, {})
    try:
        # Each took a row and a marker, written after the answer. The open one is not there yet.
        deadline = time.monotonic() + 10
        while reader.look({topic: [0]}).ends != {topic: [8]}:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        oldest = [reader.look({topic: [at]}).oldest_ms.get(topic) for at in range(9)]
        # From the aborted ones on it is the next committed row; after the last there is none.
        assert oldest == [1_000, 3_000, 3_000, 3_000, 3_000, None, None, None, None]
        producer.commit_transaction()
        while reader.look({topic: [6]}).oldest_ms != {topic: 5_000}:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        reader.close()
        producer.close()


def test_no_broker_tells_no_backlog():
    reader = BacklogReader(f"127.0.0.1:{broker.free_port()}", {})
    began, threads = time.monotonic(), threading.active_count()
    for _ in range(2):
        with pytest.raises(KafkaUnavailable, match="nothing listens"):
            reader.look({"stock": [0]})
    reader.close()
    assert time.monotonic() - began < 5
    assert threading.active_count() == threads, "a try leaves a thread behind"
