"""Flink's recipe of docs/following.md is run as it stands: each row once, whatever is killed.

`spillway relay` writes to a real broker, and Flink reads it. Flink's processes are killed without a
word between two of its checkpoints, and at random moments; so is the relay. What counts is the rows
in the files that Flink has finished.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition

from spillway.kafka.client import KafkaCluster
from spillway.relay.kept import position_topic
from tests.conftest import TopicMaker
from tests.fresh import fixed_seeds, fresh_seed
from tests.integration.day import wait_for
from tests.integration.flink import (
    CONNECTOR,
    FLINK,
    JOB_MANAGER,
    LOCK,
    TASK_MANAGER,
    Flink,
    Installed,
    flink,
    installed_in,
)
from tests.integration.test_recipes import FOLLOWING, recipes
from tests.integration.test_relay import COMPACTED, Scene, first_step

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

JOB, RESUME = (each.code for each in recipes(FOLLOWING) if each.language == "sql")
TOPIC, BOOTSTRAP, SHARED = "'results'", "localhost:9092", "file:///shared/followed"
INTERVAL, ROLLOVER, LAST = "'10 s'", "'1 min'", "0a1b2c/chk-17"
"""What stands on the page, and is another here."""
VICTIMS = ("relay", "TaskManager", "cluster") * 2


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    with installed_in(tmp_path_factory.mktemp("flink")) as found:
        yield found


class Followed:
    """What Flink makes of the topic, and the relay that fills it."""

    def __init__(self, scene: Scene, cluster: Flink, folder: Path, interval: str) -> None:
        self.scene, self.cluster, self.folder = scene, cluster, folder
        self.job = ""
        self.relay: subprocess.Popen[bytes] | None = None
        self.here = {
            TOPIC: f"'{scene.topic}'",
            BOOTSTRAP: scene.bootstrap,
            SHARED: folder.as_uri(),
            INTERVAL: f"'{interval}'",
            ROLLOVER: "'1 s'",
        }

    def submit(self) -> None:
        """The page's statements, from the last complete checkpoint if there is one."""
        last = self.last_checkpoint()
        text = JOB if last is None else f"{RESUME.replace(LAST, last)}\n{JOB}"
        for there, here in self.here.items():
            assert there in JOB
            text = text.replace(there, here)
        self.job = self.cluster.submit(text)
        self.cluster.wait_until_it_works(self.job, restored=int(last is not None))

    def last_checkpoint(self) -> str | None:
        """As the page says how to find it."""
        found = (self.folder / "checkpoints").glob("*/chk-*/_metadata")
        last = max(found, key=lambda file: int(file.parent.name.removeprefix("chk-")), default=None)
        return None if last is None else f"{last.parent.parent.name}/{last.parent.name}"

    def finished(self) -> list[dict[str, Any]]:
        """The rows of files that Flink has finished."""
        files = (self.folder / "rows").glob("part-*")
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def numbers(self) -> Counter[int]:
        return Counter(row["stock_offset"] for row in self.finished())

    def has_read_all(self) -> bool:
        """Whether Flink has all that was given, if only in files that are not finished."""
        seen: set[int] = set()
        for file in (self.folder / "rows").glob("*"):
            for line in file.read_text().splitlines(keepends=True):
                if line.endswith("}\n"):
                    seen.add(json.loads(line)["stock_offset"])
        return seen >= set(self.scene.results.given)

    def read_all(self) -> None:
        wait_for(self.has_read_all, 60, "all rows in Flink's files")

    def start_relay(self) -> None:
        assert self.relay is None
        root = self.scene.results.root
        sets = (f"warehouse.root={root}", f"kafka.bootstrap_servers={self.scene.bootstrap}")
        program = "from spillway.cli import main; main()"
        command = [sys.executable, "-c", program, *(f"--set={each}" for each in sets), "relay"]
        self.relay = subprocess.Popen(
            [*command, "--topic", self.scene.topic],
            stdout=subprocess.DEVNULL,
            env={**os.environ, "SPILLWAY_VAR": str(self.folder / "var")},
        )

    def kill_relay(self) -> None:
        if self.relay is not None:
            self.relay.kill()
            self.relay.wait()
            self.relay = None

    def check(self) -> None:
        """Each row once: by its number, and in each of its columns as the topic has it."""
        given = self.scene.given
        assert self.numbers() == given
        relayed = Counter(map(_values, self.scene.read(given.total())))
        assert Counter(map(_values, self.finished())) == relayed


