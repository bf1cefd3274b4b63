"""Looks at a cluster, on sockets of our own."""

from __future__ import annotations

import socket
import threading

import pytest

from spillway.kafka.client import KafkaUnavailable, cluster


def test_looks_at_a_broker_that_hangs_leave_no_threads_behind() -> None:
    """A stream, and what serves figures, look again and again for days."""
    before = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        at = f"127.0.0.1:{hangs.getsockname()[1]}"
        for _ in range(2):
            with pytest.raises(KafkaUnavailable, match="does not answer"), cluster(at, {}, 0.2):
                pass
    assert set(threading.enumerate()) <= before
