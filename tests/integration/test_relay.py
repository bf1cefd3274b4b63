"""The relay on a real broker: what a consumer of committed rows sees is each row, once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from spillway.following.position import next_step
from spillway.following.rows import Follower
from spillway.kafka.client import KafkaCluster, TopicMissing
from spillway.kafka.options import python_options
from spillway.produce.keys import partitions_of
from spillway.produce.transactions import ProducerFenced
from spillway.relay import run
from spillway.relay.kept import RelayPosition, RelayRefused, position_topic
from spillway.relay.outlet import Outlet
from spillway.relay.run import Telling, deliver, relay
from spillway.tables import Warehouse
from tests.conftest import TopicMaker
from tests.followed import IDENTITY, Followed

pytestmark = pytest.mark.server

COMPACTED = {"cleanup.policy": "compact"}


class Scene:
    """A warehouse and the topic that its results go to."""

    def __init__(
        self,
        root: Path,
        bootstrap: str,
        topic: str,
        options: Mapping[str, str] | None = None,
        reader: Mapping[str, str] | None = None,
    ) -> None:
        """`options`: the relay's, `reader`: those of who reads the topic, by the Java client's
        names."""
        self.results = Followed(root)
        self.bootstrap = bootstrap
        self.topic = topic
        self.options = options or {}
        self.reader = python_options(reader or {}, "consumer")

    def outlet(self, create: int | None = None) -> Outlet:
        return Outlet(self.bootstrap, self.options, self.topic, ["symbol"], IDENTITY, create, -1)

    def follower(self) -> Follower:
        return Follower(Warehouse(str(self.results.root), fsync=False), IDENTITY)

    def relay(self, **given: Any) -> None:
        telling = given.pop("telling", Telling())
        given = {"once": True, "from_now": False, "stop": threading.Event()} | given
        relay(self.follower(), self.outlet, "w", telling=telling, fits=lambda: None, **given)

    def read(self, wanted: int | None = None) -> list[dict[str, Any]]:
        """The committed rows of the topic that are the relay's."""
        consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            enable_auto_commit=False,
            isolation_level="read_committed",
            fetch_max_wait_ms=20,
            max_partition_fetch_bytes=4_000_000,
            **self.reader,
        )
        places = [TopicPartition(self.topic, p) for p in consumer.partitions_for_topic(self.topic)]
        consumer.assign(places)
        consumer.seek_to_beginning()
        found: list[dict[str, Any]] = []
        deadline = time.monotonic() + 20
        while True:
            ends = consumer.end_offsets(places)
            if all(consumer.position(place) >= ends[place] for place in places) and (
                wanted is None or len(found) >= wanted
            ):
                break
            assert time.monotonic() < deadline, len(found)
            for place, records in consumer.poll(timeout_ms=100).items():
                for record in records:
                    if record.key != b"foreign":
                        row = json.loads(record.value)
                        assert record.key == row["symbol"].encode()
                        [at] = partitions_of(pa.array([row["symbol"]]), len(places)).tolist()
                        assert place.partition == at
                        found.append(row)
        consumer.close()
        return found

    def numbers(self, wanted: int | None = None) -> Counter[int]:
        return Counter(row["stock_offset"] for row in self.read(wanted))

    @property
    def given(self) -> Counter[int]:
        return Counter(self.results.given)


@pytest.fixture
def scene(tmp_path: Path, broker: str, topics: TopicMaker, cluster: KafkaCluster) -> Scene:
    [topic] = topics("relayed", partitions=3).values()
    cluster.create_topics({position_topic(topic): 1}, COMPACTED)
    return Scene(tmp_path / "w", broker, topic)


