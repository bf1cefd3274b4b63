"""Days in which groups move all the time while senders, receivers and drivers are killed: exact.

A policy's controller runs beside the stream, as `spillway rebalance --policy` does. When it is
content, groups are moved by hand, so that there is something to even out again.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from spillway.clock import system_clock
from spillway.rebalance import by_hand, controller
from spillway.stream.session import class_archive
from spillway_schemas.settings import Settings, load_settings
from tests.integration.day import STREAMS, Day, JournalReader, messages, running, wait_for
from tests.integration.failpoints import MOVING_POINTS, RECEIVER_POINTS, SENDER_POINTS, fired
from tests.integration.standalone import Cluster, standalone

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

POLICIES = ("pooled", "lazy-disk", "flux-memory")
"""The default one first."""
SESSION = "2026-01-05"
ROWS, EVERY_S = 8, 0.2
"""So many rows come every moment."""
KEYS = 1_500
WAIT_S = 240.0
PATIENT_S = 30.0
BUDGET = 96 << 10
BUDGETS = (64 << 10, 256 << 10)
"""Of later drivers."""
EAGER = {
    "REBALANCE__MIN_SPAN_S": "0",
    "REBALANCE__THETA_D": "0.99",
    "REBALANCE__PRESSURE": "0.01",
    "REBALANCE__TH_IMB": "1",
    "REBALANCE__RELOCATION_BYTES": "0",
    "REBALANCE__THETA_F": "1000",
    "REBALANCE__MAX_BYTES_PER_EPOCH": "8KiB",
    "REBALANCE__EXPIRES_S": "600",
    "STREAM__TRIGGER_S": "0.5",
}
"""Every imbalance counts, nothing but moves is decided, and what is decided at once is carried out
in several epochs. Commands wait for rows a little: most groups move in an epoch that has some. They
do not expire while a killed worker or driver starts again, however slow the machine is."""
EXECUTORS = ("in-extract", "after-install")
"""Points at which the executor is killed, not only its Python worker."""
WORKERS = {
    "WORKER_FAILPOINTS": ",".join(
        f"{point}:{'next' if number else 0}{':executor' if point in EXECUTORS else ''}"
        for number, point in enumerate((*SENDER_POINTS, *RECEIVER_POINTS))
    )
}
"""One after another, each in an epoch of its own."""

AT_HOSTS = ("moving-before-job", "moving-after-sync", "moving-after-apply-results")
"""Points at which the driver dies in the day on a standalone cluster: one for each budget."""
REST = tuple(point for point in MOVING_POINTS if point not in AT_HOSTS)
DRIVERS = (REST, MOVING_POINTS[::2], MOVING_POINTS[1::2])
"""The same in the day of each policy. Every one costs a start of Spark, so the default policy's two
days share them, and so do the other policies."""


class Mover:
    """Rows in small batches, a policy that moves groups, a stream that is killed and goes on."""

    def __init__(self, day: Day, policy: str) -> None:
        self.day = day
        self.policy = policy
        self.journal = day.journal
        self.rng = random.Random(policy)
        self.seeds = itertools.count(1)
        self.asked: dict[str, int] = {}
        """Each command that was accepted: the number of epochs in the journal at that moment."""
        self.patient_until = 0.0

    # ------------------------------------------------------------------ rows and moves

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
        """Let the policy decide; when it is content (or with `hand`), make the slots uneven.

        A policy in rounds waits for as long as the last moves took, which is long where something
        was killed: until it has decided once it is given time.
        """
        settings = load_settings(environ=self.day.env())[0]
        answers: list[Any] = []
        if not hand:
            answers = controller.run(settings, self.policy, "test", clock=system_clock).asked
        if not any(outcome.obeyed for _, outcome in answers):
            decided = any(self.policy in command for command in self.asked)
            if not hand and not decided and time.monotonic() < self.patient_until:
                return
            answers = by_hand.request(
                settings, self.uneven(), "uneven again", "test", clock=system_clock
            )
            self.patient_until = time.monotonic() + PATIENT_S
        known = len(self.journal.epochs())
        self.asked |= {command.id: known for command, outcome in answers if outcome.obeyed}

    def uneven(self) -> by_hand.RebalanceRequest:
        """Two groups of the slot that has most move to the other one, and something spills."""
        owners = self.owners()
        slots = list(owners.values())
        full = max((0, 1), key=slots.count)
        groups = self.rng.sample([g for g, slot in owners.items() if slot == full], 2)
        moves = [f"{depth}/{value}:{1 - full}" for depth, value in groups]
        return by_hand.RebalanceRequest(moves=moves, spills=[f"{full}:1KiB"])

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
        return self.asked.keys() <= answered and not (queues and queues[-1])

    # ------------------------------------------------------------------ the stream

    @contextlib.contextmanager
    def streaming(self, **env: str) -> Iterator[subprocess.Popen[str]]:
        """The stream with rows that come, from its claim on."""
        claims = self.claims()
        with running(self.day, "stream", "--session", SESSION, **env) as stream:
            wait_for(lambda: self.claims() > claims or ended(stream), WAIT_S, "a claim")
            with self.flow():
                yield stream

    def claims(self) -> int:
        """How many drivers there have been."""
        return sum(entry["kind"] == "claim" for entry in self.journal.entries())

    def move_until(self, over: Callable[[], bool], what: str, *, hand: bool = False) -> None:
        """Ask for one adaptation after another until something has come about."""
        until = time.monotonic() + WAIT_S
        while not over():
            assert time.monotonic() < until, f"{what}: not within {WAIT_S} s\n{self.day.tail()}"
            if self.carried_out():
                self.ask(hand=hand)
            time.sleep(0.15)

    def run_until_killed(self, point: str, **env: str) -> None:
        """Run the stream, with rows and moves, until a point of the driver kills it."""
        env = {"FAILPOINT": point, "FAILPOINT_MARKERS": str(self.day.folder), **env}
        with self.streaming(**env) as stream:
            # Only what is asked for by hand is sure to spill.
            self.move_until(lambda: ended(stream), point, hand=point.endswith("spill"))
        code = stream.returncode
        assert code == -signal.SIGKILL, f"{point} was not reached ({code})\n{self.day.tail()}"
        assert fired(self.day.folder, point) is not None, f"{point}: killed at another point"

    def run_through(self, points: Sequence[str]) -> None:
        """All points of workers and then the first of the driver; a run for each other one.

        What only kills the driver needs no executors of its own, which take most of a start.
        """
        first, *others = points
        self.run_until_killed(first, **WORKERS, FAILPOINT_AFTER=RECEIVER_POINTS[-1])
        for point in others:
            self.day.master = "local[2]"
            self.run_until_killed(point)

    def moved_from(self, number: int) -> list[int]:
        """The epochs from a number on that moved groups."""
        return [e["epoch"] for e in self.journal.epochs()[number:] if e["moved"]]

    def restored_from(self, number: int) -> int:
        """The first epoch from a number on that restored a slot; a number beyond all if none."""
        epochs = self.journal.epochs()
        found = [e["epoch"] for e in epochs[number:] if e["restored_slots"]]
        return found[0] if found else len(epochs)

    def longest_wait(self) -> int:
        """The most epochs between a command and the one that answered it."""
        answered = {
            outcome["id"]: number
            for number, entry in enumerate(self.journal.epochs())
            for outcome in entry["commands"]
        }
        return max(answered[each] - known for each, known in self.asked.items())

    # ------------------------------------------------------------------ the end

    def check(self, points: Sequence[str]) -> None:
        """Every point was reached in an epoch that moved groups, and enough of them moved."""
        epochs = {entry["epoch"]: entry for entry in self.journal.epochs()}
        for point in (*SENDER_POINTS, *RECEIVER_POINTS, *points):
            epoch = fired(self.day.folder, point)
            assert epoch is not None, f"{point} was not reached"
            entry = epochs[epoch]
            # A killed executor's host may be passed over: then its slot is restored first. The
            # queue is told only where it has changed: its moves may be of an epoch before.
            kept = entry["queued"] is None or entry["queued"]
            waits = entry["restored_slots"] and kept and self.moved_from(epoch)
            # The driver after it may have a smaller budget, and refuse what this one had planned.
            tight = [c for c in entry["commands"] if "over its budget of" in c["reason"]]
            assert entry["moved"] or waits or tight, (
                f"{point}: nothing moved in epoch {epoch}; its commands: {entry['commands']}"
            )
        moving = [entry for entry in epochs.values() if entry["moved"]]
        assert 3 * len(moving) >= len(epochs), f"{len(moving)} of {len(epochs)} epochs moved groups"
        assert any(entry["read"] for entry in moving), "no row came while a group moved"
        decided = [m for entry in moving for m in entry["moved"] if self.policy in m["decision"]]
        assert decided, f"{self.policy} moved nothing"


def ended(stream: subprocess.Popen[str]) -> bool:
    return stream.poll() is not None


def quick(spark_env: dict[str, str]) -> dict[str, str]:
    """Surroundings in which executors start in half the CPU time: as Spark's driver does."""
    java = f"{spark_env['JDK_JAVA_OPTIONS']} -XX:+UseSerialGC -XX:SharedArchiveFile="
    java += f"{class_archive()} -Xlog:cds=off -Xlog:cds+dynamic=off"
    return {**spark_env, "JDK_JAVA_OPTIONS": java} if class_archive().exists() else spark_env


