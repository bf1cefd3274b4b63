"""`spillway explain`: what a query's joins are, and what goes from one to the next."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spillway.commands import given
from spillway.commands.given import AsJson
from spillway.commands.terminal import out, say, say_json


def explain(
    query: Annotated[
        str | None,
        typer.Argument(help="A shipped query or a .toml file. Without it: the settings' query."),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the tree as a picture.")
    ] = None,
    json_: AsJson = False,
) -> None:
    """Draw a query's tree of joins: keys, what each edge carries and why.

    Reads the query alone: no broker, no warehouse.
    """
    from spillway.decode import compile_query
    from spillway.report.query_tree import as_dict, as_svg, as_text
    from spillway_schemas.query import load_query

    found = load_query(query or given.settings().query)
    compile_query(found)  # types, which only evaluation knows
    if svg is not None:
        try:
            svg.write_text(as_svg(found), encoding="utf-8")
        except OSError as error:
            raise typer.BadParameter(f"{svg} cannot be written: {error.strerror}") from None
    if json_:
        say_json(as_dict(found))
        return
    if svg is not None:
        say(f"written: {svg}")
    else:
        out.print(as_text(found), highlight=False)
