"""The relay on real tables, killed at random calls: consumers of committed rows see each once.

The topic is a stand-in that has a transactional topic's promises and nothing else: what a
transaction holds is seen whole or not at all, and of one id the producer that began last works.
(`tests/integration/test_relay.py` holds a real broker to them.) Tables are compacted, their logs
pruned and their files deleted between.
"""

from __future__ import annotations

import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from spillway.following.position import next_step
from spillway.following.rows import Follower, HistoryChanged
from spillway.kafka.client import KafkaUnavailable
from spillway.relay import run
from spillway.relay.kept import RelayPosition
from spillway.relay.run import Telling, relay
from spillway.tables import TableReplaced, Warehouse, log
from tests.followed import IDENTITY, Followed
from tests.lanes import explored


class Killed(BaseException):
    """The process is gone."""


class Fenced(Exception):
    """Another producer has begun."""


class Topic:
    """What Kafka keeps: rows that are committed, and the position."""

    def __init__(self) -> None:
        self.offsets = 0
        """Records that were sent, of transactions that were aborted, too."""
        self.rows: list[int] = []
        self.kept: RelayPosition | None = None
        self.producer = 0


class Connection:
    """One relay's. Dies at call number `dies_at`: before it, or after it was done."""

    topic = "t"
    topic_id = "t-id"

    def __init__(self, kafka: Topic, dies_at: float, after: bool, error: BaseException) -> None:
        self._kafka = kafka
        self._dies_at, self._after, self._error = dies_at, after, error
        self._calls = 0
        self._open: list[int] = []
        kafka.producer += 1
        self._producer = kafka.producer
        self.kept = kafka.kept
        self.is_empty = not kafka.offsets

    @contextmanager
    def _call(self) -> Iterator[None]:
        self._calls += 1
        dies = self._calls == self._dies_at
        if dies and not self._after:
            raise self._error
        if self._producer != self._kafka.producer:
            raise Fenced
        yield
        if dies:
            raise self._error

    def begin(self) -> None:
        with self._call():
            self._open = []

    def send(self, rows: pa.Table) -> None:
        with self._call():
            self._open += rows["stock_offset"].to_pylist()
            self._kafka.offsets += rows.num_rows

    def commit(self, kept: RelayPosition) -> None:
        with self._call():
            self._kafka.rows += self._open
            self._kafka.kept = RelayPosition.model_validate_json(kept.model_dump_json())

    def abort(self) -> None:
        self._open = []


class Meanwhile(threading.Event):
    """Between two looks of a relay these happen, one after the other; then it ends."""

    def __init__(self, *happens: Callable[[], object]) -> None:
        super().__init__()
        self._happens = list(happens)

    def wait(self, timeout: float | None = None) -> bool:
        if self._happens:
            self._happens.pop(0)()
        else:
            self.set()
        return self.is_set()


