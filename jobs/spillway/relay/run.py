"""The relay's loop: look, take the next step, commit it with the position, look again.

Failure paths:

* *Killed at any moment*: the transaction under way is aborted by the next start, or its commit is
  completed by Kafka; the position that the next start reads says which, and is never about rows
  that are not there.
* *Kafka goes away*: what was begun is given up. With `once` that is an error; else the relay
  connects anew, as a start does, until Kafka is back. Each reason is told once, and the end.
* *Two relays of one topic*: the one that began last works; the other one ends and says so.
* *The query changes*: what was seen before is in the topic, nothing of the changed query's is.
* *The tables are restored from a backup*: noticed at the start, and at the first look that finds
  something new. What such a look costs more, see `Follower.check` and `Table.demand_entry`.
* *A file goes while it is read* (a process that slept for a day): an error; the next start reads
  the files of then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from spillway.following.position import FollowStep, Seen, next_step, now, taken
from spillway.following.rows import Follower, newest_of
from spillway.kafka.client import KafkaUnavailable
from spillway.relay.kept import RelayPosition, begin

POLL_S = 0.5
"""How often the table is looked at when nothing is new."""
RETRY_S = 5.0


class RowOutlet(Protocol):
    """Where rows go. See `spillway.relay.outlet.Outlet`."""

    topic: str
    topic_id: str
    kept: RelayPosition | None
    is_empty: bool

    def begin(self) -> None:
        """Begin a transaction."""

    def send(self, rows: pa.Table) -> None:
        """Send rows of `results`."""

    def commit(self, kept: RelayPosition) -> None:
        """Commit what was sent, and the position with it."""

    def abort(self) -> None:
        """Take back what was sent since `begin`."""


@dataclass(frozen=True)
class Relayed:
    """A step that is in the topic."""

    step: FollowStep
    rows: int
    total: int
    """Rows that were relayed in all, since the relay's first start."""
    seconds: float


@dataclass
class Telling:
    """What is told while a relay runs."""

    on_start: Callable[[RelayPosition], None] = lambda _: None
    on_step: Callable[[Relayed], None] = lambda _: None
    on_trouble: Callable[[str], None] = lambda _: None


def relay(
    follower: Follower,
    connect: Callable[[], AbstractContextManager[RowOutlet]],
    warehouse: str,
    *,
    once: bool,
    from_now: bool,
    stop: threading.Event,
    telling: Telling,
    fits: Callable[[], None],
) -> None:
    """Relay until `stop` is set; with `once` until everything that is there at the start is in.

    `connect` fences earlier relays. `fits` is asked when a look has found something new, and raises
    where that cannot be relayed. Raises `RelayRefused`, `HistoryChanged`, `TableReplaced`,
    ProducerFenced, NotPermitted, TopicProblem, `WarehouseError`; KafkaUnavailable with `once`, and
    when Kafka does not answer at the start.
    """
    begun, trouble = False, ""
    while not stop.is_set():
        try:
            with connect() as rows:
                seen = follower.look()
                kept = _begin(rows, follower, seen, warehouse, from_now)
                if not begun:
                    telling.on_start(kept)
                if trouble:
                    telling.on_trouble("Kafka answers again")
                begun, trouble = True, ""
                _run(follower, rows, kept, seen, once, stop, telling, fits)
                return
        except KafkaUnavailable as error:
            if once or not begun:
                raise
            if str(error) != trouble:  # else it was told
                trouble = str(error)
                telling.on_trouble(f"{trouble}. Trying again every {RETRY_S:.0f} s")
            stop.wait(RETRY_S)


def _begin(
    rows: RowOutlet, follower: Follower, seen: Seen, warehouse: str, from_now: bool
) -> RelayPosition:
    first = rows.kept is None
    kept = begin(
        rows.kept,
        topic=rows.topic,
        topic_id=rows.topic_id,
        warehouse=warehouse,
        is_empty=rows.is_empty,
        from_now=from_now,
    )
    if first:
        # Before any row: a topic with what a transaction has left is not empty any more. And from
        # when on rows are wanted is decided once.
        if from_now:
            kept = kept.model_copy(update={"position": now(seen)})
        rows.begin()
        rows.commit(kept)
    follower.check(kept.position, seen)
    return kept


def _run(
    follower: Follower,
    rows: RowOutlet,
    kept: RelayPosition,
    seen: Seen,
    once: bool,
    stop: threading.Event,
    telling: Telling,
    fits: Callable[[], None],
) -> None:
    while not stop.is_set():
        if next_step(kept.position, seen) is not None:
            fits()
        while (step := next_step(kept.position, seen)) is not None and not stop.is_set():
            began = time.monotonic()
            later = deliver(follower, rows, kept, step)
            count = later.rows - kept.rows
            kept = later
            telling.on_step(Relayed(step, count, kept.rows, time.monotonic() - began))
        if once:
            return
        stop.wait(POLL_S)
        before, seen = seen, follower.look()
        if seen is not before:
            # A process outlives a restore: here it would be noticed, or never.
            follower.check(kept.position, seen)


def deliver(
    follower: Follower, rows: RowOutlet, kept: RelayPosition, step: FollowStep
) -> RelayPosition:
    """Relay one step, whole; what is kept then. Whatever it raises, nothing was relayed, unless
    Kafka did not say whether it has committed."""
    newest, count = kept.position.newest, kept.rows
    rows.begin()
    try:
        for some in follower.read(step):
            if some.num_rows:
                rows.send(some)
                newest, count = newest_of(some, newest), count + some.num_rows
        position = taken(kept.position, step, newest)
        later = kept.model_copy(update={"rows": count, "position": position})
        rows.commit(later)
    except BaseException:
        rows.abort()
        raise
    return later
