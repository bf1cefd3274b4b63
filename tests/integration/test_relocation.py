"""Groups move, split and merge, and slots come and go, on real Spark, while rows flow: exact."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.day import STREAMS, Day, messages, running, wait_for

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

SESSION = "2026-01-05"


@pytest.fixture
def day(
    tmp_path: Path, broker: str, topics: Callable[..., dict[str, str]], spark_env: dict[str, str]
) -> Iterator[Day]:
    made = Day(
        tmp_path / "moves",
        broker,
        topics(*STREAMS, partitions=2),
        spark_env,
        groups=8,
        budget_bytes=256 << 10,
        max_rows=2_000,
    )
    yield made
    made.clean()


def epochs(day: Day) -> list[dict[str, Any]]:
    return [entry for entry in day.entries() if entry["kind"] == "epoch"]


def owners(day: Day) -> dict[tuple[int, int], int]:
    """The newest assignment: each group with its slot."""
    found: list[Any] = []
    for entry in day.entries():
        found = entry.get("groups" if entry["kind"] == "genesis" else "assignment") or found
    return {(depth, value): slot for (depth, value), slot in found}


def obeyed(day: Day, command: str) -> bool:
    """Whether the stream has obeyed a command; an AssertionError when it refused it."""
    for entry in epochs(day):
        for outcome in entry["commands"]:
            if outcome["id"] == command:
                assert outcome["obeyed"], outcome
                return True
    return False


def ask(day: Day, *arguments: str) -> None:
    """Ask for an adaptation and wait until its epoch, and every move of it, is journaled."""
    code, text = day.output("rebalance", *arguments, "--json", "--reason", "test")
    assert code == 0, text
    ids = [each["command"]["id"] for each in json.loads(text)["asked"]]
    wait_for(lambda: all(obeyed(day, each) for each in ids), 60, f"{arguments} to be obeyed")
    wait_for(lambda: last_queue(day) == [], 60, f"{arguments} to be carried out")


def last_queue(day: Day) -> list[Any]:
    queues = [e["queued"] for e in epochs(day) if e["queued"] is not None]
    return queues[-1] if queues else []


def test_a_day_in_which_everything_moves(day: Day) -> None:
    def send(seed: int) -> None:
        before = sum(sum(ends) for ends in epochs(day)[-1]["end"].values()) if epochs(day) else 0
        day.produce(messages(seed, 3_000, keys=6_000))
        wait_for(
            lambda: (
                bool(epochs(day))
                and sum(sum(e) for e in epochs(day)[-1]["end"].values()) >= before + 3_000
            ),
            60,
            "the rows to be read",
        )

    day.produce(messages(1, 3_000, keys=6_000))
    with running(day, "stream", "--session", SESSION):
        wait_for(lambda: len(epochs(day)) >= 2, 90, "the first epochs")
        ask(day, "--move", "3/0:1", "--move", "3/5:0")
        send(2)
        assert owners(day)[3, 0] == 1
        assert owners(day)[3, 5] == 0
        ask(day, "--split", "3/0")
        ask(day, "--move", "4/1:0", "--spill", "1:1KiB")
        send(3)
        ask(day, "--slots", "4")
        send(4)
        assert set(owners(day).values()) == {0, 1, 2, 3}
        ask(day, "--slots", "1")
        send(5)
        assert set(owners(day).values()) == {0}
        ask(day, "--merge", "3/0")
        send(6)
        assert (3, 0) in owners(day)
        code, text = day.output("rebalance", "--move", "3/0:7")
        assert code == 3
        assert "there is no slot 7" in text
    moved = [move for entry in epochs(day) for move in entry["moved"]]
    assert len(moved) >= 10
    day.finish(SESSION)
    phases = day.check(SESSION)
    assert phases["run-time"] > 0


def test_a_policy_evens_out_what_is_uneven(day: Day) -> None:
    """Six of eight groups at one slot: lazy-disk moves some of them back, and then is content."""

    def decide(*more: str) -> dict[str, Any]:
        code, text = day.output("rebalance", "--policy", "lazy-disk", "--json", *more)
        assert code == 0, text
        found: dict[str, Any] = json.loads(text)
        return found

    day.extra["REBALANCE__MIN_SPAN_S"] = "0"
    day.extra["STATE__BUDGET_BYTES"] = str(8 << 20)
    day.produce(messages(1, 6_000, keys=6_000))
    with running(day, "stream", "--session", SESSION):
        wait_for(lambda: len(epochs(day)) >= 3, 90, "the first epochs")
        ask(day, "--move", "3/0:1", "--move", "3/1:1")
        day.produce(messages(2, 3_000, keys=6_000))
        wait_for(lambda: bool(decide("--dry-run")["asked"]), 60, "an uneven view in statistics")
        before = owners(day)
        found = decide()
        assert {each["command"]["policy"] for each in found["asked"]} == {"lazy-disk"}
        assert all("M_least / M_most" in each["command"]["reason"] for each in found["asked"])
        ids = [each["command"]["id"] for each in found["asked"]]
        wait_for(lambda: all(obeyed(day, each) for each in ids), 60, "the policy to be obeyed")
        assert owners(day) != before
        assert all(owners(day)[tuple(m["group"])] == m["to"] for m in moved_by(day, ids))
    day.finish(SESSION)
    day.check(SESSION)


def moved_by(day: Day, commands: list[str]) -> list[dict[str, Any]]:
    return [m for entry in epochs(day) for m in entry["moved"] if m["command"] in commands]