def relay_once(
    follower: Follower, connection: Connection, stop: threading.Event | None = None
) -> None:
    """With `stop`: until that is set."""

    @contextmanager
    def connect() -> Iterator[Connection]:
        yield connection

    relay(
        follower,
        connect,
        "w",
        once=stop is None,
        from_now=False,
        stop=stop or threading.Event(),
        telling=Telling(),
        fits=lambda: None,
    )


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of few rows, and logs of which nothing is kept before a checkpoint."""
    monkeypatch.setattr(run, "next_step", partial(next_step, most_rows=8))
    monkeypatch.setattr(log, "KEEP_ENTRIES", 0)
    monkeypatch.setattr(log, "KEEP_S", -10.0)


def follower(results: Followed) -> Follower:
    return Follower(Warehouse(str(results.root), fsync=False), IDENTITY)


@explored(10, 25, st.randoms(use_true_random=False), soak=400)
def test_whatever_is_killed_each_row_is_committed_once(choices: random.Random) -> None:
    with TemporaryDirectory() as folder:
        results, kafka = Followed(Path(folder)), Topic()
        living, zombies = follower(results), []
        makes = (results.compact, results.checkpoint, results.vacuum, results.seal)
        for _ in range(choices.randrange(14)):
            match choices.choice(("epoch", "epoch", "make", "make", "clean", "relay", "zombie")):
                case "epoch":
                    results.run_epoch([choices.randrange(12) for _ in range(choices.randrange(3))])
                case "make":
                    choices.choice(makes)()
                case "clean" if results.waiting:
                    session = choices.choice(sorted(results.waiting))
                    results.clean(session, choices.randrange(12))
                    if choices.random() < 0.6:
                        results.finish(session)
                case "relay":
                    dies_at = choices.choice((1, 2, 3, 4, 5, 9, float("inf")))
                    error = choices.choice((Killed(), KafkaUnavailable("away")))
                    connection = Connection(kafka, dies_at, choices.random() < 0.5, error)
                    if choices.random() < 0.5:  # a process of its own, or one that lives on
                        living = follower(results)
                    try:
                        relay_once(living, connection)
                    except (Killed, KafkaUnavailable):
                        zombies.append(connection)
                case "zombie" if zombies:
                    Connection(kafka, float("inf"), False, Killed())  # its successor
                    with pytest.raises(Fenced):
                        zombies.pop().commit(RelayPosition(warehouse="w", topic="t-id"))
        relay_once(follower(results), Connection(kafka, float("inf"), False, Killed()))
        assert Counter(kafka.rows) == Counter(results.given)
        assert kafka.kept is None or kafka.kept.rows == len(kafka.rows)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("dies_at", range(1, 6))
def test_what_a_killed_first_relay_has_left_is_not_another_programs(
    tmp_path: Path, dies_at: int, after: bool
) -> None:
    results, kafka = Followed(tmp_path), Topic()
    results.run_epoch([3, 2])
    with pytest.raises(Killed):
        relay_once(follower(results), Connection(kafka, dies_at, after, Killed()))
    relay_once(follower(results), Connection(kafka, float("inf"), False, Killed()))
    assert Counter(kafka.rows) == Counter(results.given)


def test_a_process_that_slept_looks_again(tmp_path: Path) -> None:
    """The log entries after those that it saw are gone; then only `sessions` has something new."""
    results, kafka = Followed(tmp_path), Topic()
    results.run_epoch([3])
    living = follower(results)
    relay_once(living, Connection(kafka, float("inf"), False, Killed()))
    for _ in range(6):
        results.run_epoch([2, 2])
        results.compact()
        results.checkpoint()
    results.seal()
    results.clean(0, 5)
    results.vacuum()
    relay_once(living, Connection(kafka, float("inf"), False, Killed()))
    assert Counter(kafka.rows) == Counter(results.given)
    results.finish(0)
    results.warehouse.table("sessions").checkpoint(1)
    relay_once(living, Connection(kafka, float("inf"), False, Killed()))
    assert Counter(kafka.rows) == Counter(results.given)


def test_a_warehouse_that_was_restored_is_not_gone_on_with(tmp_path: Path) -> None:
    """From before the position, and from before it with other epochs since."""
    results, kafka = Followed(tmp_path / "a"), Topic()
    results.run_epoch([3])
    results.run_epoch([4])
    relay_once(follower(results), Connection(kafka, float("inf"), False, Killed()))
    restored = Followed(tmp_path / "b")
    restored.run_epoch([3])
    with pytest.raises(HistoryChanged, match="end at epoch 0, and epoch 1 was taken before"):
        relay_once(follower(restored), Connection(kafka, float("inf"), False, Killed()))
    restored.run_epoch([2])
    restored.run_epoch([2])
    with pytest.raises(HistoryChanged, match="from epoch 1 on it has other rows"):
        relay_once(follower(restored), Connection(kafka, float("inf"), False, Killed()))
    assert len(kafka.rows) == 7


@pytest.mark.parametrize(
    ("epochs", "pruned", "error", "told"),
    [
        (2, False, TableReplaced, "its log ends at version 2, and version 4 was seen before"),
        # As long as the other one: noticed with the next epoch.
        (4, False, TableReplaced, "version 4 is another one than was seen before"),
        (6, False, TableReplaced, "version 4 is another one than was seen before"),
        (6, True, HistoryChanged, "from epoch 3 on it has other rows"),
    ],
)
def test_a_relay_that_lives_through_a_restore_notices(
    tmp_path: Path, epochs: int, pruned: bool, error: type[Exception], told: str
) -> None:
    """It was asleep, or the restored log has grown past what it knows between two looks."""
    results, kafka = Followed(tmp_path / "a"), Topic()
    restored = Followed(tmp_path / "b")
    restored._next = 1_000
    for _ in range(4):
        results.run_epoch([2])
    for _ in range(epochs):
        restored.run_epoch([2])
    if pruned:
        restored.checkpoint()

    def restore() -> None:
        shutil.rmtree(results.root)
        shutil.copytree(restored.root, results.root)

    def goes_on() -> None:
        restored.run_epoch([2])
        restore()

    connection = Connection(kafka, float("inf"), False, Killed())
    with pytest.raises(error, match=told):
        relay_once(follower(results), connection, Meanwhile(restore, goes_on))
    assert Counter(kafka.rows) == Counter(results.given)
    with pytest.raises(HistoryChanged):
        relay_once(follower(results), Connection(kafka, float("inf"), False, Killed()))


def test_a_relay_that_runs_takes_what_comes_between_its_looks(tmp_path: Path) -> None:
    results, kafka = Followed(tmp_path), Topic()
    results.run_epoch([3])
    stop = Meanwhile(
        lambda: results.run_epoch([2, 2]),
        results.compact,
        results.checkpoint,
        results.seal,
        lambda: results.run_epoch([1]),
    )
    relay_once(follower(results), Connection(kafka, float("inf"), False, Killed()), stop)
    assert Counter(kafka.rows) == Counter(results.given)
