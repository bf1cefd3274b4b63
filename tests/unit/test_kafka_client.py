"""Looks at a cluster, on sockets of our own."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from spillway.kafka import backlog
from spillway.kafka.backlog import BacklogReader
from spillway.kafka.client import (
    KafkaCluster,
    KafkaUnavailable,
    TopicProblem,
    cluster,
    demand_listener,
)
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


def test_a_host_that_nobody_knows_is_told_from_one_that_does_not_listen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = socket.create_connection

    def connect(address: tuple[str, int], **more: float) -> socket.socket:
        if address[0].endswith(".invalid"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(address, **more)

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(KafkaUnavailable, match=r"^this machine knows no host a\.invalid: check"):
        demand_listener("a.invalid:9092")
    with pytest.raises(KafkaUnavailable, match=r"^nothing listens at a\.invalid:9092,127"):
        demand_listener("a.invalid:9092,127.0.0.1:1")
    with socket.create_server(("127.0.0.1", 0)) as there:
        demand_listener(f"a.invalid:9092,127.0.0.1:{there.getsockname()[1]}")


RIGHTS = ("Read", "Write", "DescribeConfigs")


@pytest.mark.parametrize(
    ("code", "told", "lacks"),
    [
        (0, ["DESCRIBE", "READ", "WRITE", "DESCRIBE_CONFIGS"], ""),
        (0, ["DESCRIBE", "WRITE"], "Read and DescribeConfigs"),
        (29, None, "Read and Write and DescribeConfigs"),  # it may not even see it
        (3, None, ""),  # there is none yet
        (0, None, ""),  # a broker that tells no rights
        (0, ["READ"], ""),  # one that shows the topic, and says that it may not be seen
    ],
)
def test_rights_are_demanded_where_a_broker_tells_them(
    code: int, told: list[str] | None, lacks: str
) -> None:
    found = {"name": "t", "error_code": code, "partitions": [], "authorized_operations": told}
    view: Any = object.__new__(KafkaCluster)
    view._bootstrap, view._timeout_s = "h:1", 1.0
    view._admin = SimpleNamespace(describe_topics=lambda _: [found])
    if not lacks:
        view.demand_rights({"t": RIGHTS})
        return
    with pytest.raises(TopicProblem) as raised:
        view.demand_rights({"t": RIGHTS})
    assert f"grant {lacks} on topic t, " in raised.value.remedy