MakeDay = Callable[..., Day]


@pytest.fixture
def make_day(
    tmp_path: Path,
    broker: str,
    topics: Callable[..., dict[str, str]],
    spark_env: dict[str, str],
) -> Iterator[MakeDay]:
    """A day with few groups and little memory."""
    made: list[Day] = []

    def make(master: str, **settings: str) -> Day:
        day = Day(
            tmp_path / "day",
            broker,
            topics(*STREAMS, partitions=2),
            quick(spark_env),
            groups=8,
            budget_bytes=BUDGET,
            master=master,
            extra={**EAGER, **settings},
        )
        made.append(day)
        return day

    yield make
    for day in made:
        day.clean()


def finish(day: Day) -> None:
    """Clean up and verify a day that is sealed; on threads, for that is tried elsewhere."""
    day.master = "local[2]"
    day.finish(SESSION, sealed=True)
    phases = day.check(SESSION)
    # What was spilled is cleaned, unless all of it came back in time.
    back = any(entry.get("voided") for entry in day.entries() if entry["kind"] == "epoch")
    assert phases["run-time"] > 0, phases
    assert phases["cleanup"] > 0 or back, phases


def test_the_first_policy_is_the_default() -> None:
    assert Settings().rebalance.policy == POLICIES[0]


@pytest.mark.soak
@pytest.mark.parametrize("policy", POLICIES)
def test_killed_while_groups_move(make_day: MakeDay, policy: str) -> None:
    """Sender, receiver and driver die at each of their points, one after another."""
    points = DRIVERS[POLICIES.index(policy)]
    day = make_day("local-cluster[2,1,1024]")
    mover = Mover(day, policy)
    mover.run_through(points)
    day.ok("seal", "--session", SESSION)
    day.ok("stream", "--until-sealed", SESSION)
    mover.check(points)
    assert mover.longest_wait() <= 2, "a command waited for more than two epochs"
    finish(day)


