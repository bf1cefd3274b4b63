"""Days of the five-way tree on real Kafka and Spark, compared with a brute-force join."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.tree_day import STREAMS, TreeDay, tree_messages

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

SESSION = "2026-01-05"


@pytest.fixture
def day(
    tmp_path: Path, broker: str, topics: Callable[..., dict[str, str]], spark_env: dict[str, str]
) -> Iterator[TreeDay]:
    made = TreeDay(
        tmp_path / "tree",
        broker,
        topics(*STREAMS, partitions=2),
        spark_env,
        budget_bytes=160 << 10,
        groups=16,
        max_rows=2_000,
    )
    yield made
    made.clean()


def test_a_day_with_too_little_memory(day: TreeDay) -> None:
    day.produce(tree_messages(1, 8_000, keys=900))
    day.ok("stream", "--session", SESSION, "--available-now")
    day.ok("seal", "--session", SESSION)
    day.ok("stream", "--until-sealed", SESSION)
    cut = {cut["operator"] for e in day.journal.epochs() for cut in e["cuts"]}
    assert cut == {0, 1, 2}, "each join was spilled"
    day.ok("cleanup", "--session", SESSION)
    phases = day.check(SESSION)
    assert phases["run-time"] > 0
    assert phases["cleanup"] > 0
