"""Functions that run at once, each in a process of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

RACES = multiprocessing.get_context("forkserver")
"""deltalake does not survive a fork once it was used. The server of forks has only imported it,
once for all races of a run: a process that is started anew takes seconds for that."""
RACES.set_forkserver_preload(
    [
        "pytest",
        "typer.testing",
        "spillway.cli",
        "spillway.maintenance",
        "tests.integration.spilled_day",
    ]
)


def race(*racers: tuple[Callable[..., None], tuple[Any, ...]]) -> None:
    """Run (function, arguments), all at the same time, until the last has ended well."""
    processes = [RACES.Process(target=target, args=given) for target, given in racers]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