@pytest.fixture
def spark_cluster(tmp_path: Path, spark_env: dict[str, str]) -> Iterator[Cluster]:
    """Two hosts, whose executors know the points of workers."""
    env = {**quick(spark_env), **WORKERS, "FAILPOINT_MARKERS": str(tmp_path / "day")}
    with standalone(tmp_path / "cluster", env, "127.0.0.2", "127.0.0.3") as cluster:
        yield cluster


@pytest.mark.soak  # in `make test`: `test_relocation`; drivers die in `test_trees`, hosts do not go
def test_killed_while_hosts_come_and_go(make_day: MakeDay, spark_cluster: Cluster) -> None:
    """The same on two hosts. Budgets change with each driver; one host is replaced at the end.

    By lazy-disk, which evens out whatever is uneven; `pooled` moves only what would be spilled.

    It goes while a batch waits for its job, and Spark would hold that back for it. Moves wait
    while a lost slot is restored.
    """
    day = make_day(spark_cluster.url)
    day.spark_env = {**day.spark_env, "SPARK_CONF_DIR": spark_cluster.env["SPARK_CONF_DIR"]}
    mover = Mover(day, POLICIES[1])
    mover.run_through(AT_HOSTS[:1])
    for point, budget in zip(AT_HOSTS[1:], BUDGETS, strict=True):
        day.extra["STATE__BUDGET_BYTES"] = str(budget)
        mover.run_until_killed(point)
    assert hosts(mover.journal) == {"127.0.0.2", "127.0.0.3"}
    markers = str(day.folder)
    with mover.streaming(FAILPOINT="moving-before-job:2:stop", FAILPOINT_MARKERS=markers) as stream:
        frozen = psutil.Process(stream.pid)
        mover.move_until(lambda: frozen.status() == psutil.STATUS_STOPPED, "a batch with moves")
        spark_cluster.lose("127.0.0.3")
        spark_cluster.start_worker("127.0.0.4")
        known = len(mover.journal.epochs())
        stream.send_signal(signal.SIGCONT)
        mover.move_until(lambda: any(mover.moved_from(mover.restored_from(known))), "a move after")
        assert hosts(mover.journal) == {"127.0.0.2", "127.0.0.4"}
        day.ok("seal", "--session", SESSION)
        wait_for(lambda: sealed(mover.journal) or ended(stream), WAIT_S, "the seal")
        stream.send_signal(signal.SIGTERM)
        assert stream.wait(60) == 0, day.tail()
    mover.check(AT_HOSTS)
    budgets = {slot["budget_bytes"] for entry in mover.journal.epochs() for slot in entry["slots"]}
    assert budgets == {BUDGET, *BUDGETS}
    finish(day)


def sealed(journal: JournalReader) -> bool:
    return any(entry["sealed"] for entry in journal.epochs())


def hosts(journal: JournalReader) -> set[str]:
    """Where the slots are now."""
    return {slot["host"] for slot in journal.epochs()[-1]["slots"]}
