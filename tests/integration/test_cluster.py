"""A standalone cluster on loopback: two hosts (different names and state roots), one is lost."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from spillway.kafka.broker import free_port
from tests.integration.day import STREAMS, Day, messages, running, wait_for
from tests.integration.standalone import Cluster, standalone

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

FIRST = "2026-01-05"


@pytest.fixture
def spark_cluster(tmp_path: Path, spark_env: dict[str, str]) -> Iterator[Cluster]:
    with standalone(tmp_path / "cluster", spark_env, "127.0.0.2", "127.0.0.3") as cluster:
        yield cluster


@pytest.fixture
def day(
    spark_cluster: Cluster,
    tmp_path: Path,
    broker: str,
    topics: Callable[..., dict[str, str]],
) -> Day:
    return Day(
        tmp_path / "day",
        broker,
        topics(*STREAMS, partitions=2),
        spark_cluster.env,
        master=spark_cluster.url,
        budget_bytes=128 << 10,
        max_rows=1_000,
        extra={"RECOVERY__WAIT_S": "5", "SPARK__UI_PORT": str(free_port())},
    )


@pytest.mark.soak  # in `make test` hosts come and go while groups move: `test_relocation_kills`
def test_a_host_is_lost_and_another_comes(spark_cluster: Cluster, day: Day) -> None:
    day.produce(messages(1, 6_000, keys=1_500))
    with running(day, "stream", "--session", FIRST) as stream:
        wait_for(lambda: read(day) >= 6_000, 120, "the first rows are joined")
        hosts = {s["host"] for e in day.journal.epochs() for s in e["slots"]}
        assert hosts == {"127.0.0.2", "127.0.0.3"}
        placed = [tuple(s["host"] for s in e["slots"]) for e in day.journal.epochs()]
        assert len(set(placed)) == 1, "slots moved though no host was lost"
        assert spark_cluster.shown(int(day.extra["SPARK__UI_PORT"]))[1] == [], "its secret is seen"
        spark_cluster.lose("127.0.0.3")
        day.produce(messages(2, 3_000, keys=1_500))
        wait_for(lambda: read(day) >= 9_000, 120, "the surviving host goes on")
        assert any(e.get("restored_slots") for e in day.entries())
        spark_cluster.start_worker("127.0.0.4")
        time.sleep(3)
        day.produce(messages(3, 2_000, keys=1_500))
        wait_for(lambda: read(day) >= 11_000, 120, "rows go on")
        stream.send_signal(signal.SIGTERM)
        assert stream.wait(60) == 0
    day.finish(FIRST)
    assert day.check(FIRST)["cleanup"] > 0


def read(day: Day) -> int:
    """Rows that the journal has read."""
    with contextlib.suppress(FileNotFoundError):
        return sum(sum(count["rows"]) for e in day.journal.epochs() for count in e["read"])
    return 0


@pytest.mark.soak  # in `make test` this happens to groups that move, too
def test_a_host_is_lost_between_a_batch_s_plan_and_its_job(
    spark_cluster: Cluster, day: Day
) -> None:
    """Spark would hold the batch's tasks back for the executor that it had planned them for."""
    day.produce(messages(1, 4_000, keys=1_500))
    # The first executors are there when the second batch is planned.
    with running(day, "stream", "--session", FIRST, FAILPOINT="before-job:2:stop") as stream:
        frozen = psutil.Process(stream.pid)
        wait_for(lambda: frozen.status() == psutil.STATUS_STOPPED, 120, "a planned batch")
        spark_cluster.lose("127.0.0.3")
        spark_cluster.start_worker("127.0.0.4")
        wait_for(lambda: "Asked to launch" in spark_cluster.log("127.0.0.4"), 60, "an executor")
        stream.send_signal(signal.SIGCONT)
        wait_for(lambda: read(day) >= 4_000, 120, "the batch is joined")
        stream.send_signal(signal.SIGTERM)
        assert stream.wait(60) == 0
    assert any(e.get("restored_slots") for e in day.entries())
    day.finish(FIRST)
    day.check(FIRST)
