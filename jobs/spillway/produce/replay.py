"""Replay: recorded rows sent again, with their own timing, faster, or as fast as possible.

A row is due at its recorded time, counted from the recording's first; one whose time is unknown,
or lies before the row above it, is due together with that one. Rows keep their order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spillway.kafka.client import demand_listener
from spillway.produce.keys import partitions_of
from spillway.produce.recording import Piece, RecordingError, pieces
from spillway.produce.send import Sender
from spillway.produce.summary import ProducedTally, ProduceProgress, Report, Summary
from spillway.produce.topics import AssureNew, any_is_new, create_topics
from spillway_schemas.secret import Options

TICK_S = 0.05


def replay(
    path: Path,
    bootstrap: str,
    *,
    options: Options | None = None,
    topic: str | None = None,
    speed: float | None = None,
    partitions: int = 4,
    assure_new: AssureNew = any_is_new,
    progress: Report | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Summary:
    """Send a recording.

    Args:
        path: the recording.
        bootstrap: brokers, `host:port` separated by commas.
        options: Kafka client options by their Java names.
        topic: where messages go whose recording names no topic.
        speed: 1.0 keeps the recording's own timing, 60.0 is sixty times as fast, None is as fast
            as possible.
        partitions: of topics that do not exist yet.
        assure_new: raises where one of these topics, which do not exist, may not be made.
        progress: called now and then.
        clock, sleep: time, for tests.

    Returns the summary once the broker has acknowledged everything. Raises RecordingError for a
    file that cannot be read to its end, before anything is sent; KafkaUnavailable and TopicProblem.
    """
    if speed is not None and not speed > 0:
        raise ValueError(f"speed must be above 0, not {speed}")
    begun = clock()
    tallies: dict[str, ProducedTally] = {}
    # All of it is read before any of it is sent: half a recording would be hard to take back.
    total, topics = 0, set[str]()
    try:
        for piece in pieces(path, topic):
            total += len(piece.topics)
            topics.update(piece.topics)
    except RecordingError as error:
        raise RecordingError(f"{error}. Nothing was sent") from None
    demand_listener(bootstrap)
    create_topics(dict.fromkeys(topics, partitions), bootstrap, options, assure_new)
    with Sender(bootstrap, options) as sender:
        timer = _Timer(speed, clock, sleep)
        for piece in pieces(path, topic):
            for lo, hi in timer.ready(piece.at_ms):
                _send(sender, piece, lo, hi, tallies)
                if progress is not None:
                    sent = sum(t.rows for t in tallies.values())
                    size = sum(t.value_bytes for t in tallies.values())
                    progress(ProduceProgress(sent, total, size, clock() - begun))
        sender.flush()
    return Summary(topics=list(tallies.values()), seconds=clock() - begun, processes=1)


def _send(
    sender: Sender, piece: Piece, lo: int, hi: int, tallies: dict[str, ProducedTally]
) -> None:
    names = np.array(piece.topics[lo:hi], dtype=object)
    now_ms = int(time.time() * 1000)
    for topic in dict.fromkeys(piece.topics[lo:hi]):
        rows = pa.array(lo + np.flatnonzero(names == topic))
        keys, values = piece.keys.take(rows), piece.values.take(rows)
        places = partitions_of(keys, sender.partitions(topic))
        sender.send_rows(topic, places, keys, values, np.full(len(rows), now_ms, dtype=np.int64))
        size = pc.sum(pc.binary_length(values)).as_py() or 0
        tallies.setdefault(topic, ProducedTally(topic)).add(ProducedTally(topic, len(rows), size))


class _Timer:
    """When rows may go: their recorded times, counted from the first one."""

    def __init__(
        self, speed: float | None, clock: Callable[[], float], sleep: Callable[[float], None]
    ):
        self._speed = speed
        self._clock = clock
        self._sleep = sleep
        self._begun = clock()
        self._first_ms: int | None = None
        self._latest_ms = 0

    def ready(self, at_ms: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        """Ranges of rows, each once it is due."""
        if self._speed is None:
            yield 0, len(at_ms)
            return
        known = at_ms[at_ms >= 0]
        if self._first_ms is None and len(known):
            self._first_ms = self._latest_ms = int(known[0])
        # Never before the row above it, in this piece or an earlier one.
        due_ms = np.maximum.accumulate(np.maximum(at_ms, self._latest_ms))
        self._latest_ms = int(due_ms[-1]) if len(due_ms) else self._latest_ms
        due_s = (due_ms - (self._first_ms or 0)) / 1000 / self._speed
        sent = 0
        while sent < len(due_s):
            upto = int(np.searchsorted(due_s, self._clock() - self._begun, side="right"))
            if upto > sent:
                yield sent, upto
                sent = upto
            else:
                wait = due_s[sent] - (self._clock() - self._begun)
                self._sleep(min(max(wait, 0.001), TICK_S))
