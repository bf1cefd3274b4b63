"""`spillway verify`: prove a session complete."""

from __future__ import annotations

from typing import Annotated

import typer

from spillway.commands import given
from spillway.commands.given import AsJson, dated
from spillway.commands.terminal import out, say_json
from spillway_schemas.exits import NOT_COMPLETE
from spillway_schemas.setting_fields import own_cores


def verify(
    session: Annotated[str, dated("The session's date.")],
    json_: AsJson = False,
    exhaustive: Annotated[
        bool,
        typer.Option(
            "--exhaustive", help="Join everything again instead of only the keys that fail."
        ),
    ] = False,
) -> None:
    """Prove a session complete, from the raw topics and the results alone. Exit 1 if it is not."""
    from spillway.verify.progress import VerifyProgress, to_stderr

    settings = given.settings()
    with VerifyProgress(session, to_stderr) as progress:
        progress.step("reading the journal")
        # After the first line: what this imports takes seconds.
        from spillway.cleanup.ahead import cores_of
        from spillway.stream.session import spark_on_demand
        from spillway.verify.proof import verify as prove

        warehouse = given.warehouse(settings)
        query = given.session_query(settings, warehouse, session)
        name = f"spillway verify {session}"
        # A session that ends cannot be asked how far it is.
        stopping = lambda: progress.step("stopping Spark")  # noqa: E731
        with spark_on_demand(settings.spark.master, name, stopping) as start:
            report = prove(
                start,
                warehouse,
                query,
                session,
                bootstrap=settings.kafka.bootstrap_servers,
                client=settings.kafka.options,
                registry=settings.registry,
                exhaustive=exhaustive,
                progress=progress,
                cores=cores_of(settings.spark.master) or own_cores(),
            ).to_dict()
    if json_:
        say_json(report)
    else:
        from spillway.verify.shown import verdict_table

        out.print(verdict_table(report))
    if not report["complete"]:
        raise typer.Exit(NOT_COMPLETE)