def test_a_day_its_cleanup_and_what_upkeep_does_between(scene: Scene) -> None:
    """Other programs write into the topic, too, and start after start goes on."""
    results = scene.results
    results.run_epoch([5, 3])
    results.run_epoch([4])
    lines: list[run.Relayed] = []
    scene.relay(telling=Telling(on_step=lines.append))
    assert scene.numbers(12) == scene.given
    assert [(line.rows, line.total, line.step.upto) for line in lines] == [(12, 12, 1)]
    foreign = KafkaProducer(bootstrap_servers=scene.bootstrap)
    for partition in range(3):
        foreign.send(scene.topic, b"no JSON", b"foreign", partition=partition)
    foreign.close()
    results.run_epoch([2])
    results.compact()
    results.seal()
    results.clean(0, 7)
    scene.relay()  # a cleanup under way is not there yet
    assert scene.numbers(14) == scene.given
    results.clean(0, 4)
    results.finish(0)
    results.compact()
    results.checkpoint()
    results.vacuum()
    results.run_epoch([1])
    scene.relay()
    scene.relay()
    rows = scene.read(26)
    assert Counter(row["stock_offset"] for row in rows) == scene.given
    [row] = [row for row in rows if row["stock_offset"] == 3]
    assert row == {
        **dict.fromkeys(results.warehouse.table("results").definition.schema.names),
        **dict.fromkeys(IDENTITY, 0),
        "symbol": "é",
        "stock_ts": "2026-01-05T14:30:00.000003Z",
        "stock_price": 0.375,
        "stock_offset": 3,
        "session_date": "2026-01-05",
        "epoch": 0,
        "phase": "run-time",
        "committed_at": "2026-01-05T14:30:00.000003Z",
    }


def first_step(scene: Scene, outlet: Outlet) -> tuple[Follower, RelayPosition, Any]:
    follower = scene.follower()
    kept = outlet.kept or RelayPosition(warehouse="w", topic=outlet.topic_id)
    step = next_step(kept.position, follower.look())
    assert step is not None
    return follower, kept, step


def test_a_relay_that_dies_inside_a_transaction_and_one_that_does_not_hear_of_its_commit(
    scene: Scene,
) -> None:
    scene.relay()
    scene.results.run_epoch([6])
    with scene.outlet() as outlet:
        follower, _, step = first_step(scene, outlet)
        outlet.begin()
        for rows in follower.read(step):
            outlet.send(rows)
        outlet._sender.flush()  # in the topic, and of nobody
    with scene.outlet() as outlet:
        assert (outlet.kept, outlet.is_empty) == (
            RelayPosition(warehouse="w", topic=outlet.topic_id),
            False,
        )
        deliver(*_order(scene, outlet))
    with scene.outlet() as outlet:  # of which the one before heard nothing
        assert outlet.kept is not None
        assert (outlet.kept.rows, outlet.kept.position.epoch) == (6, 0)
    scene.results.run_epoch([3])
    scene.relay()
    assert scene.numbers(9) == scene.given


def test_a_relay_that_dies_in_its_first_transaction(scene: Scene) -> None:
    """Its records are in the topic, of nobody: another relay may begin there."""
    scene.results.run_epoch([6])
    with scene.outlet() as outlet:
        assert outlet.is_empty
        follower, _, step = first_step(scene, outlet)
        outlet.begin()
        for rows in follower.read(step):
            outlet.send(rows)
        outlet._sender.flush()
    with scene.outlet() as outlet:
        assert (outlet.kept, outlet.is_empty) == (None, True)
    scene.relay()
    assert scene.numbers(6) == scene.given


def _order(scene: Scene, outlet: Outlet) -> tuple[Follower, Outlet, RelayPosition, Any]:
    follower, kept, step = first_step(scene, outlet)
    return follower, outlet, kept, step


def _go_on(outlet: Outlet, rows: list[pa.Table], kept: RelayPosition) -> None:
    for some in rows:
        outlet.send(some)
    outlet.commit(kept)


@pytest.mark.parametrize("at", ["before it sends", "before it commits"])
def test_a_second_relay_takes_over(scene: Scene, at: str) -> None:
    scene.results.run_epoch([6])
    with scene.outlet() as first:
        follower, kept, step = first_step(scene, first)
        first.begin()
        rows = list(follower.read(step))
        if at == "before it commits":
            for some in rows:
                first.send(some)
            first._sender.flush()
        with scene.outlet() as second:
            deliver(*_order(scene, second))
            left = rows if at == "before it sends" else []
            with pytest.raises(ProducerFenced, match=r"has begun, and goes on.*Run one at a time"):
                _go_on(first, left, kept)
            first.abort()
            # And it has not taken the second one's place.
            scene.results.run_epoch([2])
            deliver(*_order(scene, second))
    assert scene.numbers(8) == scene.given


