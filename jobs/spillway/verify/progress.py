"""What a proof is doing, a line at a time: the same in a terminal and in a log.

A step is told when it begins, and again every few seconds with what is known of how far it is, so
that nobody takes a proof that works for one that hangs.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

AGAIN_S = 5.0
"""How often a step is told again."""


def to_stderr(line: str) -> None:
    """A line for the terminal or the log, at once."""
    print(line, file=sys.stderr, flush=True)


class VerifyProgress:
    """Tells the steps of one proof. A context manager: at its end nothing is told any more."""

    def __init__(
        self, session: str, tell: Callable[[str], None], *, again_s: float = AGAIN_S
    ) -> None:
        """`tell` takes one line; it is called from a thread of its own, too."""
        self._session = session
        self._tell = tell
        self._again_s = again_s
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._step = ""
        self._how_far: Callable[[], str] | None = None
        self._began = time.monotonic()
        self._teller = threading.Thread(target=self._repeat, name="progress", daemon=True)

    def __enter__(self) -> VerifyProgress:
        self._teller.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._teller.join()

    def step(self, text: str, how_far: Callable[[], str] | None = None) -> None:
        """A step begins. `how_far`: how far it is, asked whenever it is told again."""
        with self._lock:
            self._step, self._how_far = text, how_far
            self._tell(f"verify {self._session}: {text}")

    def _repeat(self) -> None:
        while not self._ended.wait(self._again_s):
            with self._lock:
                if not self._step:
                    continue
                how_far = self._how_far() if self._how_far is not None else ""
                seconds = time.monotonic() - self._began
                parts = [self._step, *([how_far] if how_far else []), f"{seconds:.0f} s"]
                self._tell(f"verify {self._session}: {', '.join(parts)}")


def tasks_of(spark: object) -> str:
    """`12 of 40 tasks` of what Spark is working at; empty between its stages."""
    tracker = spark.sparkContext.statusTracker()  # type: ignore[attr-defined]
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    if not known:
        return ""
    done = sum(stage.numCompletedTasks for stage in known)
    return f"{done:,} of {sum(stage.numTasks for stage in known):,} tasks"
