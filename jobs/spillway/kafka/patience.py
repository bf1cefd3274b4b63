"""A bound on what kafka-python would wait for without end: transactions that begin or end."""

from __future__ import annotations

import threading
from collections.abc import Callable

WAIT_S = 60.0


def within(act: Callable[[], object], seconds: float = WAIT_S) -> None:
    """Do it. Raises what it does, and KafkaTimeoutError when it takes longer; it then goes on, on a
    thread that ends with the process."""
    from kafka.errors import KafkaTimeoutError

    failed: list[Exception] = []

    def run() -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - handed to the thread that waits
            failed.append(error)

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    worker.join(seconds)
    if failed:
        raise failed[0]
    if worker.is_alive():
        raise KafkaTimeoutError(f"no answer within {seconds:.0f} s")