def _values(row: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """All columns; times as such, since Flink writes no digits that are zero."""
    times = {name for name in row if name.endswith("_ts") or name == "committed_at"}
    at = {name: datetime.fromisoformat(row[name]) for name in times if row[name] is not None}
    return tuple(sorted((row | at).items()))


def die_inside_a_transaction(scene: Scene) -> None:
    """A relay that has sent rows, and does not commit them: they stay in the topic."""
    with scene.outlet() as outlet:
        follower, _, step = first_step(scene, outlet)
        outlet.begin()
        for rows in follower.read(step):
            outlet.send(rows)
        outlet._sender.flush()


def uncommitted(scene: Scene) -> int:
    """How many records the topic has, those of aborted transactions among them."""
    consumer = KafkaConsumer(
        bootstrap_servers=scene.bootstrap,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        consumer_timeout_ms=2_000,
    )
    consumer.assign(
        [TopicPartition(scene.topic, p) for p in consumer.partitions_for_topic(scene.topic)]
    )
    count = sum(1 for _ in consumer)
    consumer.close()
    return count


@pytest.fixture
def scene(tmp_path: Path, broker: str, topics: TopicMaker, cluster: KafkaCluster) -> Scene:
    [topic] = topics("results", partitions=4).values()
    cluster.create_topics({position_topic(topic): 1}, COMPACTED)
    return Scene(tmp_path / "w", broker, topic)


@contextlib.contextmanager
def followed(scene: Scene, installed: Installed, folder: Path, interval: str) -> Iterator[Followed]:
    with flink(installed, folder / "cluster") as cluster:
        found = Followed(scene, cluster, folder / "followed", interval)
        try:
            yield found
        finally:
            found.kill_relay()


def test_the_page_names_what_is_tested() -> None:
    page = FOLLOWING.read_text()
    assert f"apache-flink-libraries=={FLINK} " in LOCK.read_text()
    assert f"Flink {FLINK} with `{CONNECTOR.name}` {CONNECTOR.revision}" in page


def test_it_is_killed_between_two_checkpoints(
    scene: Scene, installed: Installed, tmp_path: Path
) -> None:
    """No checkpoint comes but those that the test asks for, so each kill finds rows that Flink has
    read and must read again."""
    results = scene.results
    scene.relay()  # notes that the topic is empty
    results.run_epoch([30, 20])
    die_inside_a_transaction(scene)
    with followed(scene, installed, tmp_path, "1 h") as it:
        cluster = it.cluster
        it.start_relay()
        it.submit()
        it.read_all()
        cluster.checkpoint(it.job)
        assert uncommitted(scene) == 100

        results.run_epoch([12], text='"quoted",\n é')
        it.read_all()
        cluster.kill(TASK_MANAGER)
        assert it.numbers().total() < 62
        results.compact()
        results.seal()
        results.clean(0, 9)
        cluster.start(TASK_MANAGER)
        cluster.wait_until_it_works(it.job, restored=1)
        results.run_epoch([3])
        it.read_all()
        cluster.checkpoint(it.job)

        results.clean(0, 8)
        results.finish(0)
        results.compact()
        it.read_all()
        it.kill_relay()
        results.vacuum()
        cluster.kill(JOB_MANAGER, TASK_MANAGER)
        assert it.numbers().total() < 82
        results.run_epoch([5])
        it.start_relay()
        cluster.start(JOB_MANAGER, TASK_MANAGER)
        it.submit()
        it.read_all()
        _finish(it)
        it.check()


def _finish(it: Followed) -> None:
    """Checkpoints until no row is in a file that is not finished."""

    def is_finished() -> bool:
        it.cluster.checkpoint(it.job)
        return it.numbers().total() >= len(it.scene.results.given)

    wait_for(is_finished, 60, "finished files", every_s=1)
    it.cluster.checkpoint(it.job)


SEEDS = [1] if fixed_seeds() else [1, fresh_seed()]


@pytest.mark.parametrize("seed", SEEDS)
def test_it_is_killed_at_random_moments(
    scene: Scene, installed: Installed, tmp_path: Path, seed: int
) -> None:
    """While rows come all the time, and checkpoints every second."""
    rng = random.Random(seed)
    with followed(scene, installed, tmp_path, "1 s") as it:
        it.start_relay()
        it.submit()
        for whom in rng.sample(VICTIMS, len(VICTIMS)):
            until = time.monotonic() + rng.uniform(0.5, 4)
            while time.monotonic() < until:
                scene.results.run_epoch([rng.randrange(1, 200)])
                time.sleep(rng.uniform(0, 0.2))
            print(f"killed: {whom}")
            if whom == "relay":
                it.kill_relay()
                it.start_relay()
            elif whom == "TaskManager":
                it.cluster.kill(TASK_MANAGER)
                it.cluster.start(TASK_MANAGER)
                it.cluster.wait_until_it_works(it.job)
            else:
                it.cluster.kill(JOB_MANAGER, TASK_MANAGER)
                it.cluster.start(JOB_MANAGER, TASK_MANAGER)
                it.submit()
        it.read_all()
        _finish(it)
        it.check()
