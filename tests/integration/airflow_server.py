"""The demo's `airflow standalone`, for tests."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from spillway import calendar as exchange
from spillway.demo.airflow import OVER, Airflow, start
from tests.integration.day import wait_for

START_S = 240.0


@contextlib.contextmanager
def airflow(home: Path, more: Mapping[str, str], users: str = "admin:admin") -> Iterator[Airflow]:
    """Start it, wait until it is healthy and knows the DAGs; end all of it."""
    with ready(start(home, more, users), "market_open", "market_close") as server:
        yield server


@contextlib.contextmanager
def ready(server: Airflow, *dags: str) -> Iterator[Airflow]:
    """Wait for one that was started; end all of it."""
    try:
        wait_for(server.is_healthy, START_S, "a healthy Airflow", every_s=1.0)
        server.login()
        wait_for(lambda: server.knows(*dags), START_S, "the DAGs", 0.5)
        yield server
    finally:
        server.end()


def finish(server: Airflow, dag: str, run: str, seconds: float = 300) -> str:
    """Wait for the end of a run; how it ended."""
    wait_for(
        lambda: server.state(dag, run) in OVER, seconds, f"{dag} {server.tasks(dag, run)}", 1.0
    )
    return server.state(dag, run)


def calm_calendar(seconds: float, delay_s: float) -> str:
    """An exchange that does not close while a test lasts: the last session stays the last. A day is
    closed `delay_s` after its close."""
    now_s = time.time()
    return next(
        name
        for name in ("XNYS", "XTKS")
        if last_closed(name, now_s - delay_s) == last_closed(name, now_s + seconds)
    )


def last_closed(calendar: str, at_s: float) -> str:
    """An exchange's last session that had closed, `at_s` seconds since 1970."""
    found = exchange.last_closed(calendar, int(at_s * 1000))
    assert found is not None
    return found.date
