"""The progress bar of `spillway produce`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as RichProgress

from spillway.produce.summary import ProduceProgress, Report


@contextlib.contextmanager
def progress_bar(label: str = "produce", console: Console | None = None) -> Iterator[Report]:
    """A bar with rows, average rate and time; give what it yields to `produce` or `replay`."""
    with RichProgress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=console is not None and not console.is_terminal,
    ) as bar:
        task = bar.add_task(label, total=None, rate="")

        def report(seen: ProduceProgress) -> None:
            bar.update(
                task,
                total=seen.total or None,
                completed=seen.rows,
                rate=f"{seen.rows_per_s:,.0f} rows/s",
            )

        yield report
