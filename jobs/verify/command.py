"""`spillway verify`: settings in, the verdict out, for people or as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from schemas.query import Query
    from schemas.settings import Settings


def verify_command(
    session: str, settings: Settings, query: Query, *, exhaustive: bool
) -> dict[str, Any]:
    """Verify a session with a Spark session of its own; the report as a JSON object.

    Raises what `jobs.verify.proof.verify` raises.
    """
    from jobs.stream.session import spark_session
    from jobs.tables import Warehouse
    from jobs.verify.proof import verify

    warehouse = Warehouse(settings.warehouse.root, fsync=settings.warehouse.fsync)
    spark = spark_session(settings.spark.master, f"spillway verify {session}")
    try:
        report = verify(
            spark,
            warehouse,
            query,
            session,
            bootstrap=settings.kafka.bootstrap_servers,
            client=settings.kafka.options,
            exhaustive=exhaustive,
        )
    finally:
        spark.stop()
    return report.to_dict()


def verdict_table(report: dict[str, Any]) -> Table:
    """The verdict, and the first differences with their coordinates."""
    title = "complete" if report["complete"] else "[bold red]NOT COMPLETE[/]"
    table = Table(title=f"session {report['session']}: {title}", show_header=False, box=None)
    for name in ("expected", "run_time", "cleanup", "missing", "doubled"):
        table.add_row(name.replace("_", " "), f"{report[name]:,}")
    details = report["details"]
    for problem in details.get("problems", []):
        table.add_row("problem", escape(str(problem)))
    for difference in details.get("differences", []):
        table.add_row("difference", escape(str(difference)))
    return table
