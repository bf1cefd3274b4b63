"""A day on a Kafka of three brokers, of which one after the other goes away and comes back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spillway.kafka.client import cluster
from tests.integration.brokers import Brokers, brokers
from tests.integration.day import STREAMS, Day, chained, messages, running, wait_for

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

DAY = "2026-01-05"
ROWS = 800


@pytest.fixture(scope="module")
def three(jars: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with brokers(tmp_path_factory.mktemp("brokers")) as found:
        yield found


@pytest.mark.soak  # in `make test` the only broker goes away, in `test_inputs`
def test_brokers_go_away_one_after_the_other(
    three: Brokers, tmp_path: Path, spark_env: dict[str, str]
) -> None:
    """One is killed and comes back, leaders move, the others are restarted in turn, topics get a
    partition more: the stream goes on through all of it, and the day is exact."""
    names = {stream: f"{stream}-of-three" for stream in STREAMS}
    topics = tuple(names.values())
    with cluster(three.bootstrap) as view:
        view.create_topics(dict.fromkeys(topics, 2))
    day = Day(tmp_path / "day", three.bootstrap, names, spark_env, budget_bytes=128 << 10)
    day.max_rows = 1_000
    day.client = {"acks": "all", "retries": 20}
    seeds = iter(range(50, 99))

    def read() -> int:
        epochs = day.journal.epochs()
        return sum(end for ends in epochs[-1]["end"].values() for end in ends) if epochs else 0

    sent = 0

    def produce_and_wait(what: str) -> None:
        nonlocal sent
        day.produce(messages(next(seeds), ROWS, keys=200, malformed=0))
        sent += ROWS
        wait_for(lambda: read() >= sent or stream.poll() is not None, 90, what)
        assert stream.poll() is None, f"{what}: {day.tail()}"

    commands = (
        ("stream", "--session", DAY, "--until-sealed", DAY),
        ("cleanup", "--session", DAY),
        ("verify", "--session", DAY),
    )
    try:
        with running(day, *chained(*commands)) as stream:
            produce_and_wait("rows of a whole cluster")
            led = three.leader(names["stock"], 0)
            three.kill(led)
            killed = time.monotonic()
            produce_and_wait("rows while a broker is dead")
            assert time.monotonic() - killed < 45, "a dead leader was asked for a minute"
            assert three.leader(names["stock"], 0) != led
            three.start(led)
            three.wait(topics=topics)
            for node in set(three.ports) - {led}:
                three.stop(node)
                produce_and_wait(f"rows while broker {node} restarts")
                three.start(node)
                three.wait(topics=topics)
            with cluster(three.bootstrap) as view:
                for name in topics:
                    view.add_partitions(name, 3)
            day.partitions = 3
            produce_and_wait("rows of new partitions")
            day.ok("seal", "--session", DAY)
            assert stream.wait(180) == 0, day.tail()
        day.client = {}
        assert day.check(DAY)["cleanup"] > 0
    finally:
        day.clean()
