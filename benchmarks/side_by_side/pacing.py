"""Send a scenario at an even pace while a program runs: from when it waits for rows until it has
read them all.

A program's files say how far it is: Spark's checkpoint, spillway's journal.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.side_by_side.contests import Contest
from spillway.produce.run import produce
from spillway.produce.summary import ProduceProgress, Summary
from spillway.tables import NothingYet, NoWarehouse, Warehouse
from spillway_schemas.journal import Claim, Epoch, Genesis
from spillway_schemas.scenario import Scenario

ASK_S = 1.0
"""How often it is asked how far a program is."""


@dataclass(frozen=True)
class Pace:
    """How a scenario is sent."""

    scenario: Scenario
    speed: float
    """Seconds of the scenario in a second."""
    since_us: int
    """Where counting begins, in the scenario's time: microseconds since 1970."""
    middle_us: int
    """Half-way from there to the end."""


def pace(contest: Contest, rows_per_s: float, warm_up_s: float, seconds: float) -> Pace:
    """The contest's scenario with as many rows as `rows_per_s` of all topics are in that time.

    `warm_up_s` and `seconds` are real time: what is not counted, and what is counted after it.
    """
    wall_s = warm_up_s + seconds
    rows = max(1, round(rows_per_s * wall_s / len(contest.fields)))
    scenario = contest.resized(rows, None)
    assert scenario.duration_s is not None
    speed = scenario.duration_s / wall_s
    start_us = round(scenario.start.timestamp() * 1_000_000)
    since_us, middle_us = (
        start_us + round(at_s * speed * 1_000_000) for at_s in (warm_up_s, warm_up_s + seconds / 2)
    )
    return Pace(scenario, speed, since_us, middle_us)


# ---------------------------------------------------------------------------- how far they are


@dataclass(frozen=True)
class Look:
    """How far a program is, as its files say."""

    ready: Callable[[], bool]
    """It waits for rows."""
    rows: Callable[[], int]
    """Rows of all topics that it has read, and whose results are in its table."""


def at_spark(checkpoint: Path, topics: int) -> Look:
    """Of a query of Spark's that reads so many topics, each by itself."""

    def rows() -> int:
        done = [int(each.name) for each in (checkpoint / "commits").glob("[0-9]*")]
        return rows_of_batch((checkpoint / "offsets" / f"{max(done)}").read_text()) if done else 0

    return Look(lambda: len(list((checkpoint / "sources").glob("*/0"))) == topics, rows)


def rows_of_batch(offsets: str) -> int:
    """Rows up to the end of a batch of Spark's, by its file of offsets. Topics begin at 0."""
    _version, _about, *sources = offsets.splitlines()
    known = [json.loads(each) for each in sources if each != "-"]
    ends = [partitions for each in known for partitions in each.values()]
    return sum(sum(each.values()) for each in ends)


def at_spillway(warehouse: Path) -> Look:
    """Of a stream of spillway's. An epoch's results follow its entry, before the stream ends."""

    def entries() -> Sequence[Genesis | Claim | Epoch]:
        try:
            return Warehouse(str(warehouse)).journal.read()
        except (NoWarehouse, NothingYet):
            return []

    def rows() -> int:
        epochs = [each for each in entries() if isinstance(each, Epoch)]
        return sum(part.rows for epoch in epochs for part in epoch.read)

    return Look(lambda: any(isinstance(each, Claim) for each in entries()), rows)


class _Stopped(Exception):
    """The program ended before everything was sent."""


class Sending:
    """Sends a scenario once a program waits for rows; holds once the program has read them all."""

    def __init__(self, wanted: Pace, bootstrap: str, look: Look):
        self._wanted = wanted
        self._bootstrap = bootstrap
        self._look = look
        self._pool = ThreadPoolExecutor(1)
        self._stop = threading.Event()
        self._sent: Future[Summary] | None = None
        self._looked_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._pool.shutdown()

    def __call__(self) -> bool:
        """Whether the program has read everything. Raises what went wrong with sending."""
        if time.monotonic() - self._looked_s < ASK_S:
            return False
        self._looked_s = time.monotonic()
        if self._sent is None:
            if self._look.ready():
                self._sent = self._pool.submit(self._send)
            return False
        return self._sent.done() and self._sent.result().rows == self._look.rows()

    def _send(self) -> Summary:
        def report(_: ProduceProgress) -> None:
            if self._stop.is_set():
                raise _Stopped

        wanted = self._wanted
        return produce(
            wanted.scenario, self._bootstrap, speed=wanted.speed, processes=1, progress=report
        )
