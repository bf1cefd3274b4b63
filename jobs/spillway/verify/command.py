"""`spillway verify`: settings and query in, a report out; the report as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spillway.stream.session import spark_session
from spillway.tables import Warehouse
from spillway.verify.proof import verify

if TYPE_CHECKING:
    from rich.table import Table

    from spillway.verify.progress import Progress
    from spillway_schemas.query import Query
    from spillway_schemas.settings import Settings


def run(
    session: str,
    settings: Settings,
    query: Query,
    *,
    exhaustive: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Prove a session; the report as JSON would say it.

    Raises what `verify` raises, and `NoWarehouse`.
    """
    warehouse = Warehouse(settings.warehouse.root, fsync=settings.warehouse.fsync)
    started: list[Any] = []

    def start_spark() -> Any:
        spark = spark_session(settings.spark.master, f"spillway verify {session}")
        started.append(spark)
        return spark

    try:
        return verify(
            start_spark,
            warehouse,
            query,
            session,
            bootstrap=settings.kafka.bootstrap_servers,
            client=settings.kafka.options,
            exhaustive=exhaustive,
            progress=progress,
        ).to_dict()
    finally:
        for spark in started:
            if progress is not None:  # a session that ends cannot be asked how far it is
                progress.step("stopping Spark")
            spark.stop()


def table(report: dict[str, Any]) -> Table:
    """The report for people: counts, then what is wrong, with coordinates."""
    from rich.table import Table

    complete = report["complete"]
    details = report["details"]
    found = Table(
        title=f"Session {report['session']} is {'complete' if complete else 'NOT complete'}",
        title_style="bold green" if complete else "bold red",
        show_header=False,
    )
    found.add_column(justify="left")
    found.add_column(justify="right", overflow="fold")
    for label, name in (
        ("results that there should be", "expected"),
        ("results at run time", "run_time"),
        ("results by cleanup", "cleanup"),
        ("missing", "missing"),
        ("doubled or altered", "doubled"),
    ):
        found.add_row(label, f"{report[name]:,}")
    found.add_row("keys", f"{details['keys']:,}")
    found.add_row("input rows in quarantine", f"{details['quarantined']:,}")
    found.add_row("took", f"{details['seconds']:.1f} s")
    for problem in details["problems"]:
        found.add_row("[red]problem[/red]", problem)
    for each in details["differences"]:
        key = ", ".join(f"{name} {value}" for name, value in each["key"].items())
        places = ", ".join(
            f"{stream} {place['partition']}:{place['offset']}"
            for stream, place in each["coordinates"].items()
        )
        found.add_row(
            f"[red]{key}[/red]",
            f"{places}: found {each['found']}, should be {each['expected']}",
        )
    return found
