"""Looks at a cluster, on sockets of our own."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import pytest

from spillway.kafka import backlog
from spillway.kafka.backlog import BacklogReader
from spillway.kafka.client import KafkaUnavailable, cluster
from spillway.kafka.last import has_committed, last_committed
from spillway.kafka.reading import TopicReader

PATIENCE_S = 0.2
CLIENTS_OWN_S = 20.0
"""Less than a client of kafka-python waits for a broker when nobody tells it how long."""


def look_at_topics(at: str) -> None:
    with cluster(at, {}, PATIENCE_S):
        pass


LOOKS: dict[str, Callable[[str], object]] = {
    "topics": look_at_topics,
    "backlog": lambda at: BacklogReader(at, {}).look({"stock": [0]}),
    "last record": lambda at: last_committed(at, {}, "results", 0, PATIENCE_S),
    "any record": lambda at: has_committed(at, {}, "results", 1, PATIENCE_S),
    "rows": lambda at: TopicReader(at, {}, PATIENCE_S),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_looks_at_a_broker_that_hangs_leave_no_threads_behind(
    look: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream, and what serves figures, look again and again for days."""
    monkeypatch.setattr(backlog, "LOOK_ANSWER_S", PATIENCE_S)
    before, began = set(threading.enumerate()), time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        at = f"127.0.0.1:{hangs.getsockname()[1]}"
        for _ in range(2):
            with pytest.raises(KafkaUnavailable, match="does not ") as raised:
                look(at)
            assert raised.value.remedy
    assert set(threading.enumerate()) <= before
    assert time.monotonic() - began < CLIENTS_OWN_S
