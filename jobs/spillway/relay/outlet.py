"""The Kafka edge of a relay: fences earlier relays, reads the position, writes rows with the next.

Invariant: a transaction has the rows of one step and the position after it, so that whoever reads
what is committed finds a position and exactly the rows that it speaks of.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spillway.kafka.client import KafkaCluster, TopicMissing, TopicProblem, cluster, demand_listener
from spillway.kafka.last import has_committed, last_committed
from spillway.produce.keys import partitions_of
from spillway.produce.send import BATCH_BYTES, MAX_REQUEST_BYTES
from spillway.produce.transactions import TransactionalSender
from spillway.relay.encoding import records
from spillway.relay.kept import (
    RelayPosition,
    RelayRefused,
    position_topic,
    read_kept,
    transactional_id,
)
from spillway_schemas.secret import Options

OVERHEAD_BYTES = 100
"""What a batch of one record has besides key and value, at most."""


class Outlet:
    """One relay's connection. A context manager; for one thread."""

    def __init__(
        self,
        bootstrap: str,
        options: Options,
        topic: str,
        keys: Sequence[str],
        identity: Sequence[str],
        partitions: int | None,
        replication: int,
    ) -> None:
        """Look at the topics; with `partitions` make those that do not exist. Then fence.

        Raises `RelayRefused`, TopicProblem, KafkaUnavailable, ProducerFenced, NotPermitted,
        OptionError.
        """
        self.topic = topic
        self._keys = list(keys)
        self._identity = list(identity)
        self._place = position_topic(topic)
        demand_listener(bootstrap)
        with cluster(bootstrap, options) as view:
            # Before anything is made or written; and of topics that were only made, after that.
            view.demand_rights(_rights(topic))
            if partitions is not None:
                _make(view, topic, partitions, replication)
                view.demand_rights(_rights(topic))
            self.topic_id = _look(view, topic)
            configs = view.topic_configs([topic, self._place])
            most = int(configs[topic].get("max.message.bytes", MAX_REQUEST_BYTES))
            self._most_bytes = min(most, MAX_REQUEST_BYTES)
            _demand_compaction(self._place, configs[self._place].get("cleanup.policy", ""))
        self._sender = TransactionalSender(bootstrap, transactional_id(topic), options)
        try:
            self._sender.begin_session()
            # Only now: an earlier relay can write nothing any more.
            last = last_committed(bootstrap, options, self._place, 0)
            self.kept = None if last is None else read_kept(last, topic)
            # Of a relay that died in its first transaction there are records that nobody sees.
            of_rows = self._sender.partitions(topic)
            self.is_empty = self.kept is None and not has_committed(
                bootstrap, options, topic, of_rows
            )
        except BaseException:
            self._sender.close(wait=False)
            raise

    def __enter__(self) -> Outlet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._sender.close(wait=False)

    def begin(self) -> None:
        """Begin a transaction."""
        self._sender.begin()

    def send(self, rows: pa.Table) -> None:
        """Send rows of `results`. Raises `RelayRefused` for one that the topic does not take."""
        keys, values = records(rows, self._keys)
        size = pc.add(pc.binary_length(keys), pc.binary_length(values))
        if (most := pc.max(size).as_py() or 0) + OVERHEAD_BYTES > self._most_bytes:
            row = rows.select(self._identity).slice(pc.index(size, most).as_py(), 1).to_pylist()[0]
            raise RelayRefused(
                f"a result is a record of {most:,} bytes, and topic {self.topic} takes "
                f"{self._most_bytes - OVERHEAD_BYTES:,} (its max.message.bytes, at most "
                f"{MAX_REQUEST_BYTES:,}). It is the one of {row}. Raise max.message.bytes of the "
                "topic and start the relay again, or leave large fields out of a new query's "
                "results (results.columns). It goes on with this row: nothing is passed over"
            )
        places = partitions_of(keys, self._sender.partitions(self.topic))
        # A large record goes in a batch of its own: one that a broker refuses cannot be cut.
        sizes = np.asarray(size.to_numpy(zero_copy_only=False))
        large = np.flatnonzero(sizes > self._most_bytes // 3)
        begins = np.unique(np.concatenate([[0], large, large + 1])).tolist()
        for lo, hi in zip(begins, [*begins[1:], len(sizes)], strict=True):
            self._put(self.topic, places[lo:hi], keys[lo:hi], values[lo:hi])

    def commit(self, kept: RelayPosition) -> None:
        """Commit what was sent, and the position with it."""
        self._put(
            self._place,
            np.zeros(1, np.int32),
            pa.array([self.topic]),
            pa.array([kept.model_dump_json()]),
        )
        self._sender.commit()
        self.kept = kept

    def abort(self) -> None:
        """Take back what was sent since `begin`."""
        self._sender.abort()

    def _put(self, topic: str, places: npt.NDArray[np.int32], keys: Any, values: Any) -> None:
        now = np.full(len(places), int(time.time() * 1000), np.int64)
        batch = min(BATCH_BYTES, self._most_bytes // 3)
        self._sender.send_rows(topic, places, keys, values, now, batch)


def _rights(topic: str) -> dict[str, tuple[str, ...]]:
    """What a relay must be allowed to do with its topics. `Write` lets it see them, too."""
    return {
        topic: ("Write", "DescribeConfigs"),
        position_topic(topic): ("Read", "Write", "DescribeConfigs"),
    }


def _make(view: KafkaCluster, topic: str, partitions: int, replication: int) -> None:
    """Make the topics that do not exist."""
    there = set(view.existing_topics())
    if topic not in there:
        view.create_topics({topic: partitions}, replication=replication)
    if (place := position_topic(topic)) not in there:
        # Small segments: only closed ones are compacted.
        configs = {"cleanup.policy": "compact", "segment.bytes": str(2**20)}
        view.create_topics({place: 1}, configs, replication=replication)


def _look(view: KafkaCluster, topic: str) -> str:
    """The id of the rows' topic; both topics exist."""
    place = position_topic(topic)
    try:
        of_rows, of_position = view.topics([topic, place])
    except TopicMissing as error:
        raise TopicMissing(
            error.what,
            f"make {topic} with as many partitions as you like, and {place} with one and "
            "cleanup.policy=compact; or let the relay do it: --create PARTITIONS",
        ) from error
    if of_position.partitions != 1:
        raise TopicProblem(
            f"{place} has {of_position.partitions} partitions", "make it again, with one"
        )
    return of_rows.id


def _demand_compaction(place: str, policy: str) -> None:
    if policy.strip() != "compact":
        raise RelayRefused(
            f"{place} has cleanup.policy={policy or 'unknown'}: Kafka would "
            "eventually delete the position, and the relay could not tell what it has sent. Set "
            "cleanup.policy=compact"
        )
