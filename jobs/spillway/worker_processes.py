"""Processes of this host that work for this one, and end with it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any

from spillway.arrow_alone import arrow_alone
from spillway.processes import process_identity, process_runs

LOOK_S = 1.0
"""How often a process looks whether the one that it works for is there."""


class WorkerProcesses(ProcessPoolExecutor):
    """A pool whose work can be ended under way. Each process has imported a module, and calls
    `begin` with what is `given` first. What it is to do must not be defined in `__main__`."""

    def __init__(self, number: int, module: str, begin: Callable[..., None], *given: Any) -> None:
        # Not forked from here: that would copy the locks of other threads as they happen to be.
        self._noted = _Noted()
        self._noted.set_forkserver_preload([module])
        super().__init__(number, self._noted, _begin, (process_identity(), begin, given))

    def end(self) -> None:
        """Begin nothing more, and end what is under way: its callers get `BrokenProcessPool`."""
        self.shutdown(wait=False, cancel_futures=True)
        for each in self._noted.made:
            each.terminate()


class _Noted(ForkServerContext):
    """Notes the processes that it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[BaseProcess] = []

    def Process(self, *given: Any, **named: Any) -> BaseProcess:  # type: ignore[override]  # noqa: N802
        made = _WithoutMain(*given, **named)
        self.made.append(made)
        return made


class _WithoutMain(ForkServerProcess):
    """A process that does not import the module that this one was started with. Of a command line
    that would be all of its commands: up to half a second of a core in every process."""

    _swaps = threading.Lock()

    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Any:  # noqa: N802
        with _WithoutMain._swaps:
            main = sys.modules["__main__"]
            # Other threads find in it what they look for.
            nowhere = ModuleType("__main__")
            vars(nowhere).update({**vars(main), "__spec__": None, "__file__": None})
            try:  # from here on: an interrupt must not leave the other one there
                sys.modules["__main__"] = nowhere
                return ForkServerProcess._Popen(process_obj)
            finally:
                sys.modules["__main__"] = main


def keep_freed_memory() -> None:
    """Have glibc keep what is freed, up to twice the largest block that was mapped and freed.

    Without it the vectors of each piece of values are given back to the system, and their pages
    made anew for the next: half of the time of decoding.
    """
    import numpy as np

    np.empty(16 << 20, np.uint8)


def _begin(parent: str, begin: Callable[..., None], given: tuple[Any, ...]) -> None:
    arrow_alone()
    os.environ["POLARS_MAX_THREADS"] = "1"  # the processes are as many as the cores
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever began the work ends it
    _ends_with(parent)  # nor does it go on when that was killed
    begin(*given)


def _ends_with(parent: str) -> None:
    """End this process once another is gone: the server that forked it does not.

    `parent`: its `process_identity`, for another process may get its number; empty where the kernel
    does not tell.
    """

    def watch() -> None:
        while process_runs(parent) is not False:
            time.sleep(LOOK_S)
        os._exit(1)

    if parent:
        threading.Thread(target=watch, name="parent", daemon=True).start()
