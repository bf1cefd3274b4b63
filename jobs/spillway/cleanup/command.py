"""`spillway cleanup`: settings and query in, progress on the terminal, a report out."""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from spillway.cleanup.job import Cleaned, Progress, run_cleanup
from spillway.decode import join_spec
from spillway.stream.session import spark_session
from spillway.tables import Warehouse

if TYPE_CHECKING:
    from rich.console import Console

    from spillway_schemas.query import Query
    from spillway_schemas.settings import Settings


def run(session: str, settings: Settings, query: Query, console: Console | None) -> dict[str, Any]:
    """Clean a session; what came of it, as JSON would say it.

    Without a terminal progress goes to stderr, a line at a time. Raises what `run_cleanup` raises,
    and `NoWarehouse`.
    """
    warehouse = Warehouse(settings.warehouse.root, fsync=settings.warehouse.fsync)
    started: list[Any] = []

    bar = _Bar(console, session) if console is not None and console.is_terminal else None
    lines = _Lines(session)

    def start_spark() -> Any:
        (lines if bar is None else bar).starting()
        spark = spark_session(settings.spark.master, f"spillway cleanup {session}")
        started.append(spark)
        return spark

    try:
        cleaned = run_cleanup(
            start_spark,
            warehouse,
            join_spec(query),
            session,
            fingerprint=query.fingerprint,
            tell=partial(print, file=sys.stderr) if console is None else console.print,
            on_progress=lines.show if bar is None else bar.show,
        )
    finally:
        if bar is not None:
            bar.stop()
        for spark in started:
            spark.stop()
    if console is not None:
        console.print(sentence(cleaned), highlight=False, soft_wrap=True)
    swept = sum(len(found.delete) for found in warehouse.vacuum().values())
    if console is not None and swept:
        text = f"{swept:,} files that no table names were removed."
        console.print(text, highlight=False, soft_wrap=True)
    return asdict(cleaned)


def sentence(cleaned: Cleaned) -> str:
    """The outcome for people."""
    if cleaned.already:
        return (
            f"Session {cleaned.session} was cleaned already: {cleaned.cleanup:,} results by "
            "cleanup. Nothing was done."
        )
    if not cleaned.ranges:
        return f"Session {cleaned.session}: nothing was spilled, so nothing was missing."
    return (
        f"Session {cleaned.session} is cleaned: {cleaned.cleanup:,} missing results added to "
        f"{cleaned.run_time:,}, from {cleaned.spilled_rows:,} spilled rows in "
        f"{cleaned.generations:,} cuts, in {cleaned.seconds:.1f} s."
    )


LINES_EVERY_S = 1.0
"""A cleanup may have tens of thousands of ranges: a log wants no line for each."""


class _Lines:
    """Progress for a log: a line for the first range, the last, and once a second in between."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._told_s = -LINES_EVERY_S

    def starting(self) -> None:
        """Spark is started: it takes seconds."""
        print(f"cleanup {self._session}: starting Spark", file=sys.stderr, flush=True)

    def show(self, progress: Progress) -> None:
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


class _Bar:
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

    def starting(self) -> None:
        """Show it: there is work to do, and Spark is started first."""
        self._bars.update(self._task, description=f"{self._name}: starting Spark")
        self._bars.start()
        self._started = True

    def stop(self) -> None:
        """Leave the last state on the terminal."""
        if self._started:
            self._bars.stop()

    def show(self, progress: Progress) -> None:
        """Take over what the job reports."""
        self._bars.update(
            self._task,
            description=self._name,
            completed=progress.ranges_done,
            total=progress.ranges_total,
            rows=progress.rows,
            rate=progress.rows / max(progress.seconds, 1e-3),
        )
