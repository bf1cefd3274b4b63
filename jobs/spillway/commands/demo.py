"""`spillway demo`: a trading day on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from spillway.commands import given
from spillway.commands.terminal import out


def demo(
    airflow: Annotated[
        bool, typer.Option("--airflow", help="Let a real Airflow run the day.")
    ] = False,
    wait: Annotated[
        bool | None,
        typer.Option(
            help="Stay up at the end until Ctrl-C (the default with --airflow in a terminal)."
        ),
    ] = None,
    query: Annotated[
        str, typer.Option(help="The query of the day: `symbol`, or `symbol_window` with a window.")
    ] = "symbol",
    keep: Annotated[
        bool, typer.Option("--keep", help="Move the folder of an earlier demo aside.")
    ] = False,
) -> None:
    """Run a whole trading day here: produce, join with too little memory, seal, clean up, prove."""
    from spillway.demo import QUERIES
    from spillway.demo import demo as run

    if query not in QUERIES:
        raise typer.BadParameter(f"{query!r} is none of {', '.join(QUERIES)}", param_hint="--query")

    if wait is None:
        wait = airflow and out.is_terminal
    raise typer.Exit(run(given.settings(), out, airflow=airflow, wait=wait, keep=keep, query=query))
