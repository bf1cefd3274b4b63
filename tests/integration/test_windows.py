"""Days of a query with windows on the real parts: verified, and equal to a brute-force join."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.day import STREAMS
from tests.integration.windowed_day import WindowedDay, timed_messages

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

SESSION = "2026-01-05"


@pytest.fixture
def day(
    tmp_path: Path,
    broker: str,
    topics: Callable[..., dict[str, str]],
    spark_env: dict[str, str],
) -> Iterator[WindowedDay]:
    """A day with too little memory, on fresh topics."""
    names = topics(*STREAMS, partitions=2)
    made = WindowedDay(
        tmp_path / "day",
        broker,
        names,
        spark_env,
        budget_bytes=256 << 10,
        max_rows=1_500,
        extra={"SPILL__THRESHOLD": "0.25"},
    )
    yield made
    made.clean()


def test_a_windowed_day_with_too_little_memory(day: WindowedDay) -> None:
    """Groups spill, state is lost and made again, rows are late: exact, and proved so."""
    day.produce(timed_messages(1, 6_000, keys=60))
    day.ok("stream", "--session", SESSION, "--available-now")
    for folder in day.state.rglob("slot-0"):
        for file in folder.iterdir():
            file.unlink()
    day.produce(timed_messages(2, 6_000, keys=60, begin_s=300))
    day.finish(SESSION)
    phases = day.check(SESSION)
    assert phases["run-time"] > 0
    assert phases["cleanup"] > 0, "nothing was spilled: the test shows nothing"
    assert phases["late"] > 20
    epochs = day.journal.epochs()
    assert any(epoch["restored_slots"] for epoch in epochs)
    assert sum(slot["expired_rows"] for epoch in epochs for slot in epoch["slots"]) > 1_000
