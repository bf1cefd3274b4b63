"""Processes of this host that work for this one, and end with it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

LOOK_S = 1.0
"""How often a process looks whether the one that it works for is there."""


def worker_processes(
    number: int, module: str, begin: Callable[..., None], *given: Any
) -> ProcessPoolExecutor:
    """Processes that have imported a module; each calls `begin` with what is `given` first."""
    # Not forked from here: that would copy the locks of other threads as they happen to be.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module])
    return ProcessPoolExecutor(number, context, _begin, (os.getpid(), begin, given))


def _begin(parent: int, begin: Callable[..., None], given: tuple[Any, ...]) -> None:
    os.environ["POLARS_MAX_THREADS"] = "1"  # the processes are as many as the cores
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever began the work ends it
    _ends_with(parent)  # nor does it go on when that was killed
    begin(*given)


def _ends_with(parent: int) -> None:
    """End this process once another is gone: the server that forked it does not."""

    def watch() -> None:
        while os.path.exists(f"/proc/{parent}"):
            time.sleep(LOOK_S)
        os._exit(1)

    if os.path.exists("/proc"):
        threading.Thread(target=watch, name="parent", daemon=True).start()