def test_a_record_that_the_topic_does_not_take(
    tmp_path: Path, broker: str, topics: TopicMaker, cluster: KafkaCluster
) -> None:
    configs = {"max.message.bytes": "20000"}
    [topic] = topics("narrow", partitions=1, configs=configs).values()
    cluster.create_topics({position_topic(topic): 1}, COMPACTED)
    scene = Scene(tmp_path / "w", broker, topic)
    scene.results.run_epoch([50])
    # Each fits, and no two of them fit into one batch.
    scene.results.run_epoch([5], text="".join(chr(33 + k % 90) for k in range(12_000)))
    scene.relay()
    assert scene.numbers(55) == scene.given
    scene.results.run_epoch([2], text="x" * 30_000)
    with pytest.raises(RelayRefused, match=r"takes 19,900 .*'stock_offset': 56.* Raise max.mess"):
        scene.relay()
    assert len(scene.read()) == 55


def test_what_is_not_gone_on_with(
    scene: Scene, cluster: KafkaCluster, topics: TopicMaker, tmp_path: Path
) -> None:
    scene.results.run_epoch([3])
    scene.relay()
    with pytest.raises(RelayRefused, match=r"results of another warehouse \(w; this one is v\)"):
        relay(
            scene.follower(),
            scene.outlet,
            "v",
            once=True,
            from_now=False,
            stop=threading.Event(),
            telling=Telling(),
            fits=lambda: None,
        )
    cluster.delete_topics([scene.topic])
    cluster.create_topics({scene.topic: 3})
    with pytest.raises(RelayRefused, match="was deleted and made again"):
        scene.relay()
    # The position is lost, and the topic has rows.
    [topic] = topics("full", partitions=1).values()
    producer = KafkaProducer(bootstrap_servers=scene.bootstrap)
    producer.send(topic, b"no JSON", b"foreign").get(10)
    producer.close()
    cluster.create_topics({position_topic(topic): 1}, COMPACTED)
    scene.topic = topic
    with pytest.raises(RelayRefused, match=r"all would come again.*--from-now"):
        scene.relay()
    scene.relay(from_now=True)
    scene.results.run_epoch([2])
    scene.relay(from_now=True)
    assert scene.numbers(2) == Counter([3, 4])
    # A topic that keeps no position for ever.
    [topic] = topics("fleeting", partitions=1).values()
    scene.topic = topic
    cluster.create_topics({position_topic(topic): 1})
    with pytest.raises(RelayRefused, match=r"cleanup.policy=delete: .* Set cleanup.policy=compact"):
        scene.relay()


def test_the_command_runs_until_it_is_stopped(
    scene: Scene, broker: str, cluster: KafkaCluster, tmp_path: Path
) -> None:
    scene.topic = f"{scene.topic}-made"
    sets = (f"warehouse.root={scene.results.root}", f"kafka.bootstrap_servers={broker}")
    command = [
        sys.executable,
        "-c",
        "from spillway.cli import main; main()",
        *(f"--set={each}" for each in sets),
        "relay",
    ]
    scene.results.run_epoch([4])
    with pytest.raises(TopicMissing, match="or let the relay do it: --create PARTITIONS"):
        scene.outlet()
    going = subprocess.Popen(
        [*command, "--topic", scene.topic, "--create", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SPILLWAY_VAR": str(tmp_path / "var")},
    )
    try:
        _wait(lambda: position_topic(scene.topic) in cluster.existing_topics())
        assert scene.numbers(4) == scene.given
        scene.results.run_epoch([3])
        assert scene.numbers(7) == scene.given
    finally:
        going.send_signal(signal.SIGTERM)
        out, err = going.communicate(timeout=30)
    assert going.returncode == 0, err
    assert out.splitlines()[0] == f"topic {scene.topic}: begins with the first result"
    assert out.splitlines()[1].startswith("epoch 0: 4 rows | 4 in all | ")
    assert out.splitlines()[2].startswith("epoch 1: 3 rows | 7 in all | ")


def _wait(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.1)
