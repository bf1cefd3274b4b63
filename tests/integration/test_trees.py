"""Days of the five-way tree on real Kafka and Spark, compared with a brute-force join."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from spillway_schemas.hash_space import group_text
from spillway_schemas.journal import Prefix
from tests.integration.day import running, wait_for
from tests.integration.failpoints import TREE_POINTS, WORKER_POINTS
from tests.integration.standalone import standalone
from tests.integration.tree_day import STREAMS, TreeDay, tree_messages

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

SESSION = "2026-01-05"
KEYS = 900
ABC, ABCD, ABCDE = range(3)
"""The joins of the tree, children first."""

MakeDay = Callable[..., TreeDay]


@pytest.fixture
def make_day(
    tmp_path: Path, broker: str, topics: Callable[..., dict[str, str]], spark_env: dict[str, str]
) -> Iterator[MakeDay]:
    """Days on fresh topics; their state folders are removed afterwards."""
    made: list[TreeDay] = []

    def make(**settings: Any) -> TreeDay:
        given = {"budget_bytes": 160 << 10, "groups": 16, "max_rows": 2_000, **settings}
        names = topics(*STREAMS, partitions=2)
        around = given.pop("spark_env", spark_env)
        made.append(TreeDay(tmp_path / f"tree{len(made)}", broker, names, around, **given))
        return made[-1]

    yield make
    for day in made:
        day.clean()


@pytest.mark.soak  # in `make test` the day below spills at every join, too
def test_a_day_with_too_little_memory(make_day: MakeDay) -> None:
    day = make_day()
    day.produce(tree_messages(1, 8_000, KEYS))
    day.ok("stream", "--session", SESSION, "--available-now")
    finished(day)
    assert spilled(day) == {ABC, ABCD, ABCDE}


@pytest.mark.soak
def test_every_level_runs_where_the_slot_s_state_is(
    make_day: MakeDay, tmp_path: Path, spark_env: dict[str, str]
) -> None:
    """Two hosts with a state folder each: a probe or a step on the other one would find nothing."""
    with standalone(tmp_path / "cluster", spark_env, "127.0.0.2", "127.0.0.3") as cluster:
        day = make_day(master=cluster.url, spark_env=cluster.env)
        day.produce(tree_messages(1, 6_000, KEYS))
        day.ok("stream", "--session", SESSION, "--available-now", timeout_s=600)
        hosts = [tuple(s["host"] for s in e["slots"]) for e in day.journal.epochs()]
        assert set(hosts) == {("127.0.0.2", "127.0.0.3")}
        assert not any(e["restored_slots"] for e in day.journal.epochs())
        finished(day)


def test_kills_moves_and_lost_state(make_day: MakeDay) -> None:
    """On a cluster: workers and an executor die at every point of an epoch, groups of two joins
    move, the driver dies, all state is lost. Rows of the upper joins are in no topic."""
    day = make_day(master="local-cluster[2,1,1024]")
    day.produce(tree_messages(2, 4_000, KEYS))
    points = (*WORKER_POINTS, *TREE_POINTS)
    armed = [
        f"{name}:{'next' if number else 0}{':executor' if name == 'in-probe' else ''}"
        for number, name in enumerate(points)
    ]
    markers = {"WORKER_FAILPOINTS": ",".join(armed), "FAILPOINT_MARKERS": str(day.folder)}
    with running(day, "stream", "--session", SESSION, **markers) as stream:
        wait_for(lambda: read(day) >= 4_000, 240, "the first rows are joined")
        moved = [(ABC, 1), (ABCD, 1), (ABCDE, 1)]
        ask(
            day,
            *(word for join, to in moved for word in ("--move", f"{group(day, join, to)}:{to}")),
        )
        for seed in range(3, 8):
            day.produce(tree_messages(seed, 500, KEYS))
        wait_for(lambda: read(day) >= 6_500, 240, "more rows are joined")
        stream.send_signal(signal.SIGTERM)
        assert stream.wait(60) == 0, day.tail()
    for name in points:
        assert (day.folder / f"fired-{name}").exists(), f"{name} was not reached"
    # What only kills the driver needs no executors of its own, which take most of a start.
    day.master = "local[2]"
    joins = {join_of_group(move["group"]) for e in day.journal.epochs() for move in e["moved"]}
    assert joins == {ABC, ABCD, ABCDE}
    day.produce(tree_messages(8, 500, KEYS))
    code = day.run("stream", "--available-now", FAILPOINT="after-append:1")
    assert code == -signal.SIGKILL, day.tail()
    shutil.rmtree(day.state)
    day.produce(tree_messages(9, 500, KEYS))
    finished(day, ["stream", "--available-now"])
    assert any(e["restored_slots"] for e in day.journal.epochs())
    assert spilled(day) == {ABC, ABCD, ABCDE}
    day.correct(SESSION, [row for row in tree_messages(10, 60, KEYS) if row[1].endswith(b"}")])
    assert day.check(SESSION)["correction"] > 0


def finished(day: TreeDay, *first: Sequence[str]) -> None:
    """Seal, clean up, prove and compare: something came at run time, and something was missing."""
    day.finish(SESSION, first=first, timeout_s=600)
    phases = day.check(SESSION)
    assert phases["run-time"] > 0
    assert phases["cleanup"] > 0


def spilled(day: TreeDay) -> set[int]:
    """The joins of which groups were spilled before the seal."""
    return {
        cut["operator"]
        for epoch in day.journal.epochs()
        if not epoch["sealed"]
        for cut in epoch["cuts"]
    }


def read(day: TreeDay) -> int:
    """Rows that the journal has read."""
    return sum(sum(count["rows"]) for e in day.journal.epochs() for count in e["read"])


def ask(day: TreeDay, *arguments: str) -> None:
    """Ask for an adaptation and wait until its epoch, and every move of it, is journaled."""
    code, text = day.output("rebalance", *arguments, "--json", "--reason", "test")
    assert code == 0, text
    ids = {each["command"]["id"] for each in json.loads(text)["asked"]}

    def answered() -> bool:
        outcomes = [c for e in day.journal.epochs() for c in e["commands"] if c["id"] in ids]
        queues = [e["queued"] for e in day.journal.epochs() if e["queued"] is not None]
        return {c["id"] for c in outcomes if c["obeyed"]} == ids and not (queues and queues[-1])

    wait_for(answered, 120, f"{arguments} to be carried out")


def group(day: TreeDay, join: int, to: int) -> str:
    """A group of a join that is not at a slot, as people write it."""
    [genesis] = [e for e in day.entries() if e["kind"] == "genesis"]
    groups = [Prefix(*g) for g, slot in genesis["groups"] if slot != to]
    return group_text(next(g for g in groups if join_of_group(g) == join), genesis["joins"])


def join_of_group(group: Sequence[int]) -> int:
    """The join that a group is of: three joins have the hashes 00..., 01... and 1..."""
    depth, value = group
    return ABCDE if value >> (depth - 1) else value >> (depth - 2)
