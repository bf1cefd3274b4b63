"""Spark's streaming query under supervision: each batch is read in epochs, and the query is stopped
and started between two of them.

A batch of Spark's is all that Kafka has at its time. It is read in epochs, each as large as memory
has room for. Two threads meet here: Spark's, which runs the epochs of a batch, and the main one,
which runs epochs without rows while Kafka is silent, and stops the query. One lock makes every
epoch whole: it is held from the plan to the last table's commit.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spillway.allocators import give_back
from spillway.private import private_folder
from spillway.stream.source import batch_end, stream_rows
from spillway_schemas.journal import Offsets
from spillway_schemas.secret import Options

POLL_S = 0.1


@dataclass(frozen=True)
class EpochHooks:
    """What a batch asks of the stream."""

    epoch: Callable[[Offsets], bool]
    """Run an epoch towards these offsets, as far as there is room; whether it came as far as it
    may."""
    is_done: Callable[[], bool]
    """Whether no further epoch is wanted."""
    is_held: Callable[[], bool]
    """Whether no row may be read now."""
    is_ending: Callable[[], bool]
    """Whether the stream is to end soon: then nobody waits for more rows."""


class SupervisedQuery:
    """The query of one driver, which may be started many times."""

    def __init__(
        self,
        spark: Any,
        kafka: Options,
        folder: Path,
        hooks: EpochHooks,
        *,
        trigger_s: float,
        available_now: bool,
    ) -> None:
        """`folder`: of this driver's checkpoints, one for each start."""
        self._spark = spark
        self._kafka = kafka
        self._folder = folder
        self._hooks = hooks
        self._trigger_s = trigger_s
        self._available_now = available_now
        self._lock = threading.Lock()
        self._stopping = False
        self._refused = False
        self._failure: BaseException | None = None
        self._query: Any = None
        self._starts = 0
        self.checkpoint = folder
        self.left_rows = False
        """Whether the epochs of a batch have read less than it has: the query is ahead of the
        journal, and nothing makes it look back until it starts again."""

    def start(self, end: Offsets) -> None:
        """A new query with a new checkpoint, from these offsets."""
        self._starts += 1
        self._stopping = False  # not before: a batch of the query that was stopped may be left
        self._failure = None
        self.left_rows = False
        self._refused = False
        _end_idle_callbacks(self._spark)
        private_folder(self._folder.parent)
        # With the checkpoints of its earlier starts: a day has several, and a run many days.
        shutil.rmtree(self._folder, ignore_errors=True)
        self.checkpoint = self._folder / str(self._starts)
        rows = stream_rows(self._spark, self._kafka, end)
        writer = rows.writeStream.foreachBatch(self._on_batch)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        if self._available_now:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime="0 seconds")
        give_back()  # what the threads of the query before had
        self._query = writer.start()

    def stop(self) -> None:
        """Stop it between two epochs; a no-op before the first start."""
        if self._query is None:
            return
        self._stopping = True  # first: the epochs of a batch hardly leave the lock
        with self._lock:
            pass
        self._query.stop()

    @property
    def is_active(self) -> bool:
        """Whether it runs; if not, it failed or has read all there was."""
        return bool(self._query.isActive)

    @property
    def has_failed_epoch(self) -> bool:
        """Whether an epoch has failed, and not Spark's query alone."""
        return self._failure is not None

    @property
    def has_refused(self) -> bool:
        """Whether rows of a batch were not read because none might be. Spark takes them for read:
        without a new start they wait for the next batch."""
        return self._refused

    @property
    def failure(self) -> BaseException | None:
        """Why it has ended; None when it ended well."""
        return self._failure or self._query.exception()

    @property
    def recent_progress(self) -> list[Any]:
        """Spark's reports of its last batches."""
        return list(self._query.recentProgress)

    @contextmanager
    def at_rest(self) -> Iterator[bool]:
        """Keep batches away; False while one is being worked on, or failed."""
        if not self._lock.acquire(blocking=False):
            yield False
            return
        try:
            yield self._failure is None
        finally:
            self._lock.release()

    def _on_batch(self, _: Any, batch: int) -> None:
        """Spark's thread: a batch in one epoch or several, whose tasks read its rows themselves."""
        began = time.monotonic()
        try:
            end = batch_end(self.checkpoint, batch)
        except BaseException as error:
            self._failure = error
            raise
        while not self._next_epoch(end):
            pass
        self._pace(began)

    def _next_epoch(self, end: Offsets) -> bool:
        """Run the next epoch of a batch, unless there is to be none; whether no other follows."""
        with self._lock:
            if self._stopping or self._hooks.is_done():
                return True
            if self._hooks.is_held():
                self._refused = True
                return True
            try:
                return self._hooks.epoch(end)
            except BaseException as error:
                self._failure = error
                raise

    def _pace(self, began: float) -> None:
        """Wait for the trigger's time: all that there was is read."""
        until = began + self._trigger_s
        while (
            not self._available_now
            and not self._stopping
            and not self._hooks.is_ending()
            and time.monotonic() < until
        ):
            time.sleep(0.02)


def _end_idle_callbacks(spark: Any) -> None:
    """End the threads that served queries which are gone. Call it while no query runs.

    Each query has a thread of its own in the JVM, and py4j gives that a connection and a thread of
    this process for its batches. It keeps both: one more with every start, and with it what the
    allocators hold for a thread. This method of py4j's, which its own timer calls only where
    threads share connections, ends those that no call uses; the threads here end with them.
    """
    server = spark.sparkContext._gateway.java_gateway_server
    server.getCallbackClient().periodicCleanup()
