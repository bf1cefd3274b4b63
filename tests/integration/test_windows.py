"""Days of a query with windows on the real parts: verified, and equal to a brute-force join."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.day import STREAMS, chained, end_group
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


def test_windows_reach_over_midnight(day: WindowedDay) -> None:
    """The second of two days without a pause begins with what the first carries over. Its driver
    dies then, and a slot's state is lost."""
    first, second = "2026-01-05", "2026-01-06"
    into_the_next(day, first, second, rows=2_000, keys=40)
    day.finish(second)
    phases = [day.check(session) for session in (first, second)]
    assert all(each["run-time"] > 0 for each in phases)
    assert sum(each["cleanup"] for each in phases) > 0, "nothing was spilled: that shows nothing"
    assert any(epoch["restored_slots"] for epoch in day.journal.epochs())
    assert carried(day) == 1


@pytest.mark.soak
def test_three_days_without_a_pause(day: WindowedDay) -> None:
    """Windows reach over midnight, twice, under kills. Groups spill, state is lost and made again,
    rows are late: each day is proved, and no result is lost, or in two of them."""
    first, second, third = "2026-01-05", "2026-01-06", "2026-01-07"
    into_the_next(day, first, second, rows=4_000, keys=60)
    day.produce(timed_messages(5, 2_000, keys=60, begin_s=400))
    seal = ("seal", "--session", second)
    day.ok(*chained(("stream", "--session", second, "--available-now"), seal))
    day.produce(timed_messages(6, 2_000, keys=60, begin_s=500))
    killed_after(day, lambda: day.is_sealed(second), "stream", "--session", second)
    day.produce(timed_messages(7, 2_000, keys=60, begin_s=600))
    commands = (
        ("seal", "--session", third),
        ("stream", "--until-sealed", third),
        ("cleanup", "--session", third),
        ("verify", "--session", third),
    )
    day.finish(second, sealed=True, first=commands, timeout_s=400)
    phases = [day.check(session) for session in (first, second, third)]
    assert all(each["run-time"] > 0 for each in phases)
    assert sum(each["cleanup"] for each in phases) > 0, "nothing was spilled: that shows nothing"
    assert sum(each["late"] for each in phases) > 20
    epochs = day.journal.epochs()
    assert any(epoch["restored_slots"] for epoch in epochs)
    assert sum(slot["expired_rows"] for epoch in epochs for slot in epoch["slots"]) > 1_000
    assert carried(day) == 2


# In `make test` random days with windows leave lost state to cleanup.
@pytest.mark.soak
def test_lost_state_of_windows_is_left_to_cleanup(day: WindowedDay) -> None:
    """With `recovery.mode = defer`, with rows that had expired before, and late ones."""
    day.extra |= {"RECOVERY__MODE": "defer"}
    for number in range(4):
        day.produce(timed_messages(30 + number, 2_000, keys=60, begin_s=100 * number))
        day.ok("stream", "--session", SESSION, "--available-now")
        lose_a_slot(day, number % 2)
    day.finish(SESSION)
    phases = day.check(SESSION)
    assert phases["run-time"] > 0
    assert phases["cleanup"] > 0
    epochs = day.journal.epochs()
    assert sum(bool(epoch["deferred"]) for epoch in epochs) == 4
    assert not any(epoch["restored_slots"] for epoch in epochs)
    assert sum(slot["expired_rows"] for epoch in epochs for slot in epoch["slots"]) > 100


def into_the_next(day: WindowedDay, first: str, second: str, *, rows: int, keys: int) -> None:
    """The first day to its proof, and the next one until it has what is carried over: its driver
    is killed, and a slot's state is lost."""
    day.extra |= {"SESSION__CALENDAR": "24/7", "SESSION__CARRY": "true"}
    day.produce(timed_messages(3, rows, keys=keys))
    seal = ("seal", "--session", first)
    day.ok(*chained(("stream", "--session", first, "--available-now"), seal))
    # These are read with the end of the first day.
    day.produce(timed_messages(4, rows, keys=keys, begin_s=200))
    day.finish(first, sealed=True)
    killed_after(day, lambda: carried(day) > 0, "stream", "--session", second)
    lose_a_slot(day)


def lose_a_slot(day: WindowedDay, slot: int = 0) -> None:
    """The state of a slot is gone."""
    for folder in day.state.rglob(f"slot-{slot}"):
        for file in folder.iterdir():
            file.unlink()


def carried(day: WindowedDay) -> int:
    """How often rows were carried over."""
    return sum(epoch["carried_rows"] > 0 for epoch in day.journal.epochs())


def killed_after(day: WindowedDay, so_far: Callable[[], bool], *command: str) -> None:
    """Run a command until something is so, and kill it: if need be, in the middle of an epoch."""
    process = day.start(*command)
    try:
        until = time.monotonic() + 120
        while not so_far():
            assert process.poll() is None, f"{command} ended\n{day.tail()}"
            assert time.monotonic() < until, f"{command} took over 120 s\n{day.tail()}"
            time.sleep(0.1)
    finally:
        end_group(process)
