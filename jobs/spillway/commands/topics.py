"""`spillway topics`: the query's topics."""

from __future__ import annotations

from typing import Annotated

import typer

from spillway.commands import given
from spillway.commands.given import AsJson
from spillway.commands.terminal import fail, out, say_json, warn
from spillway_schemas.exits import FAILED


def topics(
    create: Annotated[
        bool, typer.Option("--create", help="Make those that do not exist; change no other.")
    ] = False,
    json_: AsJson = False,
) -> None:
    """List the query's topics: their partitions, and whether they exist. Exit 3 if one does not, or
    is not the one that the journal knows."""
    from spillway import topics as inputs
    from spillway.decode import compile_streams
    from spillway.report.words import or_text

    settings = given.settings()
    query = given.query(settings)
    compile_streams(query)  # what is wrong with it is told before any topic is made
    state = inputs.journaled(settings)
    found = inputs.look(settings, query, state, create=create)
    if json_:
        say_json([each.as_dict() for each in found])
    else:
        out.print(inputs.table(found), highlight=False)
    if any(each.created for each in found):
        warn(
            "They keep rows as long as the cluster says: a session's must stay until it is proved "
            "(retention.ms; 'spillway doctor' compares)"
        )
    for each in found:
        if each.problem:
            warn(f"{each.problem}: the stream refuses it. See the runbook, `A topic was deleted`")
    if missing := inputs.missing(found):
        if problem := inputs.gone(settings, state, missing):
            fail(str(problem), FAILED)
        fail(
            f"no topic {or_text(missing)} on {settings.kafka.bootstrap_servers}: run 'spillway "
            "topics --create', or name another one in the query",
            FAILED,
        )
    if any(each.problem for each in found):
        raise typer.Exit(FAILED)
