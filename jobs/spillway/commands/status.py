"""`spillway status`: one look, or one every second until Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spillway.commands import given
from spillway.commands.given import AsJson
from spillway.commands.terminal import out, say_json


def status(
    json_: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on showing it until Ctrl-C.")] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the HTML report to this file.")
    ] = None,
    adaptations: Annotated[
        bool, typer.Option("--adaptations", help="Instead, show the decisions and what they did.")
    ] = False,
    all_: Annotated[
        bool,
        typer.Option(
            "--all", help="Every session. Without it old ones are counted that are complete."
        ),
    ] = False,
    groups: Annotated[
        int | None, typer.Option(min=1, help="Instead, show so many of the largest groups.")
    ] = None,
    join: Annotated[
        str, typer.Option(metavar="NAME", help="With --groups: of one join of a tree.")
    ] = "",
) -> None:
    """Show where the stream stands: session, rows, results, memory, spills, lag, delay.

    Of a settings file with several queries, without --query: a line for each.
    """
    from spillway.report.shown import SESSIONS, show_status

    several = given.each_settings()
    if len(several) > 1 and not (watch or report or adaptations or groups):
        from spillway.report.several import as_json, exit_code, look_at_each, several_table

        every = look_at_each(several, None if json_ or all_ else SESSIONS)
        if json_:
            say_json(as_json(every))
        else:
            out.print(several_table(every), highlight=False)
        raise typer.Exit(exit_code(every))
    settings = given.settings()
    if given.query_flag() and not settings.name:
        given.query(settings)  # else a name that is mistyped shows the query without a name
    if join and groups is None:
        raise typer.BadParameter("--join chooses groups: it needs --groups")
    if groups is not None:
        from spillway.report.groups import groups_table, largest_groups
        from spillway_schemas.hash_space import UnknownJoin

        try:
            found = largest_groups(given.warehouse(settings), groups, join)
        except UnknownJoin as error:
            raise typer.BadParameter(str(error)) from None
        if json_:
            say_json([each.model_dump() for each in found])
        else:
            out.print(groups_table(found, out), highlight=False)
        return
    show_status(
        settings,
        out,
        as_json=json_,
        watch=watch,
        report=report,
        adaptations=adaptations,
        every_session=all_,
    )
