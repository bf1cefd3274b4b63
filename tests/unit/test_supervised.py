"""The supervised query without Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from spillway.stream import supervised
from spillway.stream.supervised import EpochHooks, SupervisedQuery
from spillway_schemas.journal import Offsets


class Writer:
    """Takes what a writer of Spark takes, and makes the checkpoint as Spark does."""

    def foreachBatch(self, _: Any) -> Writer:  # noqa: N802
        return self

    def option(self, _: str, folder: str) -> Writer:
        self.folder = Path(folder)
        return self

    def trigger(self, **_: Any) -> Writer:
        return self

    def start(self) -> None:
        self.folder.mkdir(parents=True)
        (self.folder / "offsets").write_text("0")


class Rows:
    """A streaming frame."""

    @property
    def writeStream(self) -> Writer:  # noqa: N802
        return Writer()


def test_a_start_leaves_no_checkpoint_of_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that runs for weeks starts its query again with every hold, loss and broker away."""
    monkeypatch.setattr(supervised, "stream_rows", lambda *_: Rows())
    hooks = EpochHooks(lambda _: True, *[lambda: False] * 3)
    folder = tmp_path / "checkpoints" / "w" / "1"
    query = SupervisedQuery(MagicMock(), {}, folder, hooks, trigger_s=1, available_now=False)
    for number in (1, 2, 3):
        query.start({})
        assert query.checkpoint == folder / str(number)
        assert list(folder.iterdir()) == [query.checkpoint]


@dataclass
class Supervised:
    """A query whose batches end at 10 times their number, in epochs of at most three rows."""

    query: SupervisedQuery
    at: int = 0
    epochs: list[int] = field(default_factory=list)
    """Where each ended."""
    during: Callable[[], None] = lambda: None
    """What happens while an epoch is worked on."""
    done: bool = False
    held: bool = False

    def epoch(self, end: Offsets) -> bool:
        self.at = min(end["t"][0], self.at + 3)
        self.epochs.append(self.at)
        self.during()
        return self.at == end["t"][0]


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Supervised:
    monkeypatch.setattr(supervised, "stream_rows", lambda *_: MagicMock())
    monkeypatch.setattr(supervised, "batch_end", lambda _, batch: {"t": [10 * batch]})
    made: list[Supervised] = []
    hooks = EpochHooks(
        lambda end: made[0].epoch(end),
        lambda: made[0].done,
        lambda: made[0].held,
        lambda: False,
    )
    query = SupervisedQuery(MagicMock(), {}, tmp_path / "c", hooks, trigger_s=0, available_now=True)
    made.append(Supervised(query))
    query.start({})
    return made[0]


def test_a_batch_takes_as_many_epochs_as_memory_has_room_for(running: Supervised) -> None:
    running.query._on_batch(None, 1)
    assert running.epochs == [3, 6, 9, 10]
    running.query._on_batch(None, 2)
    assert running.epochs == [3, 6, 9, 10, 13, 16, 19, 20]


@pytest.mark.parametrize("what", ["done", "held"])
def test_nothing_more_of_a_batch_is_read_once_the_stream_is_sealed_or_held(
    running: Supervised, what: str
) -> None:
    running.during = lambda: setattr(running, what, True)
    running.query._on_batch(None, 1)
    assert running.epochs == [3]
    # Spark takes the rest for read: only a new start comes to it.
    assert running.query.has_refused == (what == "held")


def test_a_stop_waits_for_an_epoch_and_not_for_its_batch(running: Supervised) -> None:
    """Kills: a stop that waits for the lock first. The epochs of a batch hardly leave it."""
    stops = threading.Thread(target=running.query.stop)

    def during() -> None:
        if not stops.ident:
            stops.start()
            until = time.monotonic() + 10
            while not running.query._stopping and time.monotonic() < until:
                time.sleep(0.01)

    running.during = during
    running.query._on_batch(None, 1)
    stops.join(10)
    assert not stops.is_alive()
    assert running.epochs == [3]
    running.query._on_batch(None, 1)  # what is left of the query that was stopped
    assert running.epochs == [3]
    running.query.start({})
    running.query._on_batch(None, 1)
    assert running.epochs == [3, 6, 9, 10]


def test_an_epoch_that_fails_ends_its_batch(running: Supervised) -> None:
    def during() -> None:
        raise RuntimeError("a task failed")

    running.during = during
    with pytest.raises(RuntimeError, match="a task failed"):
        running.query._on_batch(None, 1)
    assert running.epochs == [3]
    assert running.query.has_failed_epoch
    with running.query.at_rest() as is_free:
        assert not is_free


def test_an_epoch_without_rows_may_come_between_two_of_a_batch(running: Supervised) -> None:
    """Whoever asks for a rest does not have it while an epoch is worked on."""
    rests: list[bool] = []

    def during() -> None:
        with running.query.at_rest() as is_free:
            rests.append(is_free)

    running.during = during
    running.query._on_batch(None, 1)
    assert rests == [False] * 4
    with running.query.at_rest() as is_free:
        assert is_free


def test_a_batch_that_is_read_waits_for_the_trigger_and_a_stop_does_not(
    running: Supervised,
) -> None:
    query = running.query
    query._trigger_s, query._available_now = 0.3, False
    began = time.monotonic()
    query._on_batch(None, 1)
    assert 0.3 <= time.monotonic() - began < 5
    query._trigger_s = 60
    over = threading.Event()
    query._query.stop = over.wait  # as Spark's, which waits for the batch
    stops = threading.Timer(0.1, query.stop)
    stops.start()
    query._on_batch(None, 2)
    over.set()
    stops.join()
    assert time.monotonic() - began < 30
