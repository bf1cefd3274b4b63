"""Groups move, split and merge, and slots come and go, on real Spark, while rows flow: exact."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deltalake
import pytest

from spillway.clock import system_clock
from spillway.rebalance import by_hand
from spillway_schemas.settings import load_settings
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
    return day.journal.epochs()


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
    """Ask by the command line for what `wish` asks for."""
    code, text = day.output("rebalance", *arguments, "--json", "--reason", "test")
    assert code == 0, text
    carried_out(day, [each["command"]["id"] for each in json.loads(text)["asked"]])


def wish(day: Day, **wanted: Any) -> None:
    """Ask for an adaptation and wait until its epoch, and every move of it, is journaled.

    Here, as `spillway rebalance` does: a program for each would take as long as the adaptation.
    """
    settings = load_settings(environ=day.env())[0]
    request = by_hand.RebalanceRequest(**wanted)
    answers = by_hand.request(settings, request, "test", "test", clock=system_clock)
    assert answers
    assert all(outcome.obeyed for _, outcome in answers), answers
    carried_out(day, [command.id for command, _ in answers])


def carried_out(day: Day, ids: list[str]) -> None:
    wait_for(lambda: all(obeyed(day, each) for each in ids), 60, f"{ids} to be obeyed")
    wait_for(lambda: last_queue(day) == [], 60, f"{ids} to be carried out")


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
        wish(day, splits=["3/0"])
        ask(day, "--move", "4/1:0", "--spill", "1:1KiB")
        send(3)
        wish(day, budgets=["0:32KiB"])
        send(7)
        assert [slot["budget_bytes"] for slot in epochs(day)[-1]["slots"]] == [32 << 10, 256 << 10]
        assert epochs(day)[-1]["slots"][0]["state_bytes"] <= 0.9 * (32 << 10)
        code, text = day.output("rebalance", "--budget", "1:1000TiB", "--json")
        assert code == 3
        assert "bytes at most: the host has" in text
        wish(day, budgets=["0:default"])
        wish(day, slots=4)
        send(4)
        assert set(owners(day).values()) == {0, 1, 2, 3}
        wish(day, slots=1)
        send(5)
        assert set(owners(day).values()) == {0}
        wish(day, merges=["3/0"])
        send(6)
        assert (3, 0) in owners(day)
        code, text = day.output("rebalance", "--move", "3/0:7")
        assert code == 3
        assert "there is no slot 7" in text
        wish(day, budgets=["0:300KiB"])
    moved = [move for entry in epochs(day) for move in entry["moved"]]
    assert len(moved) >= 10
    budgets = [entry["budgets"] for entry in epochs(day) if entry["budgets"] is not None]
    assert budgets == [{"0": 32 << 10}, {}, {"0": 300 << 10}]
    day.finish(SESSION)
    last = epochs(day)[-1]["slots"][0]
    assert last["budget_bytes"] == 256 << 10, "the next driver goes by its settings"
    phases = day.check(SESSION)
    assert phases["run-time"] > 0
    slots_agree(day)


def slots_agree(day: Day) -> None:
    """What `statistics` says of slots is what the journal says, added up from one to the next."""
    table = deltalake.DeltaTable(day.folder / "warehouse" / "statistics")
    rows = table.to_pyarrow_table().to_pylist()
    totals = {(e["epoch"], t["slot"]): t for e in epochs(day) for t in e["slots"]}
    known = 0
    for row in rows:
        own = totals.get((row["epoch"], row["slot"]))
        if own is not None:
            assert row["slot_bytes"] == own["state_bytes"]
            assert row["slot_budget_bytes"] == own["budget_bytes"]
        if row["slot_busy_s"] is not None:
            known += 1
            mine = {e: t["busy_s"] for (e, s), t in totals.items() if s == row["slot"]}
            before = [busy for e, busy in mine.items() if e < row["epoch"]]
            tails = [sum(before[n:]) for n in range(len(before) + 1)]
            assert any(abs(row["slot_busy_s"] - tail) < 1e-6 for tail in tails)
            assert row["slot_idle_s"] >= 0
            assert 0 <= row["slot_occupancy"] <= 1
    assert known > 0


def test_a_policy_evens_out_what_is_uneven(day: Day) -> None:
    """Six of eight groups at one slot: lazy-disk moves some of them back, and then is content."""

    def decide(*more: str) -> dict[str, Any]:
        code, text = day.output("rebalance", "--policy", "lazy-disk", "--json", *more)
        assert code == 0, text
        found: dict[str, Any] = json.loads(text)
        return found

    day.extra["REBALANCE__MIN_SPAN_S"] = "0"
    day.extra["REBALANCE__RELOCATION_BYTES"] = "0"
    day.extra["STATE__BUDGET_BYTES"] = str(8 << 20)
    day.produce(messages(1, 6_000, keys=6_000))
    with running(day, "stream", "--session", SESSION):
        wait_for(lambda: len(epochs(day)) >= 3, 90, "the first epochs")
        wish(day, moves=["3/0:1", "3/1:1"])
        day.produce(messages(2, 3_000, keys=6_000))
        wait_for(lambda: bool(decide("--dry-run")["asked"]), 60, "an uneven view in statistics")
        before = owners(day)
        found = decide()
        assert {each["command"]["policy"] for each in found["asked"]} == {"lazy-disk"}
        assert all("M_least / M_most" in each["command"]["reason"] for each in found["asked"])
        ids = [each["command"]["id"] for each in found["asked"]]
        decisions = {each["command"]["decision"] for each in found["asked"]}
        wait_for(lambda: all(obeyed(day, each) for each in ids), 60, "the policy to be obeyed")
        assert owners(day) != before
        assert all(owners(day)[tuple(m["group"])] == m["to"] for m in moved_by(day, decisions))
    day.finish(SESSION)
    day.check(SESSION)


def moved_by(day: Day, decisions: set[str]) -> list[dict[str, Any]]:
    return [m for entry in epochs(day) for m in entry["moved"] if m["decision"] in decisions]
