"""How far a cleanup is: a bar on a terminal, lines in a log; and its outcome as a sentence."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spillway.cleanup.job import Cleaned, CleanupProgress

if TYPE_CHECKING:
    from rich.console import Console


def outcome_sentence(cleaned: Cleaned) -> str:
    """The outcome for people."""
    if cleaned.already:
        return (
            f"Session {cleaned.session} was cleaned already: {cleaned.cleanup:,} results by "
            "cleanup. Nothing was done."
        )
    if not cleaned.ranges:
        return f"Session {cleaned.session}: nothing was spilled, so nothing was missing."
    lost = f" and {cleaned.deferred_rows:,} that slots had lost" if cleaned.deferred_rows else ""
    which = "missing and unmatched" if cleaned.outer else "missing"
    return (
        f"Session {cleaned.session} is cleaned: {cleaned.cleanup:,} {which} results added to "
        f"{cleaned.run_time:,}, from {cleaned.spilled_rows:,} spilled rows{lost} in "
        f"{cleaned.generations:,} cuts, in {cleaned.seconds:.1f} s."
    )


@contextmanager
def progress_of(session: str, console: Console | None) -> Iterator[ProgressLines | ProgressBar]:
    """How far a session is: a bar on a console that is a terminal, lines on stderr elsewhere."""
    if console is None or not console.is_terminal:
        yield ProgressLines(session)
        return
    bar = ProgressBar(console, session)
    try:
        yield bar
    finally:
        bar.stop()


LINES_EVERY_S = 1.0
"""A cleanup may have tens of thousands of ranges: a log wants no line for each."""


class ProgressLines:
    """Progress for a log: a line for the first range, the last, and once a second in between."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._told_s = -LINES_EVERY_S

    def starting(self, what: str) -> None:
        """Something is started that takes seconds; empty: nothing."""
        if what:
            print(f"cleanup {self._session}: starting {what}", file=sys.stderr, flush=True)

    def show(self, progress: CleanupProgress) -> None:
        """Take over what the job reports."""
        done = progress.ranges_done == progress.ranges_total
        if not done and progress.seconds - self._told_s < LINES_EVERY_S:
            return
        self._told_s = progress.seconds
        print(
            f"cleanup {self._session}: {progress.ranges_done:,} of {progress.ranges_total:,} "
            f"ranges, {progress.rows:,} results, {progress.seconds:.1f} s",
            file=sys.stderr,
        )


class ProgressBar:
    """A progress bar: ranges, results, results a second."""

    def __init__(self, console: Console, session: str) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rows]:,} results, {task.fields[rate]:,.0f}/s"),
            TimeElapsedColumn(),
            console=console,
        )
        self._started = False
        self._name = f"cleanup {session}"
        self._task = self._bars.add_task(self._name, total=None, rows=0, rate=0.0)

    def starting(self, what: str) -> None:
        """Show it: there is work to do, and something is started first (empty: nothing)."""
        starts = f": starting {what}" if what else ""
        self._bars.update(self._task, description=f"{self._name}{starts}")
        self._bars.start()
        self._started = True

    def stop(self) -> None:
        """Leave the last state on the terminal."""
        if self._started:
            self._bars.stop()

    def show(self, progress: CleanupProgress) -> None:
        """Take over what the job reports."""
        self._bars.update(
            self._task,
            description=self._name,
            completed=progress.ranges_done,
            total=progress.ranges_total,
            rows=progress.rows,
            rate=progress.rows / max(progress.seconds, 1e-3),
        )
