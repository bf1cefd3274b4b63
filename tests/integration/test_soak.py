"""Days of one join, of a tree, and three without a pause of a join with a window, each under 60
kills at random moments (`make soak`): complete and exact at the end.

Each round starts the stream and, some seconds later, kills one of its processes: the driver, the
JVM, or a Python worker. Rows keep arriving between the rounds; once in a while the state
folders vanish as well, and groups are told to move. The seed is printed, so that a failure can be
tried again.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.day import STREAMS, Day, messages, running
from tests.integration.tree_day import STREAMS as TREE_STREAMS
from tests.integration.tree_day import TreeDay, tree_messages
from tests.integration.windowed_day import WindowedDay, timed_messages

pytestmark = [pytest.mark.soak, pytest.mark.timeout(4 * 3600)]

KILLS = int(os.environ.get("SPILLWAY_SOAK_KILLS", "60"))
SEED = int(os.environ.get("SPILLWAY_SOAK_SEED", "1"))
STARTING_S = 6.0
"""Before that the driver has journaled nothing yet; a kill would try nothing."""
WORKING_S = 60.0
"""Workers of Python exist from the first job on; waited for so long at most."""


@dataclass(frozen=True)
class Kind:
    """A query, what arrives before each round, and the groups that may be told to move."""

    day: type[Day]
    streams: Sequence[str]
    messages: Callable[[int], list[tuple[str, bytes]]]
    joins: Sequence[str]
    """What the names of groups begin with."""
    depth: int
    settings: dict[str, Any]
    sessions: Sequence[str] = ("2026-01-05",)


KINDS = {
    "join": Kind(
        Day,
        STREAMS,
        lambda seed: messages(seed, 1_500, keys=20_000),
        ("",),
        5,
        {"budget_bytes": 128 << 10, "max_rows": 1_000},
    ),
    "tree": Kind(
        TreeDay,
        TREE_STREAMS,
        lambda seed: tree_messages(seed, 1_000, keys=8_000),
        ("abc:", "abcd:", "abcde:"),
        4,
        {"budget_bytes": 160 << 10, "max_rows": 2_000, "groups": 16},
    ),
    "windows": Kind(
        WindowedDay,
        STREAMS,
        lambda seed: timed_messages(seed, 1_000, keys=60, begin_s=50 * (seed - 1_000)),
        ("",),
        5,
        {
            "budget_bytes": 256 << 10,
            "max_rows": 1_000,
            "extra": {
                "SPILL__THRESHOLD": "0.25",
                "SESSION__CALENDAR": "24/7",
                "SESSION__CARRY": "true",
            },
        },
        ("2026-01-05", "2026-01-06", "2026-01-07"),
    ),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture
def day(
    kind: Kind,
    tmp_path: Path,
    broker: str,
    topics: Callable[..., dict[str, str]],
    spark_env: dict[str, str],
) -> Iterator[Day]:
    names = topics(*kind.streams, partitions=2)
    given: dict[str, Any] = {**kind.settings}
    made = kind.day(tmp_path / "soak", broker, names, spark_env, **given)
    yield made
    made.clean()


def victims(driver: psutil.Process, kind: str) -> list[psutil.Process]:
    """Processes of a kind: the driver itself, its JVM, or Python workers below the JVM."""
    if kind == "driver":
        return [driver]
    below = driver.children(recursive=True)
    java = [p for p in below if p.name() == "java"]
    if kind == "jvm":
        return java
    return [w for jvm in java for w in jvm.children(recursive=True) if "python" in w.name()]


def victim(stream: subprocess.Popen[str], kind: str, rng: random.Random) -> psutil.Process | None:
    """One process of a kind, waited for while the stream lives; None where there is none."""
    end = time.monotonic() + WORKING_S
    while stream.poll() is None and time.monotonic() < end:
        with contextlib.suppress(psutil.NoSuchProcess):
            if found := victims(psutil.Process(stream.pid), kind):
                return rng.choice(found)
        time.sleep(0.2)
    return None


def adapt(day: Day, kind: Kind, rng: random.Random) -> None:
    """Ask for something that the next start obeys, or refuses: moves, other slots, a spill."""

    def move() -> str:
        group = f"{rng.choice(kind.joins)}{kind.depth}/{rng.randrange(1 << kind.depth)}"
        return f"--move={group}:{rng.randrange(2)}"

    wish = rng.choice(
        [
            ["--slots", str(rng.randint(1, 3))],
            [move() for _ in range(3)],
            ["--spill", "0:10KiB"],
        ]
    )
    code, said = day.output("rebalance", *wish)
    assert code in (0, 3), said


def ends(day: Day, kind: Kind, ended: int) -> bool:
    """Ask for the end of the open session, if it is the one after so many ended ones."""
    if day.journal.epochs()[-1]["session"] != kind.sessions[ended]:
        return False
    code, said = day.output("seal", "--session", kind.sessions[ended])
    assert code == 0, said
    return True


def test_a_day_under_random_kills(day: Day, kind: Kind) -> None:
    print(f"SPILLWAY_SOAK_SEED={SEED}")
    rng = random.Random(SEED)
    killed: Counter[str] = Counter()
    begun, sent, ended = time.monotonic(), 0, 0
    while killed.total() < KILLS:
        assert time.monotonic() - begun < KILLS * 60, f"only {killed} so far\n{day.tail()}"
        day.produce(kind.messages(1_000 + sent))
        sent += 1
        if rng.random() < 0.1:
            shutil.rmtree(day.state, ignore_errors=True)
        if killed and rng.random() < 0.6:
            adapt(day, kind, rng)
        if killed.total() * len(kind.sessions) >= KILLS * (ended + 1) and ends(day, kind, ended):
            ended += 1
            day.produce(kind.messages(1_000 + sent))  # rows of the next session
            sent += 1
        begins = [] if day.entries() else ["--session", kind.sessions[0]]
        with running(day, "stream", *begins) as stream:
            time.sleep(STARTING_S)
            for _ in range(rng.choice([1, 1, 2, 4])):
                what = rng.choice(["driver", "driver", "jvm", "worker", "worker"])
                found = victim(stream, what, rng)
                time.sleep(rng.uniform(0, 6))
                with contextlib.suppress(psutil.NoSuchProcess):
                    if found:
                        found.kill()
                        killed[what] += 1
                if what in ("driver", "jvm"):
                    break
        print(f"{killed.total()} of {KILLS} kills, {len(day.entries())} entries", flush=True)
    if KILLS >= 30:
        assert min(killed[k] for k in ("driver", "jvm", "worker")) > 0, killed
    day.finish(kind.sessions[ended], timeout_s=900)
    for session in kind.sessions[:ended]:
        day.finish(session, sealed=True, timeout_s=900)
    phases = Counter[str]()
    for session in kind.sessions[: ended + 1]:
        phases += day.check(session)
    moved = sum(len(entry.get("moved", [])) for entry in day.entries())
    print(f"{moved} groups moved, {killed}, {dict(phases)} results")
    if KILLS >= 30:  # fewer bring too few rows
        assert moved > 0
        assert phases["run-time"] > 0
        assert phases["cleanup"] > 0
        assert ended == len(kind.sessions) - 1
