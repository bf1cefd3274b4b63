"""`spillway explain`: what a query's joins are, and what goes from one to the next; with
`--estimate` what a session will come to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spillway.commands import given
from spillway.commands.given import AsJson, dated
from spillway.commands.terminal import out, say, say_json

SAMPLED = 100_000


def explain(
    query: Annotated[
        str | None,
        typer.Argument(help="A shipped query or a .toml file. Without it: the settings' query."),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the tree as a picture.")
    ] = None,
    estimate: Annotated[
        bool,
        typer.Option(
            "--estimate",
            help="Read a sample of the topics: about how many results a session has, and the keys "
            "that give most of them.",
        ),
    ] = False,
    session: Annotated[
        str | None,
        dated("With --estimate: rows of this trading day; without it all that the topics hold."),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help=f"With --estimate: rows to read of each input ({SAMPLED:,} by default).",
        ),
    ] = None,
    json_: AsJson = False,
) -> None:
    """Draw a query's tree of joins: keys, what each edge carries and why.

    Reads the query alone, no broker and no warehouse; with --estimate the topics, too.
    """
    from spillway.decode import compile_query
    from spillway.report.query_tree import as_dict, as_svg, as_text
    from spillway_schemas.query import load_query

    if not estimate and (session is not None or rows is not None):
        raise typer.BadParameter("--session and --rows say what --estimate reads: add it")
    settings = given.settings()
    found = load_query(query or settings.query)
    compile_query(found)  # types, which only evaluation knows
    if svg is not None:
        try:
            svg.write_text(as_svg(found), encoding="utf-8")
        except OSError as error:
            raise typer.BadParameter(f"{svg} cannot be written: {error.strerror}") from None
    if estimate:
        from spillway.estimate import shown
        from spillway.estimate.reading import estimated

        guess = estimated(settings, found, session, SAMPLED if rows is None else rows)
        if json_:
            say_json(as_dict(found) | {"estimate": shown.as_json(guess)})
        else:
            out.print(shown.as_tables(guess), highlight=False)
        return
    if json_:
        say_json(as_dict(found))
        return
    if svg is not None:
        say(f"written: {svg}")
    else:
        out.print(as_text(found), highlight=False)
