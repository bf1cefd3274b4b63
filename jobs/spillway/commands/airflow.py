"""`spillway airflow`: for an Airflow that is there already."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spillway.commands.terminal import say

app = typer.Typer(help="For an Airflow that is there already.", no_args_is_help=True)


@app.command("dags")
def dags(
    folder: Annotated[Path, typer.Argument(help="Airflow's dags folder.")],
) -> None:
    """Write the trading day's DAG file into a folder; an equal one is left as it is."""
    from spillway.dag_files import write_dag_files

    for path in write_dag_files(folder):
        say(f"DAG file: {path}")
