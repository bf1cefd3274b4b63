"""A query that is started again and again, on a running Spark: its threads end with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spillway.stream import supervised
from spillway.stream.session import spark_session
from spillway.stream.supervised import EpochHooks, SupervisedQuery
from tests.integration.day import wait_for

pytestmark = pytest.mark.server
STARTS = 6


@pytest.fixture
def spark(spark_env: dict[str, str]) -> Iterator[Any]:
    session = spark_session("local[1]", "test query threads", streaming=True)
    yield session
    session.stop()


def test_a_query_s_callback_thread_ends_with_it(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: no end of py4j's idle connections. It keeps one, and a thread, for every start."""
    table = str(tmp_path / "table")
    spark.range(10).write.parquet(table)
    stream = spark.readStream.schema("id long")
    monkeypatch.setattr(supervised, "stream_rows", lambda *_: stream.parquet(table))
    monkeypatch.setattr(supervised, "batch_end", lambda *_: {})
    served: list[threading.Thread] = []

    def epoch(_: Any) -> bool:
        served.append(threading.current_thread())
        return True

    hooks = EpochHooks(epoch, *[lambda: False] * 3)
    folder = tmp_path / "checkpoints" / "w" / "1"
    query = SupervisedQuery(spark, {}, folder, hooks, trigger_s=0, available_now=False)
    for number in range(STARTS):
        query.start({})
        wait_for(lambda n=number: len(served) > n, 60, "a batch")
        query.stop()
        assert query.failure is None
    until = time.monotonic() + 10
    while sum(each.is_alive() for each in served) > 1 and time.monotonic() < until:
        time.sleep(0.1)
    assert len(set(served)) == STARTS, "each start has a thread of its own"
    assert [each.is_alive() for each in served] == [False] * (STARTS - 1) + [True]
