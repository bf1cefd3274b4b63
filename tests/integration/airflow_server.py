"""The demo's `airflow standalone`, for tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from spillway.demo.airflow import OVER, Airflow, start
from tests.integration.day import wait_for

START_S = 240.0


@contextlib.contextmanager
def airflow(home: Path, more: Mapping[str, str], users: str = "admin:admin") -> Iterator[Airflow]:
    """Start it, wait until it is healthy and knows the DAGs; end all of it."""
    server = start(home, more, users)
    try:
        wait_for(server.is_healthy, START_S, "a healthy Airflow", every_s=1.0)
        server.login()
        wait_for(lambda: server.knows("market_open", "market_close"), START_S, "the DAGs", 0.5)
        yield server
    finally:
        server.end()


def finish(server: Airflow, dag: str, run: str, seconds: float = 300) -> str:
    """Wait for the end of a run; how it ended."""
    wait_for(
        lambda: server.state(dag, run) in OVER, seconds, f"{dag} {server.tasks(dag, run)}", 1.0
    )
    return server.state(dag, run)
