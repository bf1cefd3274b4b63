"""Days in which groups move all the time while senders, receivers and drivers are killed: exact.

A policy's controller runs beside the stream, as `spillway rebalance --policy` would. When it is
content, groups are moved by hand, so that there is something to even out again.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from jobs.rebalance import by_hand, controller
from schemas.settings import load_settings
from tests.integration.day import STREAMS, Day, messages, running, wait_for
from tests.integration.failpoints import MOVING_POINTS, RECEIVER_POINTS, SENDER_POINTS, fired
from tests.integration.standalone import Cluster, standalone

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

POLICIES = ("lazy-disk", "active-disk", "flux-memory")
"""The default one first."""
SESSION = "2026-01-05"
ROWS, EVERY_S = 30, 0.15
"""So many rows come every moment."""
KEYS = 3_000
WAIT_S = 90.0
EXECUTORS = ("in-extract", "after-install")
"""Points at which the executor is killed, not only its Python worker."""
WORKERS = [
    f"{point}:{'next' if number else 0}{':executor' if point in EXECUTORS else ''}"
    for number, point in enumerate((*SENDER_POINTS, *RECEIVER_POINTS))
]
"""One after another, each in an epoch of its own."""


@dataclass
class Journal:
    """The journal as it grows: every file of it is read once."""

    folder: Path
    version: int = -1
    by_number: dict[int, dict[str, Any]] = field(default_factory=dict)

    def entries(self) -> list[dict[str, Any]]:
        """All entries in order."""
        for log in sorted((self.folder / "_delta_log").glob("*.json")):
            if log.stem.isdigit() and int(log.stem) > self.version:
                for action in map(json.loads, log.read_text().splitlines()):
                    self._add(action.get("add"))
                self.version = int(log.stem)
        return [self.by_number[n] for n in sorted(self.by_number)]

    def epochs(self) -> list[dict[str, Any]]:
        """All epochs in order."""
        return [entry for entry in self.entries() if entry["kind"] == "epoch"]

    def _add(self, file: dict[str, Any] | None) -> None:
        # A file that is gone was compacted: its entries are in a later one.
        with contextlib.suppress(FileNotFoundError):
            if file is not None:
                for row in pq.read_table(self.folder / file["path"]).to_pylist():
                    self.by_number[row["n"]] = json.loads(row["entry"])


class Mover:
    """Rows in small batches, a policy that moves groups, a stream that is killed and goes on."""

    def __init__(self, day: Day, policy: str) -> None:
        self.day = day
        self.policy = policy
        self.journal = Journal(day.folder / "warehouse" / "journal")
        self.rng = random.Random(policy)
        self.seeds = itertools.count(1)
        self.asked: set[str] = set()

    @contextlib.contextmanager
    def flow(self) -> Iterator[None]:
        """Rows come meanwhile, a few every moment."""
        over = threading.Event()

        def feed() -> None:
            with self.day.producer() as send:
                while not over.wait(EVERY_S):
                    send(messages(next(self.seeds), ROWS, keys=KEYS))

        with ThreadPoolExecutor(1, "rows") as pool:
            feeding = pool.submit(feed)
            try:
                yield
            finally:
                over.set()
                feeding.result(30)

    def ask(self, *, hand: bool = False) -> None:
        """Let the policy decide; when it is content (or with `hand`), make the slots uneven."""
        settings = load_settings(environ=self.day.env())[0]
        answers: list[Any] = []
        if not hand:
            answers = controller.run(settings, self.policy, "test").asked
        if not any(outcome.obeyed for _, outcome in answers):
            answers = by_hand.request(settings, self.uneven(), "uneven again", "test")
        self.asked |= {command.id for command, outcome in answers if outcome.obeyed}

    def uneven(self) -> by_hand.Wishes:
        """Two groups of the slot that has most move to the other one, and something spills."""
        owners = self.owners()
        slots = list(owners.values())
        full = max((0, 1), key=slots.count)
        groups = self.rng.sample([g for g, slot in owners.items() if slot == full], 2)
        moves = [f"{depth}/{value}:{1 - full}" for depth, value in groups]
        return by_hand.Wishes(moves=moves, spills=[f"{full}:1KiB"])

    def owners(self) -> dict[tuple[int, int], int]:
        """The newest assignment: each group with its slot."""
        entries = self.journal.entries()
        found = entries[0]["groups"]
        for entry in entries[1:]:
            found = entry.get("assignment") or found
        return {(depth, value): slot for (depth, value), slot in found}

    def carried_out(self) -> bool:
        """Whether all that was asked for is answered, and no move waits any more."""
        epochs = self.journal.epochs()
        answered = {outcome["id"] for entry in epochs for outcome in entry["commands"]}
        queues = [entry["queued"] for entry in epochs if entry["queued"] is not None]
        return self.asked <= answered and not (queues and queues[-1])

    def terms(self) -> int:
        """How many drivers there have been."""
        return sum(entry["kind"] == "claim" for entry in self.journal.entries())

    def run_until_killed(self, point: str, **env: str) -> None:
        """Run the stream until a point of the driver kills it; rows and moves go on until then."""
        terms = self.terms()
        env = {"FAILPOINT": point, "FAILPOINT_MARKERS": str(self.day.folder), **env}
        began = time.monotonic()
        with running(self.day, "stream", "--session", SESSION, **env) as stream:
            wait_for(
                lambda: self.terms() > terms or stream.poll() is not None, WAIT_S, "the claim"
            )
            print(f"{point}: up after {time.monotonic() - began:.1f}", flush=True)
            with self.flow():
                until = time.monotonic() + WAIT_S
                while stream.poll() is None and time.monotonic() < until:
                    if self.carried_out():
                        t = time.monotonic()
                        self.ask(hand="spill" in point)
                        print(f"asked {self.journal.epochs()[-1:] and self.journal.epochs()[-1]['epoch']} in {time.monotonic() - t:.2f}", flush=True)
                    time.sleep(0.02)
            print(f"{point}: ended after {time.monotonic() - began:.1f}", flush=True)
        code = stream.returncode
        assert code == -signal.SIGKILL, f"{point} was not reached ({code})\n{self.day.tail()}"
        assert fired(self.day.folder, point) is not None, f"{point}: killed elsewhere"


MakeDay = Callable[..., Day]


@pytest.fixture
def make_day(
    tmp_path: Path,
    broker: str,
    topics: Callable[..., dict[str, str]],
    spark_env: dict[str, str],
) -> Iterator[MakeDay]:
    """A day with few groups and small epochs, in which every imbalance counts."""
    made: list[Day] = []

    def make(master: str, **settings: str) -> Day:
        extra = {"REBALANCE__MIN_SPAN_S": "0", "REBALANCE__THETA_D": "0.99", **settings}
        names = topics(*STREAMS, partitions=2)
        day = Day(
            tmp_path / "day",
            broker,
            names,
            spark_env,
            groups=8,
            budget_bytes=96 << 10,
            master=master,
            extra={"REBALANCE__TH_IMB": "1.01", **extra},
        )
        made.append(day)
        return day

    yield make
    for day in made:
        day.clean()


@pytest.mark.parametrize("policy", POLICIES)
def test_killed_while_groups_move(make_day: MakeDay, policy: str) -> None:
    day = make_day("local-cluster[2,1,1024]")
    mover = Mover(day, policy)
    for number, point in enumerate(MOVING_POINTS):
        workers = {"WORKER_FAILPOINTS": ",".join(WORKERS), "FAILPOINT_AFTER": RECEIVER_POINTS[-1]}
        mover.run_until_killed(point, **({} if number else workers))
    day.finish(SESSION)
    phases = day.check(SESSION)
    epochs = mover.journal.epochs()
    print([(e["epoch"], e["term"], sum(c["rows"] for c in e["read"]), len(e["moved"])) for e in epochs])
    print(phases)
    assert 0
